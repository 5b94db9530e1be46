"""Each rule on a profile where it must speak, and on the nearest one where it must not."""

import re
from typing import Any

import msgspec
import pytest

from umadvise.records.counters import Placed
from umadvise.records.fault_profile import (
    BIN_COUNT,
    Exported,
    FaultProfile,
    Finding,
    OversizedOp,
    PlannedSteps,
    RungPrediction,
    Undriven,
)
from umadvise.reports.findings import examine

MIB = 1 << 20
GIB = 1 << 30
SECOND = 10**9


def found(profile: FaultProfile, finding_id: str) -> Finding | None:
    findings = {finding.id: finding for finding in examine(profile)}
    return findings.get(finding_id)


def stalled(make: Any, share: float, **fields: Any) -> FaultProfile:
    """Two steps of a second each, a share of which went into fault service."""
    counted = make.counters(fault_groups=100, fault_service_ns=int(share * 2 * SECOND))
    return make.profile(**{"counters": counted, "memory": make.memory(requested_peak_bytes=3 * GIB), **fields})


def test_nothing_is_found_where_nothing_happened(make: Any) -> None:
    assert examine(make.profile()) == ()
    assert examine(make.profile(step_count=0, duration_ns=0, memory=None, tables=None)) == ()


def test_lost_events(make: Any) -> None:
    finding = found(make.profile(events_dropped=1234), "events-dropped")
    assert finding is not None
    assert "1,234 events were lost" in finding.message
    assert found(make.profile(events_dropped=0), "events-dropped") is None


def test_fault_stall(make: Any) -> None:
    tables = make.tables(
        role=(make.role(role="input", service_ns=1), make.role(role="gradient", service_ns=SECOND // 2))
    )
    finding = found(stalled(make, 0.5, tables=tables), "fault-stall")
    assert finding is not None
    assert finding.severity == "warning"
    assert finding.message == (
        "Faults and late prefetches take 50% of a steady step: 500.00 ms of 1.00 s. "
        "In the whole run 50% of the time of faults was for gradients."
    )
    assert "3.00 GiB are live at once, too much for a device of 1.00 GiB" in finding.advice
    assert finding.evidence == {"fault_service_ns": SECOND, "duration_ns": 2 * SECOND}
    assert found(stalled(make, 0.049), "fault-stall") is None
    assert found(stalled(make, 0.5, memory=make.memory(requested_peak_bytes=GIB // 2)), "fault-stall") is None


def test_a_budget_is_recommended_only_where_the_device_has_it(make: Any) -> None:
    environment = make.environment(capacity_bytes=8 * GIB, budget_bytes=GIB)
    finding = found(stalled(make, 0.5, environment=environment), "fault-stall")
    assert finding is not None
    # 3 GiB and a tenth of the whole for blocks that are only partly used: 3072 / 0.9 = 3413.4 MiB
    assert "umadvise run --budget 3414MiB" in finding.advice
    finding = found(stalled(make, 0.5, environment=environment, memory=None), "fault-stall")
    assert finding is not None
    assert "budget=..." in finding.advice


def test_fits_without_unified(make: Any) -> None:
    fits = make.memory(requested_peak_bytes=900 * MIB)
    finding = found(stalled(make, 0.02, memory=fits), "fits-without-unified")
    assert finding is not None
    assert (finding.severity, "umadvise run --policy resident" in finding.advice) == ("info", True)
    costly = found(stalled(make, 0.5, memory=fits), "fits-without-unified")
    assert costly is not None
    assert costly.severity == "warning"
    too_large = make.memory(requested_peak_bytes=930 * MIB)  # 1024 MiB less a tenth is 921.6
    assert found(stalled(make, 0.02, memory=too_large), "fits-without-unified") is None
    resident = make.environment(policy="resident")
    assert found(stalled(make, 0.02, memory=fits, environment=resident), "fits-without-unified") is None
    assert found(make.profile(memory=fits), "fits-without-unified") is None  # no faults: nothing to gain


def test_fits_and_is_prefetched_by_many_calls(make: Any) -> None:
    """No fault, and yet most of a step goes into calls that plain memory needs none of."""

    def calls(part: int, advice: str = "prefetch") -> Finding | None:
        steps = make.steps(*[make.counters(fault_service_ns=0)] * 2, duration_ns=100)
        steps = tuple(msgspec.structs.replace(step, times=make.times(guard_ns=part)) for step in steps)
        placed = (Placed(role="intermediate", memory="managed", advice=advice, bytes=MIB),)
        memory = make.memory(requested_peak_bytes=900 * MIB)
        return found(make.profile(steps=steps, placed=placed, memory=memory), "fits-without-unified")

    finding = calls(30)
    assert finding is not None
    assert "with which new memory is prefetched, take 30% of a steady step" in finding.message
    assert "umadvise run --policy resident" in finding.advice
    assert calls(20) is None
    assert calls(30, "none") is None


@pytest.mark.parametrize(
    ("op", "advice"),
    [
        ("aten::_foreach_addcdiv_", "foreach=False"),
        ("aten::_fused_adamw_", "foreach=False"),
        ("aten::mm", "--budget 1026MiB"),
    ],
)
def test_oversized_op(make: Any, op: str, advice: str) -> None:
    oversized = OversizedOp(op=op, module="head", phase="forward", bytes=1025 * MIB, count=4)
    larger = make.environment(capacity_bytes=2 * GIB, budget_bytes=512 * MIB)
    finding = found(make.profile(oversized_ops=(oversized,), environment=larger), "oversized-op")
    assert finding is not None
    assert finding.subject == op
    assert "touches up to 1.00 GiB at once, 512.00 MiB may be on the device (4 times)" in finding.message
    assert advice in finding.advice
    assert found(make.profile(), "oversized-op") is None


def test_no_batch_makes_what_an_optimizer_uses_at_once_smaller(make: Any) -> None:
    larger = make.environment(capacity_bytes=2 * GIB, budget_bytes=512 * MIB)
    for phase, less in (("backward", "or a smaller batch."), ("optimizer", "a smaller batch changes nothing here.")):
        oversized = OversizedOp(op="aten::addcdiv_", module=None, phase=phase, bytes=GIB, count=4)
        finding = found(make.profile(oversized_ops=(oversized,), environment=larger), "oversized-op")
        assert finding is not None
        assert finding.advice.endswith(less)


def test_a_budget_that_the_device_does_not_have_is_not_advised(make: Any) -> None:
    oversized = OversizedOp(op="aten::mm", module="head", phase="forward", bytes=1025 * MIB, count=4)
    finding = found(make.profile(oversized_ops=(oversized,)), "oversized-op")
    assert finding is not None
    assert finding.advice == "No budget on a device of 1.00 GiB holds it: smaller tensors, or a larger device."


def test_an_op_that_fits_the_budget_may_not_fit_what_plain_memory_leaves(make: Any) -> None:
    oversized = OversizedOp(op="aten::mm", module="head", phase="forward", bytes=16 * MIB, count=4)
    larger = make.environment(capacity_bytes=2 * GIB, budget_bytes=512 * MIB)
    finding = found(make.profile(oversized_ops=(oversized,), environment=larger), "oversized-op")
    assert finding is not None
    assert (
        "512.00 MiB may be on the device, of which plain memory or chunks left unified memory less" in finding.message
    )
    assert finding.advice == "More memory, or a smaller batch."


def parameters(make: Any, **fields: Any) -> Any:
    row = {"role": "parameter", "fault_groups": 10, "faulted_steps": 2, "service_ns": SECOND // 10}
    row["bytes_h2d"] = make.by_cause(coherence=20 * MIB)
    return make.tables(role=(make.role(**{**row, **fields}),))


def test_parameters_fault_every_step(make: Any) -> None:
    finding = found(make.profile(tables=parameters(make)), "parameters-fault-every-step")
    assert finding is not None
    assert "10.00 MiB a step come to the device" in finding.message
    assert 'model.to("cuda:preferredlocation") may lower' in finding.advice
    assert "protects nothing from eviction" in finding.advice
    advised = make.placed(parameter="preferred_location")
    finding = found(make.profile(tables=parameters(make), placed=advised), "parameters-fault-every-step")
    assert finding is not None
    assert "They have preferred_location already" in finding.advice
    quiet = [
        make.profile(tables=parameters(make, service_ns=SECOND // 50)),  # a hundredth of the time is no matter
        make.profile(tables=parameters(make, faulted_steps=1)),  # only when they first came
        make.profile(tables=parameters(make, bytes_h2d=make.by_cause())),  # first touches: nothing came over the link
        make.profile(tables=parameters(make), step_count=1),  # one step is no pattern
        make.profile(tables=parameters(make, role="gradient")),
        make.profile(tables=None),
    ]
    assert [found(profile, "parameters-fault-every-step") for profile in quiet] == [None] * len(quiet)


def test_read_mostly_collapses(make: Any) -> None:
    tables = make.tables(
        role=(make.role(role="parameter", collapses=391, service_ns=SECOND), make.role(role="input", collapses=1)),
        role_phase=(
            make.role_phase(role="parameter", phase="forward", collapses=1),
            make.role_phase(role="parameter", phase="optimizer", collapses=390),
        ),
    )
    finding = found(make.profile(tables=tables), "read-mostly-collapses")
    assert finding is not None
    assert finding.subject == "parameter"
    assert "Writes in optimizer ended 391 read-mostly duplicates of parameters (195 a step)" in finding.message
    assert "Do not use readmostly for parameters that are trained" in finding.advice
    intermediate = make.tables(role=(make.role(role="intermediate", collapses=2, service_ns=SECOND),))
    finding = found(make.profile(tables=intermediate), "read-mostly-collapses")
    assert finding is not None
    assert 'torch.cuda.set_unified("noadvise")' in finding.advice
    cheap = make.tables(role=(make.role(role="parameter", collapses=391, service_ns=SECOND // 50),))
    assert found(make.profile(tables=cheap), "read-mostly-collapses") is None
    once = make.tables(role=(make.role(role="parameter", collapses=1, service_ns=SECOND),))
    assert found(make.profile(tables=once), "read-mostly-collapses") is None  # less than once a step


def optimizer_state(make: Any, h2d: int, d2h: int, service_ns: int = SECOND, **fields: Any) -> FaultProfile:
    row = make.role(
        role="optimizer_state",
        bytes_h2d=make.by_cause(coherence=h2d),
        bytes_d2h=make.by_cause(eviction=d2h),
        service_ns=service_ns,
    )
    memory = make.memory(requested_peak_bytes=3 * GIB, requested_peak_by_role=make.by_role(optimizer_state=GIB))
    return stalled(make, 0.5, **{"tables": make.tables(role=(row,)), "memory": memory, **fields})


def test_optimizer_state_round_trip(make: Any) -> None:
    finding = found(optimizer_state(make, h2d=GIB, d2h=2 * GIB), "optimizer-state-round-trip")
    assert finding is not None
    assert "(1.00 GiB) comes in and goes out once a step: 512.00 MiB to the device and 1.00 GiB back" in finding.message
    assert "No advice keeps it" in finding.advice
    cheap = optimizer_state(make, h2d=GIB, d2h=2 * GIB, service_ns=SECOND // 50)
    assert found(cheap, "optimizer-state-round-trip") is None
    assert found(optimizer_state(make, h2d=GIB - 2, d2h=2 * GIB), "optimizer-state-round-trip") is None
    assert found(optimizer_state(make, h2d=GIB, d2h=0), "optimizer-state-round-trip") is None
    assert found(optimizer_state(make, h2d=GIB, d2h=GIB, memory=None), "optimizer-state-round-trip") is None


def evicting(make: Any, bytes_: int = 80 * MIB, **fields: Any) -> FaultProfile:
    """Two steps of a second each, a quarter of it in fault services, of which so many bytes went to the host."""
    counted = make.counters(fault_service_ns=SECOND // 2, bytes_d2h=make.by_cause(eviction=bytes_))
    return make.profile(**{"counters": counted, **fields})


def intermediates(make: Any, *copied_and_fetched: tuple[int, int], all_bytes: int = 80 * MIB) -> FaultProfile:
    rows = tuple(
        make.tensor(
            role="intermediate",
            birth_op=f"aten::op{index}",
            bytes_d2h=make.by_cause(eviction=copied),
            bytes_h2d=make.by_cause(coherence=fetched),
        )
        for index, (copied, fetched) in enumerate(copied_and_fetched)
    )
    return evicting(make, all_bytes, tables=make.tables(tensor=rows))


def test_dead_intermediates_copied(make: Any) -> None:
    finding = found(intermediates(make, (60 * MIB, 60 * MIB), (20 * MIB, 0)), "dead-intermediates-copied")
    assert finding is not None
    assert (
        "each step copied 40.00 MiB of intermediates to the host, and 10.00 MiB of that never came" in finding.message
    )
    assert "torch.utils.checkpoint.checkpoint" in finding.advice
    much_more = intermediates(make, (60 * MIB, 60 * MIB), (20 * MIB, 0), all_bytes=GIB)
    assert found(much_more, "dead-intermediates-copied") is None  # most of what left was something else
    # A tensor that was fetched more often than evicted does not make up for one that never came back.
    assert found(intermediates(make, (20 * MIB, 90 * MIB), (20 * MIB, 0)), "dead-intermediates-copied") is not None
    assert (
        found(intermediates(make, (60 * MIB, 50 * MIB)), "dead-intermediates-copied") is None
    )  # nearly all read again
    assert found(intermediates(make, (3 * MIB, 0)), "dead-intermediates-copied") is None  # less than a block a step


def test_inputs_copied_back(make: Any) -> None:
    tables = make.tables(role=(make.role(role="input", bytes_d2h=make.by_cause(eviction=8 * MIB)),))
    finding = found(evicting(make, tables=tables), "inputs-copied-back")
    assert finding is not None
    assert "copied 4.00 MiB of inputs" in finding.message
    assert 'x.to("cuda:readmostly")' in finding.advice
    assert found(make.profile(tables=tables), "inputs-copied-back") is None  # it took no time
    advised = make.placed(input="read_mostly")
    assert found(evicting(make, tables=tables, placed=advised), "inputs-copied-back") is None
    assert found(evicting(make, tables=make.tables(role=(make.role(role="input"),))), "inputs-copied-back") is None


def test_a_budget_makes_the_guards_prefetches_count_as_paging(make: Any) -> None:
    tables = make.tables(role=(make.role(role="input", bytes_d2h=make.by_cause(user=8 * MIB)),))
    assert found(evicting(make, tables=tables), "inputs-copied-back") is None  # the user's own prefetches
    budget = make.environment(budget_bytes=512 * MIB)
    assert found(evicting(make, tables=tables, environment=budget), "inputs-copied-back") is not None


def test_remote_maps(make: Any) -> None:
    finding = found(make.profile(tables=make.tables(role=(make.role(role="input", remote_maps=2),))), "remote-maps")
    assert finding is not None
    assert "2 blocks of inputs were mapped remotely" in finding.message
    assert found(make.profile(tables=make.tables(role=(make.role(remote_maps=1),))), "remote-maps") is None


def phased(make: Any, forward: float, backward: float) -> FaultProfile:
    """A step whose first 32 bins are forward, the others backward, each stalled for a share of its time."""
    service = [int(10_000 * forward)] * 32 + [int(10_000 * backward)] * (BIN_COUNT - 32)
    pattern = make.pattern(
        duration_ns=10_000 * BIN_COUNT,
        fault_groups=(1,) * BIN_COUNT,
        service_ns=tuple(service),
        phases=("forward",) * 32 + ("backward",) * (BIN_COUNT - 32),
    )
    row = make.role_phase(role="intermediate", phase="backward", bytes_h2d=make.by_cause(coherence=6 * MIB))
    return stalled(make, 0.5, pattern=pattern, tables=make.tables(role_phase=(row,)))


def test_backward_stalls_more(make: Any) -> None:
    finding = found(phased(make, 0.45, 0.65), "backward-stalls-more")  # the paper's figure 11
    assert finding is not None
    assert finding.message == (
        "Faults take 65% of backward, which fetches 3.00 MiB of intermediates back, and 45% of forward."
    )
    assert finding.evidence == {"backward_per_mille": 650, "forward_per_mille": 450, "bytes_h2d": 6 * MIB}
    assert found(phased(make, 0.45, 0.54), "backward-stalls-more") is None
    assert found(phased(make, 0.65, 0.45), "backward-stalls-more") is None
    assert found(make.profile(pattern=make.pattern()), "backward-stalls-more") is None


def first_touching(make: Any, first_touches: int, **fields: Any) -> FaultProfile:
    """1,000 faults in the first step, all first touches; 100 in the second, of which so many are."""
    first = make.counters(fault_groups=1000, first_touches=1000)
    second = make.counters(fault_groups=100, first_touches=first_touches + 30, fault_service_ns=SECOND // 10)
    # 30 of them by prefetches
    row = make.role(role="intermediate", fault_groups=1100, first_touches=1000 + first_touches)
    plain = {
        "counters": make.counters(fault_groups=1100, first_touches=1030 + first_touches, fault_service_ns=SECOND // 10),
        "steps": make.steps(first, second),
        "tables": make.tables(role=(row,)),
    }
    return make.profile(**{**plain, **fields})


def test_first_touches_dominate(make: Any) -> None:
    finding = found(first_touching(make, 50), "first-touches-dominate")
    assert finding is not None
    assert finding.message.startswith("At least 50 of 100 fault groups after the first step are first touches")
    assert 'torch.cuda.set_unified("prefetch")' in finding.advice
    advised = make.placed(intermediate="prefetch")
    finding = found(first_touching(make, 50, placed=advised), "first-touches-dominate")
    assert finding is not None
    assert "set_unified" not in finding.advice
    assert found(first_touching(make, 49), "first-touches-dominate") is None
    first = make.counters(fault_groups=1000, first_touches=1000)
    alone = first_touching(make, 0, counters=first, steps=make.steps(first), step_count=1)
    assert found(alone, "first-touches-dominate") is None  # a first step always touches for the first time
    assert found(first_touching(make, 50, tables=None), "first-touches-dominate") is None


def test_unordered_faults(make: Any) -> None:
    counted = make.counters(fault_groups=50, unordered_faults=3)
    tables = make.tables(op=(make.op(op="aten::mm"), make.op(op="aten::add", unordered_faults=3)))
    finding = found(make.profile(counters=counted, tables=tables), "unordered-faults")
    assert finding is not None
    assert finding.subject == "aten::add"
    assert "something touched device memory that no op had announced" in finding.message
    oversized = (OversizedOp(op="aten::mm", module=None, phase=None, bytes=GIB, count=1),)
    finding = found(make.profile(counters=counted, oversized_ops=oversized), "unordered-faults")
    assert finding is not None
    assert "working set does not fit" in finding.message
    few = make.counters(fault_groups=1000, unordered_faults=3)
    assert found(make.profile(counters=few), "unordered-faults") is None
    raw = make.environment(counting="raw")
    assert found(make.profile(counters=counted, environment=raw), "unordered-faults") is None
    assert found(make.profile(), "unordered-faults") is None


def exporting(make: Any, bytes_: int, **fields: Any) -> FaultProfile:
    """Half of each step waits; with nothing exported a step would take so long."""
    exported = (Exported(role="input", name=None, birth_op="aten::ones", bytes=bytes_),)
    predictions = (
        RungPrediction(rung="advise", step_ns=SECOND),
        RungPrediction(rung="advise", step_ns=SECOND // 2, change="unpinned"),
    )
    return stalled(make, 0.5, **{"exported": exported, "predictions": predictions, **fields})


def test_exported_memory(make: Any) -> None:
    finding = found(exporting(make, 64 * MIB), "exported-memory")
    assert finding is not None
    assert "64.00 MiB cannot leave the device" in finding.message
    assert "most of it is made by aten::ones (64.00 MiB)" in finding.message
    assert "tensor.cpu().numpy(): 325.00 ms to 625.00 ms a step by simulation, instead of 1.00 s." in finding.advice
    assert finding.evidence == {
        "held_bytes": 64 * MIB,
        "explained_ns": SECOND // 2,
        "promised_least_ns": 325_000_000,
        "promised_most_ns": 625_000_000,
    }
    assert found(exporting(make, 20 * MIB), "exported-memory") is None  # less than 2 % of a GiB
    little = RungPrediction(rung="advise", step_ns=SECOND * 97 // 100, change="unpinned")
    no_matter = (RungPrediction(rung="advise", step_ns=SECOND), little)
    assert found(exporting(make, 64 * MIB, predictions=no_matter), "exported-memory") is None
    assert found(exporting(make, 64 * MIB, counters=make.counters()), "exported-memory") is None  # nobody waits


def test_a_cause_that_explains_most_comes_before_what_only_says_that_there_are_waits(make: Any) -> None:
    tables = parameters(make)  # all that anything waited for was for parameters
    by_cause = exporting(make, 64 * MIB, tables=tables)
    assert [each.id for each in examine(by_cause)][:3] == [
        "exported-memory",
        "parameters-fault-every-step",
        "fault-stall",
    ]
    others = make.role(role="gradient", service_ns=SECOND)
    little = make.tables(role=(*tables.role.rows, others))
    ids = [each.id for each in examine(stalled(make, 0.5, tables=little))]
    assert ids[:2] == ["fault-stall", "parameters-fault-every-step"]


def test_only_steady_steps_are_judged(make: Any) -> None:
    slow = make.counters(fault_service_ns=SECOND // 2)
    begins = stalled(make, 0.5, steps=make.steps(slow, slow, make.counters(), make.counters()), step_count=4)
    assert found(begins, "fault-stall") is None
    goes_on = stalled(make, 0.5, steps=make.steps(make.counters(), make.counters(), slow, slow), step_count=4)
    assert found(goes_on, "fault-stall") is not None


def test_warnings_come_first(make: Any) -> None:
    tables = make.tables(role=(make.role(role="input", remote_maps=2, collapses=2, service_ns=SECOND),))
    severities = [finding.severity for finding in examine(make.profile(tables=tables))]
    assert severities == ["warning", "info"]


def inference(make: Any, **fields: Any) -> FaultProfile:
    """Weights of 3 GiB on a device of 1 GiB: nothing else is there to speak of."""
    by_role = make.by_role(parameter=3 * GIB, intermediate=8 * MIB)
    memory = make.memory(requested_peak_bytes=3 * GIB, requested_peak_by_role=by_role)
    return stalled(make, 0.5, memory=memory, **fields)


def test_a_smaller_batch_is_not_advised_where_parameters_are_what_does_not_fit(make: Any) -> None:
    finding = found(inference(make), "fault-stall")
    assert finding is not None
    assert "Parameters alone take 3.00 GiB, whatever the batch." in finding.advice
    assert "checkpoint" not in finding.advice
    activations = make.by_role(parameter=GIB // 2, intermediate=5 * GIB // 2)
    memory = make.memory(requested_peak_bytes=3 * GIB, requested_peak_by_role=activations)
    finding = found(stalled(make, 0.5, memory=memory), "fault-stall")
    assert finding is not None
    assert ": a smaller batch makes it less." in finding.advice  # no gradients: nothing to make again in backward
    trained = make.by_role(parameter=GIB // 4, gradient=GIB // 4, intermediate=5 * GIB // 2)
    memory = make.memory(requested_peak_bytes=3 * GIB, requested_peak_by_role=trained)
    finding = found(stalled(make, 0.5, memory=memory), "fault-stall")
    assert finding is not None
    assert "a smaller batch or torch.utils.checkpoint.checkpoint makes it less." in finding.advice


def test_advice_is_spelled_as_the_run_was_made(make: Any) -> None:
    faster = (RungPrediction(rung="advise", step_ns=SECOND), RungPrediction(rung="window", step_ns=SECOND // 2))
    session = make.environment(script=None, capacity_bytes=8 * GIB, budget_bytes=GIB)
    finding = found(stalled(make, 0.5, environment=session, predictions=faster), "fault-stall")
    assert finding is not None
    assert 'umadvise.session(..., budget="3414MiB")' in finding.advice
    assert 'umadvise.session(..., policy="window")' in finding.advice
    assert "umadvise run" not in finding.advice


def swapped(make: Any, waited_ns: int, **fields: Any) -> FaultProfile:
    """Two steps of a second each, in which ops waited so long together."""
    row = make.role(role="gradient", wait_copy_ns=waited_ns, on_demand_wait_ns=waited_ns // 2)
    swaps = make.swaps(wait_copy_ns=waited_ns)
    return make.profile(**{"swaps": swaps, "tables": make.tables(role=(row,)), **fields})


def test_swap_stall(make: Any) -> None:
    finding = found(swapped(make, SECOND), "swap-stall")
    assert finding is not None
    assert finding.message == (
        "Ops stand still for swaps for 50% of a steady step, 500.00 ms of 1.00 s. "
        "In the whole run most of these waits were for gradients, "
        "and 50% for copies that no plan had asked for in time."
    )
    assert found(swapped(make, SECOND // 11), "swap-stall") is None
    assert found(make.profile(), "swap-stall") is None


def uneven(make: Any, kind: str) -> FaultProfile:
    """Four steps: the first waits for parameters alone, and the steady ones, of 8, 10 and 12 s, wait otherwise."""
    first = make.counters(fault_groups=90, fault_service_ns=9 * SECOND if kind == "faults" else 0)
    steady = make.counters(fault_groups=3, fault_service_ns=SECOND if kind == "faults" else 0)
    steps = tuple(
        msgspec.structs.replace(
            step, duration_ns=seconds * SECOND, swaps=make.swaps(wait_room_ns=waited) if kind == "swaps" else None
        )
        for step, seconds, waited in zip(
            make.steps(first, first, first, steady, steady, steady),
            (20, 20, 20, 8, 10, 12),
            (9 * SECOND,) * 3 + (SECOND,) * 3,
            strict=True,
        )
    )
    row = {"service_ns": 27 * SECOND} if kind == "faults" else {"wait_copy_ns": 27 * SECOND}
    demanded = {} if kind == "faults" else {"on_demand_wait_ns": 27 * SECOND}
    whole = make.counters(fault_groups=279, fault_service_ns=30 * SECOND if kind == "faults" else 0)
    memory = make.memory(requested_peak_bytes=3 * GIB, requested_peak_by_role=make.by_role(parameter=3 * GIB))
    return make.profile(
        steps=steps,
        step_count=6,
        duration_ns=90 * SECOND,
        counters=whole,
        swaps=make.swaps(wait_copy_ns=27 * SECOND, wait_room_ns=3 * SECOND) if kind == "swaps" else None,
        memory=memory,
        tables=make.tables(role=(make.role(role="parameter", **row, **demanded),)),
        predictions=(
            RungPrediction(rung="advise", step_ns=10 * SECOND),
            RungPrediction(rung="window", step_ns=7 * SECOND),
        ),
    )


@pytest.mark.parametrize(
    ("kind", "finding_id", "share", "waited"),
    [("faults", "fault-stall", "10%", "1.00 s"), ("swaps", "swap-stall", "10%", "1.00 s")],
)
def test_a_sentence_is_of_steady_steps_or_of_the_whole_run(
    kind: str, finding_id: str, share: str, waited: str, make: Any
) -> None:
    finding = found(uneven(make, kind), finding_id)
    assert finding is not None
    steady, whole = finding.message.split(". In the whole run ")
    assert share in steady
    assert waited in steady
    assert "10.00 s" in steady
    assert "parameters" not in steady  # which only the first steps waited for
    assert "parameters" in whole
    assert "instead of 10.00 s" in finding.advice  # the same step as in the message


def test_where_all_fits_a_share_is_of_steady_steps(make: Any) -> None:
    profile = uneven(make, "faults")
    memory = make.memory(requested_peak_bytes=GIB // 2)
    finding = found(msgspec.structs.replace(profile, memory=memory, predictions=()), "fits-without-unified")
    assert finding is not None
    assert "Yet faults take 10% of a steady step. The whole run had 279 fault groups." in finding.message


def test_an_advice_names_a_change_first_where_parameters_do_not_fit(make: Any) -> None:
    for by_role, less in (
        ({"parameter": 3 * GIB}, "fewer of them"),
        ({"parameter": GIB, "optimizer_state": 2 * GIB}, "an optimizer with less state (Adafactor, SGD)"),
        ({"parameter": GIB, "gradient": 2 * GIB}, "fewer of them"),
    ):
        memory = make.memory(requested_peak_bytes=3 * GIB, requested_peak_by_role=make.by_role(**by_role))
        finding = found(stalled(make, 0.5, memory=memory), "fault-stall")
        assert finding is not None
        first = re.split(r"(?<=[^.]\.) ", finding.advice)[0]
        assert f"keep parameters in bfloat16, take {less}, or a device of at least 3.33 GiB" in first


def test_steps_without_plans(make: Any) -> None:
    def planned(driven: int, undriven: int) -> FaultProfile:
        reasons = (Undriven(first=1, last=undriven, reason="left its plan at op 1: expected a, found b"),)
        swaps = make.swaps(wait_copy_ns=SECOND)  # half of the time
        return make.profile(planned=PlannedSteps(driven=driven, undriven=reasons), swaps=swaps)

    finding = found(planned(2, 12), "steps-without-plans")
    assert finding is not None
    assert finding.message.startswith("Plans drove 2 of 14 steps")
    assert "left its plan at op 1: expected a, found b" in finding.message
    assert found(planned(3, 2), "steps-without-plans") is None
    assert found(planned(0, 3), "steps-without-plans") is None  # a run so short never gets further
    assert found(make.profile(), "steps-without-plans") is None


def test_a_budget_is_named_once(make: Any) -> None:
    """Each finding names a change; what makes room for all is the same for each of them."""
    row = make.role(
        role="parameter", service_ns=SECOND, fault_groups=100, faulted_steps=2, bytes_h2d=make.by_cause(coherence=GIB)
    )
    environment = make.environment(capacity_bytes=8 * GIB, budget_bytes=GIB)
    findings = examine(stalled(make, 0.5, environment=environment, tables=make.tables(role=(row,))))
    first, second = (each for each in findings if each.id in ("parameters-fault-every-step", "fault-stall"))
    assert "umadvise run --budget 3414MiB" in first.advice
    assert second.advice == f"What is said of {first.id} helps here too."
