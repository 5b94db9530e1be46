"""What storages take of chunks: plans made with it keep the budget, counted in chunks of the real step."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_traces import random_ops, random_step
from traces import layers, traces

from umadvise import planners
from umadvise.devices.catalogue import load_device
from umadvise.errors import BudgetError
from umadvise.planners.capacity import Capacity, resized
from umadvise.recording.builder import TraceBuilder
from umadvise.recording.recorded_step import RecordedStep
from umadvise.records.enums import Role
from umadvise.records.plan import Action, ActionKind, Plan
from umadvise.records.trace import Access, EventKind, Trace
from umadvise.records.trace_check import check
from umadvise.training.plans.plan_memory import PlanMemory, chunk_bytes_of, chunk_capacity, storages_in_chunks

MIB = 1 << 20
SWAPPERS = ("belady", "best", "lru", "vdnn-all", "window")


def taken(size: int, chunk_bytes: int) -> int:
    """Bytes of chunks that a storage takes that may leave: whole ones, or 64 KiB again and again."""
    if size * 2 > chunk_bytes:
        return -(-size // chunk_bytes) * chunk_bytes
    return -(-size // 65536) * 65536 if size >= 65536 else 0


def taken_by(capacity: Capacity) -> list[int]:
    assert capacity.taken_bytes is not None
    return capacity.taken_bytes.tolist()


def touched(trace: Trace, storage: int) -> bool:
    """Whether an op or the host reads or writes it."""
    by_host = (trace.events.storage == storage) & np.isin(
        trace.events.kind, (EventKind.HOST_WRITE, EventKind.HOST_READ)
    )
    return bool((trace.accesses.storage == storage).any() or by_host.any())


@given(traces(), st.sampled_from([512, 1 << 20, 2 << 20]))
def test_sizes_are_whole_chunks_parts_or_nothing(trace: Trace, chunk_bytes: int) -> None:
    capacity = chunk_capacity(trace, budget_bytes=1 << 30, chunk_bytes=chunk_bytes)
    charged = capacity.charged(trace)
    check(charged)
    expected = [taken(size, chunk_bytes) for size in trace.storages.bytes.tolist()]
    assert taken_by(capacity) == expected
    for storage in range(len(expected)):
        if trace.births[storage] < 0 and not touched(trace, storage):
            expected[storage] = 0
    assert charged.storages.bytes.tolist() == expected
    assert np.array_equal(charged.accesses.flags, trace.accesses.flags)
    for row in range(len(trace.accesses)):
        storage = int(trace.accesses.storage[row])
        whole = int(trace.accesses.bytes[row]) == int(trace.storages.bytes[storage])
        if whole and expected[storage]:
            assert int(charged.accesses.bytes[row]) == expected[storage]


def test_the_budget_is_what_may_leave() -> None:
    trace = layers(3, bytes_=3 * MIB)
    capacity = chunk_capacity(trace, budget_bytes=21 * MIB + 5, chunk_bytes=2 * MIB, staying_bytes=2 * MIB + 1)
    assert capacity.budget_bytes == 16 * MIB
    assert set(taken_by(capacity)) == {4 * MIB}
    with pytest.raises(BudgetError, match="never leaves"):
        chunk_capacity(trace, budget_bytes=4 * MIB, chunk_bytes=2 * MIB, staying_bytes=3 * MIB)


def batch_after_batch() -> Trace:
    """A batch that is freed in the step, and one that is made after its last op by an op of no step."""
    builder = TraceBuilder()
    before = builder.allocate(4 * MIB, Role.INPUT)
    builder.begin_op("aten::relu_", duration_ns=1000)
    builder.access(before, Access.READ | Access.WRITE)
    builder.end_op()
    builder.free(before)
    batch = builder.allocate(4 * MIB, Role.INPUT)
    builder.set_successor(before, batch)
    return builder.finish(target="cuda", source="synthetic")


@pytest.mark.parametrize(("elsewhere", "in_chunks"), [(1, True), (2, False)])
def test_what_is_replaced_is_next_time_where_its_successor_is(elsewhere: int, in_chunks: bool) -> None:
    trace = batch_after_batch()
    step = RecordedStep(trace, np.array([1, 2], np.uint64), "host")
    found = storages_in_chunks(step, PlanMemory(1 << 30, 2 * MIB, 0, frozenset([elsewhere])))
    assert found.tolist() == [in_chunks, in_chunks]
    check(resized(trace, np.where(found, trace.storages.bytes, 0)))


def test_what_is_made_between_steps_has_contents() -> None:
    """Else planners drop what they think is nothing."""
    trace = batch_after_batch()
    charged = chunk_capacity(trace, budget_bytes=1 << 30, chunk_bytes=2 * MIB).charged(trace)
    check(charged)
    assert charged.events.kind.tolist() == [*trace.events.kind.tolist(), EventKind.HOST_WRITE]
    assert charged.events.storage[-1] == 1
    assert charged.events.bytes[-1] == 4 * MIB


def test_what_lies_elsewhere_takes_nothing() -> None:
    trace = layers(3, bytes_=3 * MIB)
    movable = np.array([True, False, True])
    capacity = chunk_capacity(trace, budget_bytes=8 * MIB, chunk_bytes=2 * MIB, movable=movable)
    assert taken_by(capacity) == [4 * MIB, 0, 4 * MIB]


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from(SWAPPERS), st.floats(0.3, 1.0), st.booleans())
def test_a_plan_of_a_capacity_keeps_the_budget(seed: int, name: str, share: float, training: bool) -> None:
    """Counted without the simulator: live chunks op by op, without what the plan has sent away."""
    random = Random(seed)
    trace = (random_step if training else random_ops)(random)
    chunk_bytes = 2 * MIB
    needed = chunk_capacity(trace, budget_bytes=1 << 40, chunk_bytes=chunk_bytes).charged(trace).peak_bytes
    capacity = chunk_capacity(trace, budget_bytes=max(int(needed * share), chunk_bytes), chunk_bytes=chunk_bytes)
    options = {"recompute": False, "paging": False} if name == "best" else {}
    try:
        plan = planners.run(name, trace, load_device("v100-16gb"), capacity, **options)
    except BudgetError:
        return
    assert max(bytes_by_op(trace, plan, chunk_bytes)) <= capacity.budget_bytes


def bytes_by_op(trace: Trace, plan: Plan, chunk_bytes: int) -> list[int]:
    """Bytes of chunks that each op of the second repetition finds taken, as few as the plan allows at that moment.

    What the plan has sent away counts no more; what it has asked for counts when the first op uses it, since it comes
    as soon as there is room. So the count is a lower bound of what any executor of this plan has on the device, and
    what it must have for the op.
    """
    sizes = [taken(size, chunk_bytes) for size in trace.storages.bytes.tolist()]
    away: set[int] = set()
    idle = {storage for storage in range(len(sizes)) if trace.births[storage] < 0 and not touched(trace, storage)}
    live: set[int] = set()
    actions: dict[tuple[int, bool], list[tuple[ActionKind, int]]] = {}
    for action in plan:
        actions.setdefault((action.op, action.after), []).append((action.kind, action.storage))
    events: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for row in range(len(trace.events)):
        at = int(trace.events.op[row]), int(trace.events.inside[row])
        events.setdefault(at, []).append((int(trace.events.kind[row]), int(trace.events.storage[row])))
    counted = []
    for repetition in range(2):
        if repetition:
            heirs = trace.storages.successor
            away = {index for index in away if trace.deaths[index] == len(trace.ops)}
            away |= {index for index, heir in enumerate(heirs.tolist()) if heir >= 0 and heir in away}
        away |= idle  # the first to leave when room is needed
        live = set()
        for kind, storage in events.get((-1, 0), []):
            (live.add if kind == EventKind.ALLOCATE else live.discard)(storage)  # type: ignore[misc]
        for op in range(len(trace.ops)):
            apply(actions.get((op, False), []), away)
            used = set(trace.accesses.storage[trace.first_access[op] : trace.first_access[op + 1]].tolist())
            away -= used
            most = [live - away]
            for inside in (1, 0):
                for kind, storage in events.get((op, inside), []):
                    if kind == EventKind.FREE:
                        live.discard(storage)
                    elif kind == EventKind.ALLOCATE:
                        live.add(storage)
                        away.discard(storage)
                    most += [live - away] if inside else []
            if repetition:
                counted.append(max(sum(sizes[storage] for storage in each) for each in most))
            apply(actions.get((op, True), []), away)
    return counted or [0]


def apply(actions: list[tuple[ActionKind, int]], away: set[int]) -> None:
    for kind, storage in actions:
        if kind in (ActionKind.SWAP_OUT, ActionKind.DROP):
            away.add(storage)
        # A swap-in takes room when there is some: at the latest when the storage is used.


def test_a_plan_for_exact_bytes_would_not() -> None:
    """Maps of 1.5 chunks: what fits by its bytes does not in chunks."""
    trace = layers(8, bytes_=3 * MIB)
    device = load_device("v100-16gb")
    exact = planners.run("belady", trace, device, 12 * MIB)
    assert max(bytes_by_op(trace, exact, 2 * MIB)) > 12 * MIB
    capacity = chunk_capacity(trace, budget_bytes=12 * MIB, chunk_bytes=2 * MIB)
    assert max(bytes_by_op(trace, planners.run("belady", trace, device, capacity), 2 * MIB)) <= 12 * MIB


def test_a_plan_of_a_capacity_is_one_of_the_step() -> None:
    trace = layers(6, bytes_=3 * MIB)
    capacity = chunk_capacity(trace, budget_bytes=12 * MIB, chunk_bytes=2 * MIB)
    device = load_device("v100-16gb")
    plan = planners.run("belady", trace, device, capacity)
    assert len(plan) > 0
    assert plan.trace_digest == trace.structure_digest
    charged = planners.run("belady", capacity.charged(trace), device, 12 * MIB)
    assert plan.options == charged.options
    assert [(each.kind, each.op, each.storage, each.after) for each in plan] == [
        (each.kind, each.op, each.storage, each.after) for each in charged
    ]
    assert {each.bytes for each in plan} == {3 * MIB}
    with pytest.raises(ValueError, match="no such op"):
        plan.fitted(layers(1, bytes_=3 * MIB))


def test_a_budget_may_be_a_number_of_numpy() -> None:
    trace, device = random_step(Random(1)), load_device("v100-pcie-16gb")
    budget_bytes = trace.working_set_bytes().max()
    plans = [planners.run("belady", trace, device, each) for each in (budget_bytes, int(budget_bytes))]
    assert isinstance(budget_bytes, np.int64)
    assert plans[0].actions.storage.tolist() == plans[1].actions.storage.tolist() != []


def test_a_plan_of_the_step_is_one_to_begin_with() -> None:
    trace, device = layers(6, bytes_=3 * MIB), load_device("v100-16gb")
    capacity = chunk_capacity(trace, budget_bytes=12 * MIB, chunk_bytes=2 * MIB)
    given = planners.run("belady", trace, device, capacity)
    seen: list[Plan] = []

    def improves(charged: Trace, _: object, budget_bytes: int, *, plans: list[Plan]) -> Plan:
        seen.extend(plans)
        return Plan.from_actions(charged, plans[0], "test", budget_bytes)

    assert list(capacity.planned(improves, trace, device, plans=[given])) == list(given)
    assert {each.bytes for each in seen[0]} == {4 * MIB}


def test_actions_on_what_is_gone_by_then_go() -> None:
    late, early = layers(6, bytes_=3 * MIB, held=True), layers(6, bytes_=3 * MIB)
    rows = [Action(ActionKind.SWAP_OUT, 1, 0, after=True), Action(ActionKind.SWAP_IN, 11, 0)]
    gone = [Action(ActionKind.SWAP_OUT, 7, 5, after=True), Action(ActionKind.SWAP_OUT, 9, 3, after=True)]
    rows = sorted(rows + gone, key=lambda each: (each.op, each.after))
    plan = Plan.from_actions(late, rows, planner="best", budget_bytes=12 * MIB)
    assert [(each.op, each.storage) for each in plan.fitted(early)] == [(1, 0), (11, 0)]
    assert list(plan.fitted(late)) == list(plan)


def test_actions_on_what_takes_no_bytes_go() -> None:
    trace = layers(6, bytes_=3 * MIB)
    plan = planners.run("belady", trace, load_device("v100-16gb"), 12 * MIB)
    assert len(plan) > 0
    assert len(plan.fitted(resized(trace, np.zeros(6, np.int64)))) == 0


def test_a_write_of_all_bytes_is_one_in_chunks_too() -> None:
    trace = layers(1, bytes_=3 * MIB)
    charged = chunk_capacity(trace, budget_bytes=8 * MIB, chunk_bytes=2 * MIB).charged(trace)
    assert int(charged.accesses.bytes[0]) == 4 * MIB
    assert int(charged.accesses.flags[0]) == Access.WRITE | Access.WHOLE


@pytest.mark.parametrize(("budget_mib", "chunk_mib"), [(6, 2), (4096, 2), (4097, 4), (8193, 8), (1 << 20, 8)])
def test_chunks_are_larger_where_there_would_be_many(budget_mib: int, chunk_mib: int) -> None:
    assert chunk_bytes_of(budget_mib * MIB) == chunk_mib * MIB
