"""The governor: which rung, and when it changes; random histories keep its promises."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umadvise.errors import UsageError
from umadvise.governor import Governor, StepRecord
from umadvise.roles import RUNGS

MS = 1_000_000


def record(number: int, stall: float = 0.0, groups: int | None = 0, *, typical: bool = True) -> StepRecord:
    return StepRecord(number, 100 * MS, round(stall * 100 * MS), groups, typical)


def test_two_steps_above_the_threshold_go_one_rung_up() -> None:
    governor = Governor("advise", "a guess")
    assert governor.observe(record(1, 0.06)) is None
    switch = governor.observe(record(2, 0.07))
    assert switch is not None
    assert (switch.step, switch.before, switch.rung) == (3, "advise", "window")
    assert switch.reason == "stalls took 7.0% of the step, more than 5.0%, 2 steps in a row"
    assert governor.rung == "window"
    assert [each.rung for each in governor.history] == ["advise", "window"]


def test_one_good_step_in_between_counts_anew() -> None:
    governor = Governor("advise", "a guess")
    for number, stall in enumerate((0.5, 0.05, 0.5, 0.01, 0.5), 1):
        assert governor.observe(record(number, stall)) is None


def test_steps_that_say_nothing_are_passed_over() -> None:
    governor = Governor("swap", "a guess")
    assert governor.observe(record(1, 0.9)) is None
    assert governor.observe(record(2, 0.0, typical=False)) is None
    assert governor.observe(record(3, 0.9, typical=False)) is None
    switch = governor.observe(record(4, 0.9))
    assert switch is not None
    assert switch.rung == "swap+recompute"


def test_nothing_is_above_the_last_rung() -> None:
    governor = Governor("swap+recompute", "a guess")
    assert [governor.observe(record(number, 0.9)) for number in range(1, 10)] == [None] * 9


def test_a_whole_number_is_fault_groups() -> None:
    governor = Governor("advise", "a guess", threshold=10)
    assert governor.observe(record(1, 0.9, 10)) is None
    assert governor.observe(record(2, 0.9, None)) is None
    assert governor.observe(record(3, 0.0, 11)) is None
    switch = governor.observe(record(4, 0.0, 12))
    assert switch is not None
    assert "12 fault groups a step, more than 10" in switch.reason


@pytest.mark.parametrize("threshold", [True, -1, -0.1, 1.1, "5%", None])
def test_other_thresholds_are_refused(threshold: object) -> None:
    with pytest.raises(UsageError, match="fault_threshold"):
        Governor("advise", "", threshold=threshold)  # type: ignore[arg-type]


def test_the_shortest_predicted_step_is_chosen_and_the_lower_rung_where_it_hardly_matters() -> None:
    governor = Governor("advise", "a guess")
    stay = governor.choose(3, {"advise": 100 * MS, "window": 99 * MS, "swap": 99 * MS})
    assert stay is not None
    assert (stay.before, stay.rung) == ("advise", "advise")
    switch = governor.choose(3, {"advise": 200 * MS, "window": 101 * MS, "swap": 100 * MS})
    assert switch is not None
    assert switch.rung == "window"
    assert switch.reason == "predicted steps: advise 200.0 ms, window 101.0 ms, swap 100.0 ms"
    assert governor.choose(4, {}) is None


def test_a_rung_that_was_left_is_not_chosen_again_unless_the_step_changes() -> None:
    governor = Governor("advise", "a guess")
    governor.observe(record(1, 0.9))
    governor.observe(record(2, 0.9))
    assert governor.rung == "window"
    stay = governor.choose(3, {"advise": MS, "window": 100 * MS})
    assert stay is not None
    assert stay.rung == "window"
    assert governor.go(3, "advise", "it fits") is None
    governor.restructure()
    switch = governor.choose(4, {"advise": MS, "window": 100 * MS})
    assert switch is not None
    assert switch.rung == "advise"


def test_a_rung_that_the_step_does_not_run_on_is_passed_over_until_the_step_changes() -> None:
    governor = Governor("advise", "a guess")
    governor.exclude(["window", "swap"])
    governor.observe(record(1, 0.9))
    switch = governor.observe(record(2, 0.9))
    assert switch is not None
    assert switch.rung == "swap+recompute"
    back = governor.take_back(switch, "no memory for it")
    assert (back.rung, governor.rung) == ("advise", "advise")
    assert [governor.observe(record(number, 0.9)) for number in (3, 4, 5)] == [None] * 3
    assert governor.go(6, "swap", "why not") is None
    governor.restructure()
    governor.observe(record(6, 0.9))
    switch = governor.observe(record(7, 0.9))
    assert switch is not None
    assert switch.rung == "window"


def test_rungs_that_are_not_there() -> None:
    governor = Governor("advise", "a guess", rungs=("resident", "advise", "swap"))
    governor.observe(record(1, 0.9))
    switch = governor.observe(record(2, 0.9))
    assert switch is not None
    assert switch.rung == "swap"
    assert governor.go(3, "window", "no") is None
    with pytest.raises(UsageError, match="no rung 'window'"):
        Governor("window", "", rungs=("advise",))


@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans(), st.dictionaries(st.sampled_from(RUNGS), st.integers(1, 10**9))))
)
def test_no_rung_is_taken_twice_while_the_step_is_the_same(
    steps: list[tuple[float, bool, dict[str, int]]],
) -> None:
    governor = Governor("advise", "a guess")
    left: set[str] = set()
    for number, (stall, typical, predicted) in enumerate(steps, 1):
        switch = governor.observe(record(number, stall, typical=typical))
        if switch is not None:
            assert switch.before is not None
            left.add(switch.before)
            assert RUNGS.index(switch.rung) > RUNGS.index(switch.before)
        governor.choose(number + 1, predicted)
        assert governor.rung not in left
    assert all(one.rung == other.before for one, other in pairwise(governor.history))
