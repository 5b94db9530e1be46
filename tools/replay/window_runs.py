"""ResNet-50 and others under the window planner, on a device with its allocator: what fits, and how long a step takes.

Neural Network Libraries' host thread takes and gives back memory in the order of the plan: a swap-in's when it is
submitted, a swap-out's when it is waited for. So the largest budget whose plan fits is looked for with that order (the
paper's figure 3), not with that of the copies' ends.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from replay.changed import with_durations
from umadvise import planners
from umadvise.errors import BudgetError, NoRoomError
from umadvise.recording.builder import TraceBuilder
from umadvise.records.device import DeviceProfile
from umadvise.records.enums import Role
from umadvise.records.plan import ActionKind, Plan
from umadvise.records.trace import EventKind, Trace
from umadvise.simulator.swap import AllocatorModel, simulate_swap

GIB = 1 << 30
BUDGET_STEP_BYTES = GIB // 2
"""Budgets that are tried are multiples of this. The paper does not say which it tried; how well best fit packs depends
on it by chance (docs/fidelity.md says how much).
"""
CHUNK_BYTES = 40 << 20
"""Physical chunks: section 4 of the paper."""


@dataclass(frozen=True)
class Costs:
    """Of the scheduler and of mapping: how long the compute queue stands still.

    Attributes:
        op_sync_ns: the wait before each op.
        map_ns_per_chunk: the time of each chunk of `CHUNK_BYTES` that an op makes or that is swapped in before it. A
            variable that is cleared gives its addresses back (section 4), so each one is mapped anew.
    """

    op_sync_ns: float = 0.0
    map_ns_per_chunk: float = 0.0


def largest_plan(
    trace: Trace,
    device: DeviceProfile,
    allocator: AllocatorModel,
    *,
    refined: bool = True,
    step_bytes: int = BUDGET_STEP_BYTES,
) -> Plan | None:
    """The plan of the largest budget that runs in the device's memory; None where there is none."""
    for steps in range(device.memory_bytes // step_bytes, 0, -1):
        try:
            plan = planners.run("window", trace, device, steps * step_bytes, refined=refined)
        except BudgetError:
            return None  # less does not help
        if _fits(memory_order(trace, plan), device, allocator):
            return plan
    return None


def _fits(order: Trace, device: DeviceProfile, allocator: AllocatorModel) -> bool:
    try:
        simulate_swap(
            order,
            device,
            None,
            budget_bytes=device.memory_bytes,
            allocator=allocator,
            chunk_bytes=CHUNK_BYTES,
            iterations=1,
            spans=False,
        )
    except NoRoomError:
        return False
    return True


def step_s(trace: Trace, device: DeviceProfile, plan: Plan, costs: Costs) -> float:
    """A step under the plan."""
    standing = costs.map_ns_per_chunk * _mapped_chunks(trace, plan)
    slower = with_durations(trace, trace.ops.duration_ns + standing)
    simulated = simulate_swap(
        slower, device, plan, budget_bytes=device.memory_bytes, op_sync_ns=round(costs.op_sync_ns), spans=False
    )
    return simulated.step_ns / 1e9


def _mapped_chunks(trace: Trace, plan: Plan) -> NDArray[np.int64]:
    """For each op; storages of up to half a chunk share chunks, which stay mapped."""
    sizes = trace.storages.bytes
    chunks = np.where(sizes > CHUNK_BYTES // 2, -(-sizes // CHUNK_BYTES), 0)
    result = np.zeros(len(trace.ops), np.int64)
    arrivals = plan.actions.kind == ActionKind.SWAP_IN
    np.add.at(result, plan.actions.op[arrivals], chunks[plan.actions.storage[arrivals]])
    made = trace.births >= 0
    np.add.at(result, trace.births[made], chunks[made])
    return result


def memory_order(trace: Trace, plan: Plan) -> Trace:
    """A trace in which storages come and go when the plan's host thread takes and gives back their memory."""
    builder = TraceBuilder()
    held: dict[int, int] = {}
    sizes = trace.storages.bytes.tolist()
    for storage, comes in _comings_and_goings(trace, plan):
        if comes == (storage in held):
            continue
        builder.begin_op("aten::empty", duration_ns=0, creates=True)
        if comes:
            held[storage] = builder.allocate(sizes[storage], Role.INTERMEDIATE)
        builder.end_op()
        if not comes:
            builder.free(held.pop(storage))
    return builder.finish(target="cuda", source="synthetic")


def _comings_and_goings(trace: Trace, plan: Plan) -> Iterator[tuple[int, bool]]:
    """Storages, and whether they come; that they are there, or not, already is not looked at."""
    actions, events, first = plan.actions, trace.events, trace.first_access
    moves = {ActionKind.SWAP_IN: True, ActionKind.WAIT: False, ActionKind.DROP: False}
    planned: dict[tuple[int, int], list[tuple[int, bool]]] = {}
    begins_on_host: dict[int, bool] = {}
    for kind, op, after, storage in zip(
        actions.kind.tolist(), actions.op.tolist(), actions.after.tolist(), actions.storage.tolist(), strict=True
    ):
        begins_on_host.setdefault(storage, kind == ActionKind.SWAP_IN)
        if kind in moves:
            planned.setdefault((op, after), []).append((storage, moves[ActionKind(kind)]))
    lives: dict[int, list[tuple[int, bool]]] = {}
    for kind, op, storage in zip(events.kind.tolist(), events.op.tolist(), events.storage.tolist(), strict=True):
        if kind == EventKind.FREE or (kind == EventKind.ALLOCATE and not (op < 0 and begins_on_host.get(storage))):
            lives.setdefault(op, []).append((storage, kind == EventKind.ALLOCATE))
    yield from lives.get(-1, ())
    for op in range(len(trace.ops)):
        yield from planned.get((op, 0), ())
        for storage in trace.accesses.storage[first[op] : first[op + 1]].tolist():
            if trace.births[storage] < op:
                yield storage, True  # what the op writes whole comes without a copy
        yield from lives.get(op, ())
        yield from planned.get((op, 1), ())
