"""The benchmark of planners: its tables and verdicts from comparisons written down, and its choice of budgets."""

from typing import Any

import pytest
from benchmark_planners import budgets
from planner_table import claims, table

from umadvise.devices.catalogue import load_device
from umadvise.planners.judging.comparison import PlannerComparison
from umadvise.planners.judging.score import Score
from umadvise.recording.builder import TraceBuilder
from umadvise.records.enums import Role
from umadvise.records.trace import Access

GIB = 1 << 30
SECOND = 10**9


def score(planner: str, gib: int, seconds: float | None, regret: float | None = None, **fields: Any) -> Score:
    """A step that takes 10 s in unlimited memory; None: it cannot."""
    if seconds is None:
        return Score(planner=planner, budget_bytes=gib * GIB, problem="no room")
    return Score(
        planner=planner,
        budget_bytes=gib * GIB,
        step_ns=int(seconds * SECOND),
        overhead=seconds / 10 - 1,
        planning_ns=10**6 * gib,
        regret=regret,
        bound=None if regret is None else "programme",
        **fields,
    )


def comparison(*scores: Score) -> PlannerComparison:
    return PlannerComparison(
        workload="w",
        device="v100-pcie-16gb",
        peak_bytes=10 * GIB,
        unlimited_ns=10 * SECOND,
        umadvise_version="1",
        scores=scores,
    )


TABLE = """\
### net on v100-pcie-16gb

10.00 GiB and 10.00 s in unlimited memory; overhead over that, x where it cannot.

| planner | 9.00 GiB (90%) | 5.00 GiB (50%) | planning |
| --- | --: | --: | --: |
| lms | 0.0% | x | 9.00 ms |
| lru:a=1 | 50.0% | 100.0% | 9.00 ms |
| *least regret* | 0.0% lms (programme) | 90.0% lru:a=1 (programme) |  |
"""


def test_a_table_says_what_each_planner_costs() -> None:
    assert (
        table(
            "net",
            comparison(
                score("lms", 9, 10, 0.0),
                score("lru:a=1", 9, 15, 0.5),
                score("lms", 5, None),
                score("lru:a=1", 5, 20, 0.9),
            ),
        )
        == TABLE
    )


def verdicts(*scores: Score) -> list[bool | None]:
    """Never slower; feasible; regrets; at half the peak."""
    return [claim.holds for claim in claims([("net", comparison(*scores))])]


def test_without_best_nothing_is_judged() -> None:
    assert verdicts(score("lms", 5, 12.5), score("lru", 5, None)) == [None] * 4


def test_best_as_it_has_to_be() -> None:
    assert (
        verdicts(
            score("lms", 9, 10.5),
            score("best", 9, 10, 0.0),
            score("lms", 5, 12.5),
            score("best", 5, 11, 0.08),
            score("lms", 3, None),
            score("best", 3, None),
        )
        == [True] * 4
    )


@pytest.mark.parametrize(
    ("scores", "failing"),
    [
        ([score("lru", 9, 10), score("best", 9, 10.001, 0.01), score("lms", 5, 12.5), score("best", 5, 11, 0.0)], 0),
        ([score("lru", 3, 99), score("best", 3, None), score("lms", 5, 12.5), score("best", 5, 11, 0.0)], 1),
        ([score("best", 9, 10.2, 0.06), score("lms", 5, 12.5), score("best", 5, 11, 0.07)], 2),
        ([score("lms", 5, 12.5), score("best", 5, 11, 0.04), score("best", 3, 99, 0.21), score("best", 2, 99, 0.0)], 2),
        (
            [score("best", 9, 10, 0.0), score("lms", 5, 12.5), score("best", 5, 11.4, 0.06), score("best", 3, 20, 0.0)],
            3,
        ),
        ([score("best", 9, 10, 0.0), score("lms", 5, 12.5), score("best", 5, None)], 3),
    ],
)
def test_each_failure_is_told(scores: list[Score], failing: int) -> None:
    found = verdicts(*scores)
    assert found[failing] is False
    assert [row for row, holds in enumerate(found) if holds is False] in ([failing], [1, failing])


def test_a_small_regret_stands_for_half_of_the_overhead() -> None:
    """Nothing has half of 0.1 %, where nothing is better than 0.08 %."""
    assert verdicts(score("lms", 5, 10.01), score("best", 5, 10.008, 0.0))[3] is True
    assert verdicts(score("belady", 5, 10.01), score("best", 5, 10.008, 0.0))[3] is None  # a baseline is no paper


def test_budgets_go_from_nine_tenths_to_the_smallest_and_one_is_half() -> None:
    """Ten maps of 100 MiB, made one after the other and read in the opposite order: two are needed at once, at most."""
    builder, maps, size = TraceBuilder(), [], 100 << 20
    for _ in range(10):
        builder.begin_op("aten::op", duration_ns=10**6)
        for each in maps[-1:]:
            builder.access(each, Access.READ)
        maps.append(builder.allocate(size, Role.INTERMEDIATE))
        builder.access(maps[-1], Access.WRITE | Access.WHOLE)
        builder.end_op()
    for each in reversed(maps):
        builder.begin_op("aten::op", duration_ns=10**6)
        builder.access(each, Access.READ)
        builder.end_op()
        builder.free(each)
    trace = builder.finish(target="cuda", source="synthetic")
    found = budgets(trace, load_device("v100-16gb"), ["belady", "lms"], 6)
    assert (found[0], found[-1], len(found)) == (9 * size, 2 * size, 6)
    assert 5 * size in found and found == sorted(found, reverse=True)
