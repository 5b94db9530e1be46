"""What `best` is made of: gaps against a plain walk and the simulator, schedules of swaps, recomputations as ops."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from random import Random

import numpy as np
from contents import reads
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from random_traces import random_ops, random_step

from umadvise import planners
from umadvise.devices.catalogue import load_device
from umadvise.errors import BudgetError
from umadvise.planners.gaps import SwapGaps, gaps
from umadvise.planners.recompute_choice import candidates, recompute_actions
from umadvise.planners.step_lists import StepLists
from umadvise.planners.swap_schedule import Times, enough, schedule, slack_ns
from umadvise.planners.unrolled import unroll
from umadvise.recording.builder import TraceBuilder
from umadvise.records.enums import Role
from umadvise.records.plan import Action
from umadvise.records.trace import Access, EventKind, Trace
from umadvise.records.trace_check import check
from umadvise.simulator import Track
from umadvise.simulator.swap import SwapSimulation, simulate_swap

V100 = load_device("v100-16gb")
MIB = 1 << 20
PLENTY = 1 << 40
MADE = Access.WRITE | Access.WHOLE
MAKERS = st.sampled_from([random_step, random_step, random_ops])
SEEDS = st.integers(0, 2**32)
SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.95)


def budgets(trace: Trace) -> Iterator[int]:
    """From what the largest op uses up to the peak."""
    least, most = int(trace.working_set_bytes().max()), trace.peak_bytes
    return (least + int((most - least) * share) for share in SHARES)


def nothing(its: SwapGaps) -> NDArray[np.bool_]:
    """No gap at all."""
    return np.zeros(len(its), bool)


# ---- gaps ----------------------------------------------------------------------------------------------------------


def uses_of(trace: Trace) -> dict[int, list[tuple[int, bool, bool]]]:
    """Of each storage the ops that use it, or after which the host does: do they need contents, do they write?"""
    found: dict[int, dict[int, tuple[bool, bool]]] = {each: {} for each in range(len(trace.storages))}
    size, events = trace.storages.bytes, trace.events
    for op in range(len(trace.ops)):
        rows = np.flatnonzero(events.op == op)
        for row in rows[(events.kind[rows] == EventKind.ALLOCATE) & (events.inside[rows] == 1)]:
            found[int(events.storage[row])][op] = (False, False)
        for access in trace.op(op).accesses:
            whole = bool(access.flags & Access.WHOLE) and access.bytes == size[access.storage]
            needs, writes = found[access.storage].get(op, (not whole, False))
            found[access.storage][op] = (needs, writes or bool(access.flags & Access.WRITE))
        for row in rows[np.isin(events.kind[rows], (EventKind.HOST_READ, EventKind.HOST_WRITE))]:
            storage, loads = int(events.storage[row]), events.kind[row] == EventKind.HOST_WRITE
            needs, writes = found[storage].get(op, (not (loads and events.bytes[row] == size[storage]), False))
            found[storage][op] = (needs, writes or bool(loads))
    return {storage: [(op, *of[op]) for op in sorted(of)] for storage, of in found.items()}


def needed_gaps(trace: Trace) -> set[tuple[int, int, int, int]]:
    """Storage, its name when it comes back, and the ops before which it could: by walking through the step."""
    uses, ops = uses_of(trace), len(trace.ops)
    begins = set(trace.events.storage[(trace.events.op < 0) & (trace.events.kind == EventKind.HOST_WRITE)].tolist())
    result = set()
    for storage, of in uses.items():
        filled = trace.births[storage] < 0
        for (op, _, writes), (following, needs, _) in pairwise(of):
            filled = filled or writes
            if needs and filled and following > op + 1:
                result.add((storage, storage, op + 1, following))
        if not of or trace.deaths[storage] < ops:
            continue
        # What the host writes before the first op has to be there.
        heirs = [storage] if trace.births[storage] < 0 else np.flatnonzero(trace.storages.successor == storage).tolist()
        for heir in heirs:
            first = uses[heir][:1]
            if first and first[0][1] and heir not in begins and first[0][0] + ops > of[-1][0] + 1:
                result.add((storage, heir, of[-1][0] + 1, first[0][0] + ops))
    return {each for each in result if trace.storages.bytes[each[0]] > 0}


@given(seed=SEEDS)
@settings(max_examples=30, deadline=None, database=None)
def test_gaps_are_those_of_a_walk(seed: int) -> None:
    trace = random_step(Random(seed))
    its = gaps(trace, V100)
    found = zip(its.storage, its.heir, its.first_op, its.last_op, its.needed, strict=True)
    assert {tuple(int(each) for each in row[:4]) for row in found if row[4]} == needed_gaps(trace)
    assert (its.bytes == trace.storages.bytes[its.storage]).all()
    # What comes back before the last op that it can finds its room there at least.
    assert (
        its.points.op[its.end % len(its.points.op)] + len(trace.ops) * (its.end >= len(its.points.op)) == its.last_op
    ).all()
    assert (its.points.op[its.begin] + 1 == its.first_op).all()


@given(make=MAKERS, seed=SEEDS)
@settings(max_examples=30, deadline=None, database=None)
def test_what_is_kept_is_what_the_simulator_has(make: Callable[[Random], Trace], seed: int) -> None:
    trace = make(Random(seed))
    its = gaps(trace, V100)
    plan = schedule(its, nothing(its), PLENTY, Times.of_compute(its))
    live = simulate_swap(trace, V100, plan, spans=False).live_bytes
    kept = np.zeros(len(trace.ops), np.int64)
    inside = its.points.op >= 0
    np.maximum.at(kept, its.points.op[inside], its.kept_bytes[inside])
    assert (kept >= live).all()
    # What is there before the first op counts at that, what nobody uses up to its end: so it is in the first step.
    idle = (trace.births < 0) & ~its.points.used
    until = np.where(trace.deaths < len(trace.ops), trace.deaths, 0)[idle].max(initial=0)
    assert (kept == live)[int(until) + 1 :].all()


def copied_in_a_step_bytes(simulation: SwapSimulation) -> int:
    """To the host, by the plan: copies that begin in the last step; some of them end after it."""
    timeline = simulation.timeline
    assert timeline is not None
    begin_ns = int(timeline.start_ns[timeline.track == Track.COMPUTE].min())
    begun = (timeline.start_ns >= begin_ns) & (timeline.start_ns < begin_ns + simulation.step_ns)
    return int(timeline.bytes[(timeline.track == Track.D2H) & begun].sum()) - simulation.result.host_read_bytes


@given(make=MAKERS, seed=SEEDS)
@settings(max_examples=30, deadline=None, database=None)
def test_schedules_run_within_their_budgets(make: Callable[[Random], Trace], seed: int) -> None:
    """Whatever leaves: nothing has to be brought on demand, and what is copied out is what the gaps say."""
    trace, random = make(Random(seed)), np.random.default_rng(seed)
    its = gaps(trace, V100)
    times = Times.of_compute(its)
    for budget_bytes in budgets(trace):
        leaves = (random.random(len(its)) < random.choice([0.0, 0.2, 0.5])) & its.needed
        chosen = enough(its, leaves, budget_bytes, slack_ns(its, times))
        if chosen is None:
            continue
        assert (chosen | ~leaves).all() and not (chosen & ~its.needed).any()
        plan = schedule(its, chosen, budget_bytes, times)
        simulation = simulate_swap(trace, V100, plan, iterations=30)
        assert (simulation.live_bytes <= budget_bytes).all()
        assert simulation.result.on_demand_swap_ins == simulation.result.evictions == 0
        assert reads(trace, plan) == reads(trace, None)
        if not simulation.result.cancelled:
            rows = np.flatnonzero(chosen)
            assert copied_in_a_step_bytes(simulation) == its.bytes[rows[its.copied_out(rows)]].sum()
        times = Times.of_simulation(its, simulation)


@given(make=MAKERS, seed=SEEDS)
@settings(max_examples=30, deadline=None, database=None)
def test_enough_leaves_wherever_that_is_possible(make: Callable[[Random], Trace], seed: int) -> None:
    trace = make(Random(seed))
    its = gaps(trace, V100)

    def fullest_bytes(leaves: NDArray[np.bool_]) -> int:
        """Point by point, what is kept without what has left."""
        count, most = len(its.points.op), 0
        for point in range(count):
            away = leaves & (((its.begin < point) & (point < its.end)) | (point + count < its.end))
            most = max(most, int(its.kept_bytes[point] - its.bytes[away].sum()))
        return most

    worth = slack_ns(its, Times.of_compute(its))
    least = fullest_bytes(its.needed)
    assert enough(its, nothing(its), least - 1, worth) is None
    for budget_bytes in (least, *(each for each in budgets(trace) if each > least)):
        chosen = enough(its, nothing(its), budget_bytes, worth)
        assert chosen is not None and fullest_bytes(chosen) <= budget_bytes


def test_what_no_op_writes_leaves_without_a_copy() -> None:
    builder = TraceBuilder()
    weights = [builder.allocate(8 * MIB, Role.PARAMETER) for _ in range(3)]
    for each in weights:
        builder.begin_op("aten::mm", duration_ns=10**7)
        builder.access(each, Access.READ)
        builder.end_op()
    trace = builder.finish(target="cuda", source="synthetic")
    its = gaps(trace, V100)
    assert list(zip(its.first_op, its.last_op, strict=True)) == [(1, 3), (2, 4), (3, 5)]
    assert not its.copied_out(np.arange(3)).any()
    result = simulate_swap(trace, V100, schedule(its, its.needed, 16 * MIB, Times.of_compute(its))).result
    assert (result.swap_out_bytes, result.swap_in_bytes) == (0, 24 * MIB)


def test_a_written_storage_is_copied_once_for_all_its_gaps() -> None:
    """Made by op 0, read by ops 2, 4 and 6: it leaves three times, and the host's copy stays valid."""
    builder = TraceBuilder()
    for op in range(7):
        builder.begin_op("aten::op", duration_ns=10**7)
        if op == 0:
            storage = builder.allocate(8 * MIB, Role.INTERMEDIATE)
        if op % 2 == 0:
            builder.access(storage, MADE if op == 0 else Access.READ)
        builder.end_op()
    builder.free(storage)
    trace = builder.finish(target="cuda", source="synthetic")
    its = gaps(trace, V100)
    assert its.copied_out(np.arange(3)).tolist() == [True, False, False]
    result = simulate_swap(trace, V100, schedule(its, its.needed, 8 * MIB, Times.of_compute(its))).result
    assert (result.swap_out_bytes, result.swap_in_bytes) == (8 * MIB, 24 * MIB)


def test_what_the_host_has_just_written_stays_up_to_the_first_op() -> None:
    """An input that is made anew for each step: no action comes between the host's write and the first op."""
    builder = TraceBuilder()
    batch = builder.allocate(8 * MIB, Role.INPUT)
    builder.event(EventKind.HOST_WRITE, batch, 0, 8 * MIB)
    for op in range(4):
        builder.begin_op("aten::op", duration_ns=10**6)
        if op in (1, 3):
            builder.access(batch, Access.READ)
        builder.end_op()
    builder.free(batch)
    its = gaps(builder.finish(target="cuda", source="synthetic"), V100)
    assert list(zip(its.first_op, its.last_op, strict=True)) == [(2, 3)]


# ---- recomputations as ops -----------------------------------------------------------------------------------------


def recomputations(trace: Trace, random: Random, budget_bytes: int) -> Iterator[list[Action]]:
    step = StepLists(trace)
    known = candidates(step)
    yield recompute_actions(step, [each.storage for each in known if random.random() < 0.5])
    yield recompute_actions(step, [each.storage for each in known])
    for name in ("superneurons", "sqrt-recompute"):
        try:
            yield list(planners.run(name, trace, V100, budget_bytes))
        except BudgetError:
            continue


@given(make=MAKERS, seed=SEEDS)
@settings(max_examples=12, deadline=None, database=None)
def test_the_unrolled_step_takes_what_the_step_itself_takes(make: Callable[[Random], Trace], seed: int) -> None:
    trace = make(Random(seed))
    for budget_bytes in budgets(trace):
        for actions in recomputations(trace, Random(seed), budget_bytes):
            unrolled = unroll(trace, actions)
            check(unrolled.trace)
            its = gaps(unrolled.trace, V100)
            times = Times.of_compute(its)
            chosen = enough(its, nothing(its), budget_bytes, slack_ns(its, times))
            if chosen is None:
                continue
            plan = schedule(its, chosen, budget_bytes, times)
            ours = simulate_swap(unrolled.trace, V100, plan, spans=False).result
            back = unrolled.plan(plan)
            result = simulate_swap(trace, V100, back, spans=False).result
            assert result.compute_ns + result.recompute_ns == ours.compute_ns
            assert result.peak_live_bytes <= budget_bytes
            assert result.on_demand_swap_ins == 0
            assert reads(trace, back) == reads(trace, None)
