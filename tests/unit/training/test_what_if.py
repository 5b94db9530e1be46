"""Steps as they would be after a change of the program: what is there when, worked out by hand, and random ones."""

import numpy as np
from hypothesis import given, settings
from traces import traces

from umadvise._native.abi import Allocation, Memory
from umadvise.recording.builder import TraceBuilder
from umadvise.recording.recorded_step import RecordedStep
from umadvise.records.enums import Phase, Role
from umadvise.records.trace import Access, EventKind, Trace
from umadvise.records.trace_check import check
from umadvise.records.units import BLOCK_BYTES
from umadvise.training.plans.what_if import (
    freed_sooner,
    held_for_nothing,
    maker_of,
    scattered_bytes,
    stateless,
    without,
)

MIB = 1 << 20


def recorded(trace: Trace) -> RecordedStep:
    return RecordedStep(trace, np.arange(1, 1 + len(trace.storages), dtype=np.uint64), "host")


def live_after_each_op(trace: Trace) -> list[int]:
    """MiB that are live when each op and what follows it have ended, counted storage by storage."""
    births, deaths = trace.births, trace.deaths
    return [
        int(sum(trace.storages.bytes[i] for i in range(len(births)) if births[i] <= op < deaths[i])) // MIB
        for op in range(len(trace.ops))
    ]


def test_what_is_kept_on_a_list_is_freed_after_its_last_use() -> None:
    builder, kept = TraceBuilder(), []
    for index in range(8):
        builder.begin_op("aten::addmm", module=f"layer.{index}", duration_ns=1000)
        for before in kept[-1:]:
            builder.access(before, Access.READ)
        kept.append(builder.allocate(MIB, Role.INTERMEDIATE))
        builder.access(kept[-1], Access.WRITE | Access.WHOLE)
        builder.end_op()
    for each in kept:
        builder.free(each)
    step = recorded(builder.finish(target="cpu", source="synthetic"))
    assert live_after_each_op(step.trace) == [1, 2, 3, 4, 5, 6, 7, 0]
    assert maker_of(step, held_for_nothing(step)) == "aten::addmm in layer.0"
    # The last layers' are freed a few ops after their last use: that is torch's own doing.
    assert live_after_each_op(freed_sooner(step).trace) == [1, 1, 1, 1, 2, 3, 4, 0]


def test_a_fault_between_ops_is_a_use() -> None:
    builder = TraceBuilder()
    saved = builder.allocate(MIB, Role.INTERMEDIATE)
    for index in range(8):
        builder.begin_op("aten::relu", duration_ns=1000)
        if index == 0:
            builder.access(saved, Access.WRITE)
        builder.end_op()
        if index == 5:
            builder.event(EventKind.SERVICE_READ, saved, bytes_=MIB)
    builder.free(saved)
    step = recorded(builder.finish(target="cpu", source="synthetic"))
    assert held_for_nothing(step).tolist() == []
    check(freed_sooner(step).trace)


def test_an_optimizer_without_state_changes_each_parameter_by_its_gradient_in_one_op() -> None:
    builder = TraceBuilder()
    weight = builder.allocate(4 * MIB, Role.PARAMETER)
    gradient = builder.allocate(4 * MIB, Role.GRADIENT)
    moment = builder.allocate(4 * MIB, Role.OPTIMIZER_STATE)
    builder.begin_op("aten::mm", phase=Phase.FORWARD, duration_ns=1000)
    builder.access(weight, Access.READ)
    builder.end_op()
    builder.begin_op("aten::lerp_", phase=Phase.OPTIMIZER, duration_ns=1000)
    builder.access(moment, Access.READ | Access.WRITE | Access.IN_PLACE)
    builder.access(gradient, Access.READ)
    builder.end_op()
    builder.begin_op("aten::sqrt", phase=Phase.OPTIMIZER, duration_ns=1000)
    builder.access(moment, Access.READ)
    scratch = builder.allocate(4 * MIB, Role.INTERMEDIATE)
    builder.access(scratch, Access.WRITE)
    builder.end_op()
    builder.begin_op("aten::addcdiv_", phase=Phase.OPTIMIZER, duration_ns=900)
    builder.access(weight, Access.READ | Access.WRITE | Access.IN_PLACE)
    builder.access(scratch, Access.READ)
    builder.end_op()
    builder.free(scratch)
    changed = stateless(recorded(builder.finish(target="cpu", source="synthetic")))
    ops = [(changed.trace.op(index).name, changed.trace.op(index).duration_ns) for index in range(2)]
    assert ops == [("aten::mm", 1000), ("aten::addcdiv_", 900)]  # it reads the gradient, not what it divided by
    assert len(changed.trace.ops) == 2
    touched = changed.trace.accesses
    assert touched.op.tolist() == [0, 1, 1]
    assert touched.storage.tolist() == [0, 0, 1]
    assert touched.flags.tolist()[2] == Access.READ
    assert changed.trace.storages.bytes.tolist() == [4 * MIB, 4 * MIB]
    assert changed.serials.tolist() == [weight + 1, gradient + 1]


@settings(max_examples=60)
@given(traces())
def test_any_step_stays_possible(trace: Trace) -> None:
    step = recorded(trace)
    for changed in (freed_sooner(step), stateless(step), without(step, frozenset({1, 3}))):
        check(changed.trace)
        assert len(changed.serials) == len(changed.trace.storages)
        assert changed.trace.peak_bytes <= trace.peak_bytes


def test_state_takes_the_blocks_that_it_lies_in() -> None:
    """Four small moments lie in four blocks of 2 MiB, one of them across an edge, and fit into one."""

    def lies(at: float, bytes_: int, role: Role = Role.OPTIMIZER_STATE, memory: Memory = Memory.MANAGED) -> Allocation:
        names = {"name": "", "birth_op": "", "birth_module": ""}
        numbers = dict.fromkeys(("serial", "advice", "birth_step", "birth_op_index", "exports", "device"), 0)
        address = int((1000 + at) * BLOCK_BYTES)
        return Allocation(
            address=address,
            bytes=bytes_,
            reserved_bytes=bytes_,
            memory=memory,
            role=role,
            seen=True,
            owned=True,
            **names,
            **numbers,
        )

    moments = [lies(0, 4096), lies(0.5, 4096), lies(3, 4096), lies(5 - 1024 / BLOCK_BYTES, 4096)]
    assert scattered_bytes(moments) == 3 * BLOCK_BYTES
    assert scattered_bytes(moments[:2]) == 0
    assert scattered_bytes([]) == 0
    others = [lies(8, 4096, Role.PARAMETER), lies(9, 4096, memory=Memory.CHUNKED)]
    assert scattered_bytes([*moments, *others]) == 3 * BLOCK_BYTES
