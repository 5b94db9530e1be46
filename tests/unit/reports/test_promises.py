"""What a finding promises of a change: how much is uncertain about it, and when nothing is promised."""

from typing import Any

import msgspec
import pytest

from umadvise.records.fault_profile import FaultProfile, Finding, MeasuredStep, RungPrediction
from umadvise.reports.findings import examine
from umadvise.reports.findings.facts import Facts
from umadvise.reports.findings.outlook import bounds_ns

MIB = 1 << 20
GIB = 1 << 30
SECOND = 10**9


def found(profile: FaultProfile, finding_id: str) -> Finding | None:
    return {finding.id: finding for finding in examine(profile)}.get(finding_id)


def inference(make: Any, **fields: Any) -> FaultProfile:
    """Weights of 3 GiB on a device of 1 GiB: nothing else is there to speak of. Half of the time are faults."""
    by_role = make.by_role(parameter=3 * GIB, intermediate=8 * MIB)
    memory = make.memory(requested_peak_bytes=3 * GIB, requested_peak_by_role=by_role)
    counted = make.counters(fault_groups=100, fault_service_ns=SECOND)
    return make.profile(**{"counters": counted, "memory": memory, **fields})


def test_a_rung_is_named_where_the_simulator_says_that_it_helps(make: Any) -> None:
    def predicted(**step_ns: int) -> tuple[RungPrediction, ...]:
        return tuple(RungPrediction(rung=rung, step_ns=time_ns) for rung, time_ns in step_ns.items())

    finding = found(inference(make, predictions=predicted(advise=SECOND, window=SECOND // 2)), "fault-stall")
    assert finding is not None
    assert finding.advice.endswith(
        "umadvise run --policy window: 325.00 ms to 625.00 ms a step by simulation, instead of 1.00 s."
    )
    finding = found(inference(make, predictions=predicted(advise=SECOND, window=SECOND * 99 // 100)), "fault-stall")
    assert finding is not None
    assert "window" not in finding.advice  # hardly any shorter
    finding = found(inference(make), "fault-stall")
    assert finding is not None
    assert finding.advice.endswith("say `umadvise run --record FILE` and `umadvise compare FILE`.")


@pytest.mark.parametrize("compute_ns", [SECOND // 2, SECOND * 3 // 4, SECOND * 9 // 10])
@pytest.mark.parametrize("durations", [(10, 10, 10, 10), (10, 30, 11, 10), (10, 10, 100, 15)])
@pytest.mark.parametrize("said_ns", [SECOND // 10, SECOND // 2, SECOND * 3 // 4])
def test_nothing_is_promised_below_the_time_of_the_ops(
    compute_ns: int, durations: tuple[int, ...], said_ns: int, make: Any
) -> None:
    """However unlike the steps are, and however wrong the simulator is about them."""
    counted = make.counters(fault_groups=100, fault_service_ns=SECOND // 2)
    steps = tuple(
        msgspec.structs.replace(
            step, duration_ns=each * SECOND // 10, times=make.times(compute_ns=compute_ns, script_ns=1000)
        )
        for step, each in zip(make.steps(*(counted,) * 8), (10,) * 4 + durations, strict=True)
    )
    predictions = (
        RungPrediction(rung="advise", step_ns=SECOND * 2),
        RungPrediction(rung="window", step_ns=said_ns),
        RungPrediction(rung="advise", step_ns=said_ns, more_bytes=2389 * MIB),
    )
    profile = inference(make, steps=steps, step_count=8, duration_ns=8 * SECOND, predictions=predictions)
    facts = Facts(profile)
    for each in predictions:
        least_ns, most_ns = bounds_ns(facts, each)
        assert compute_ns <= least_ns <= most_ns


def test_a_prediction_is_as_uncertain_as_it_was_wrong_about_this_run(make: Any) -> None:
    predictions = (
        RungPrediction(rung="advise", step_ns=SECOND * 7 // 10),  # it took a second
        RungPrediction(rung="window", step_ns=SECOND * 69 // 100),
        RungPrediction(rung="advise", step_ns=SECOND * 6 // 10, more_bytes=GIB),
        RungPrediction(rung="advise", step_ns=SECOND * 4 // 10, more_bytes=2 * GIB),
        RungPrediction(rung="advise", step_ns=SECOND * 3 // 10, more_bytes=3 * GIB),
    )
    standing = make.counters(fault_service_ns=SECOND // 2)
    steps = make.steps(standing, standing, duration_ns=SECOND)
    finding = found(inference(make, predictions=predictions, steps=steps), "fault-stall")
    assert finding is not None
    assert finding.advice.endswith(
        "2.00 GiB more removes 60% of the waits: 260.00 ms to 571.43 ms a step by simulation, instead of 1.00 s."
    )
    assert "window" not in finding.advice


def with_times(make: Any, duration_ns: int, **times: int) -> tuple[MeasuredStep, ...]:
    """Two steps that stand still for half of their time, and what the rest went into."""
    steps = make.steps(*[make.counters(fault_service_ns=duration_ns // 2)] * 2, duration_ns=duration_ns)
    return tuple(msgspec.structs.replace(step, times=make.times(**times)) for step in steps)


def test_waits_are_more_uncertain_than_ops(make: Any) -> None:
    rungs = {"advise": SECOND, "window": SECOND // 2}
    predictions = tuple(RungPrediction(rung=rung, step_ns=step_ns) for rung, step_ns in rungs.items())
    steps = with_times(make, SECOND, compute_ns=SECOND * 4 // 10)
    finding = found(inference(make, predictions=predictions, steps=steps), "fault-stall")
    assert finding is not None
    assert "--policy window: 405.00 ms to 585.00 ms a step" in finding.advice  # 400 -+ 15 %, and 100 - 35, + 25 %


def test_what_the_script_takes_is_no_wait_that_any_change_removes(make: Any) -> None:
    predictions = (
        RungPrediction(rung="advise", step_ns=SECOND // 2),  # and the script takes as much
        RungPrediction(rung="window", step_ns=SECOND // 10),
    )
    steps = with_times(make, SECOND, script_ns=SECOND * 4 // 10, observing_ns=SECOND // 10, compute_ns=SECOND // 10)
    finding = found(inference(make, predictions=predictions, steps=steps), "fault-stall")
    assert finding is not None
    assert "--policy window: 510.00 ms to 690.00 ms a step" in finding.advice


def test_a_promise_is_wider_where_steps_differ(make: Any) -> None:
    predictions = (RungPrediction(rung="advise", step_ns=SECOND), RungPrediction(rung="window", step_ns=SECOND // 4))
    standing = make.counters(fault_service_ns=SECOND // 2)
    tenths = (10,) * 8 + (8, 8, 8, 10, 10, 11, 11, 11)  # as of sentences of any length
    steps = [
        msgspec.structs.replace(step, duration_ns=SECOND * length // 10)
        for step, length in zip(make.steps(*[standing] * 16), tenths, strict=True)
    ]
    profile = inference(make, predictions=predictions, steps=tuple(steps), step_count=16)
    finding = found(profile, "fault-stall")
    assert finding is not None
    assert "--policy window: 130.00 ms to 390.62 ms a step" in finding.advice  # 162.5 / 1.25, 312.5 * 1.25


def test_nothing_is_promised_where_the_simulator_is_wrong_by_far(make: Any) -> None:
    """The step that was recorded is not one of those that came."""
    environment = make.environment(capacity_bytes=8 * GIB, budget_bytes=GIB)
    predictions = (
        RungPrediction(rung="advise", step_ns=SECOND // 20),
        RungPrediction(rung="window", step_ns=SECOND // 20),
        RungPrediction(rung="advise", step_ns=SECOND // 20, more_bytes=2390 * MIB),
    )
    steps = with_times(make, SECOND)
    finding = found(inference(make, environment=environment, predictions=predictions, steps=steps), "fault-stall")
    assert finding is not None
    assert finding.advice == (
        "Up to 3.00 GiB are live at once, 1.00 GiB may be on the device: umadvise run --budget 3414MiB has room for "
        "all of it, with some to spare."
    )


def test_a_budget_that_helps_nothing_is_not_named(make: Any) -> None:
    environment = make.environment(capacity_bytes=8 * GIB, budget_bytes=GIB)
    predictions = (
        RungPrediction(rung="advise", step_ns=SECOND),
        RungPrediction(rung="advise", step_ns=SECOND, more_bytes=2390 * MIB),
    )
    steps = with_times(make, SECOND, compute_ns=SECOND)
    finding = found(inference(make, environment=environment, predictions=predictions, steps=steps), "fault-stall")
    assert finding is not None
    assert finding.advice == "Up to 3.00 GiB are live at once, 1.00 GiB may be on the device."


def test_what_is_likely_is_named_though_it_is_not_sure(make: Any) -> None:
    """The simulator knows too little to say that the step is shorter at all; a quarter less is what it expects."""

    def advice(window_ns: int, now_ns: int = SECOND * 9 // 10) -> str:
        predictions = (RungPrediction(rung="advise", step_ns=now_ns), RungPrediction(rung="window", step_ns=window_ns))
        standing = make.counters(fault_service_ns=SECOND // 2)
        steps = make.steps(standing, standing, duration_ns=SECOND)
        finding = found(inference(make, predictions=predictions, steps=steps), "fault-stall")
        assert finding is not None
        return finding.advice

    tenth = SECOND // 10
    assert "--policy window: 546.00 ms to 1.05 s a step by simulation, instead of 1.00 s" in advice(tenth * 84 // 10)
    assert "window" not in advice(SECOND)  # the middle of it is no less than what a step takes
    assert "window" not in advice(tenth * 8, now_ns=tenth * 17)  # of a step as it is the simulator says far too much
