"""What a report says first is what is wrong, and doing what it says has the effect that it promises.

Five loops have one problem each (`planted`). Virtual time repeats, so that what is promised is compared with what is
measured in a second run, which does what the first finding names. Loops with nothing wrong have no finding.
"""

from collections.abc import Callable
from statistics import median_low

import planted
import pytest

from umadvise.records.fault_profile import FaultProfile
from umadvise.records.units import parse_bytes

pytestmark = pytest.mark.usefixtures("unpatched")


def with_more(profile: FaultProfile) -> FaultProfile:
    """The run with the budget that its first finding names."""
    budget = profile.findings[0].advice.partition('budget="')[2].partition('"')[0]
    return planted.evicted_parameters(budget=budget)


@pytest.mark.parametrize(
    ("plant", "finding", "named", "done"),
    [
        (planted.evicted_parameters, "parameters-fault-every-step", "budget=", with_more),
        (
            planted.dead_activations,
            "dead-intermediates-copied",
            "made by aten::addmm in",
            lambda _: planted.dead_activations(keeps=False),
        ),
        (
            planted.heavy_optimizer,
            "optimizer-state-round-trip",
            "torch.optim.SGD",
            lambda _: planted.heavy_optimizer(state=False),
        ),
        (
            planted.exported_tensor,
            "exported-memory",
            "tensor.cpu().numpy()",
            lambda _: planted.exported_tensor(exports=False),
        ),
        (
            planted.leaving_loop,
            "steps-without-plans",
            "the same ops in the same order",
            lambda _: planted.leaving_loop(shuffles=False),
        ),
    ],
)
def test_the_first_finding_is_the_problem_and_its_promise_holds(
    plant: Callable[[], FaultProfile], finding: str, named: str, done: Callable[[FaultProfile], FaultProfile]
) -> None:
    profile = plant()
    first = profile.findings[0]
    assert first.id == finding
    assert named in first.message + first.advice
    assert " a step by simulation, instead of " in first.advice
    least_ns, most_ns = first.evidence["promised_least_ns"], first.evidence["promised_most_ns"]
    before_ns = usual_ns(profile)
    assert most_ns < before_ns
    after_ns = usual_ns(done(profile))
    assert least_ns <= after_ns <= most_ns


def usual_ns(profile: FaultProfile) -> int:
    """What a step takes once plans drive."""
    durations = [step.duration_ns for step in profile.steps]
    return median_low(durations[len(durations) // 2 :])


def test_the_budget_that_is_named_does_where_pages_are_half_empty() -> None:
    profile = planted.half_empty_pages()
    named = profile.findings[0].advice.partition('budget="')[2].partition('"')[0]
    more_bytes = parse_bytes(named) - (24 << 20)
    (said,) = (each for each in profile.predictions if each.more_bytes == more_bytes)
    enough = planted.half_empty_pages(budget=named)
    assert enough.findings == ()
    assert usual_ns(enough) == pytest.approx(said.step_ns, rel=0.15)
    assert usual_ns(enough) < usual_ns(profile) / 2


def test_the_budget_that_is_named_does_for_swaps_too() -> None:
    """Chunks are half empty as pages are: what is live at once is not all that it takes."""
    profile = planted.half_empty_pages(policy="swap")
    first = profile.findings[0]
    named = first.advice.partition('budget="')[2].partition('"')[0]
    assert "has room for all of it, with some to spare: " in first.advice
    enough = planted.half_empty_pages(policy="swap", budget=named)
    assert enough.findings == ()
    last = enough.steps[-1].swaps
    assert last is not None
    assert last.wait_copy_ns == 0


@pytest.mark.long
def test_the_budget_that_is_named_does_where_state_lies_scattered() -> None:
    """What is free between parts of the optimizer's state is nobody's, and takes room all the same."""
    profile = planted.scattered_state()
    first = profile.findings[0]
    enough = planted.scattered_state(budget=first.advice.partition('budget="')[2].partition('"')[0])
    assert not [each for each in enough.findings if each.severity == "warning"]
    assert first.evidence["promised_least_ns"] <= usual_ns(enough) <= first.evidence["promised_most_ns"]


def test_another_rung_takes_what_the_report_says_of_it() -> None:
    """Whoever runs on unified memory is told what swapping would take, and what a plan of prefetches would."""
    advised = planted.heavy_optimizer()
    said = {each.rung: each.step_ns for each in advised.predictions if not (each.more_bytes or each.change)}
    assert usual_ns(advised) == pytest.approx(said["advise"], rel=0.15)
    for rung, tolerance in (("window", 0.15), ("swap", 0.1)):
        assert usual_ns(planted.heavy_optimizer(policy=rung)) == pytest.approx(said[rung], rel=tolerance)


def test_what_a_closure_runs_is_not_the_optimizers() -> None:
    """Else an optimizer without state would take no forward and no backward."""
    profile = planted.heavy_optimizer(closure=True)
    assert profile.tables is not None
    assert {row.phase for row in profile.tables.phase.rows if row.compute_ns} >= {"forward", "backward", "optimizer"}
    first = profile.findings[0]
    assert first.id == "optimizer-state-round-trip"
    after_ns = usual_ns(planted.heavy_optimizer(state=False, closure=True))
    assert first.evidence["promised_least_ns"] <= after_ns <= first.evidence["promised_most_ns"]


@pytest.mark.parametrize(("policy", "tolerance"), [("advise", 0.15), ("swap", 0.1)])
def test_predictions_are_about_the_steps_that_came_last(policy: str, tolerance: float) -> None:
    profile = planted.warmed_up(policy)
    (said,) = (each for each in profile.predictions if (each.rung, each.more_bytes, each.change) == (policy, 0, None))
    assert usual_ns(profile) == pytest.approx(said.step_ns, rel=tolerance)


@pytest.mark.parametrize("plant", [planted.that_fits, planted.well_planned, planted.inference])
def test_nothing_is_found_where_nothing_is_wrong(
    plant: Callable[[], FaultProfile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UMADVISE_PLAN_SEARCH", "")  # virtual time waits for it, so the plan is the same each time
    profile = plant()
    assert profile.findings == ()
    if plant is planted.well_planned:
        assert profile.swaps is not None
        assert profile.swaps.swap_out_bytes > 0
