"""Lower bounds: cases worked by hand, every plan there is for tiny steps, and random steps with random plans."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from traces import layers, traces

from umadvise import planners
from umadvise.devices.catalogue import load_device
from umadvise.errors import BudgetError, NoRoomError, UsageError
from umadvise.planners.bounds.bound import Bound, lower_bound, optimum, regret
from umadvise.recording.builder import TraceBuilder
from umadvise.records.enums import Role
from umadvise.records.plan import Action, ActionKind, Plan
from umadvise.records.trace import Access, EventKind, Trace
from umadvise.simulator.swap import simulate_swap

pytest.importorskip("scipy")
V100 = load_device("v100-16gb")
MIB = 1 << 20
IN_NS = 1e9 / V100.bandwidth_h2d
OUT_NS = 1e9 / V100.bandwidth_d2h


def weights(count: int, *, written: bool, bytes_: int = 10 * MIB) -> Trace:
    """Each op uses a weight of its own, in a microsecond."""
    builder = TraceBuilder()
    all_ = [builder.allocate(bytes_, Role.PARAMETER, f"w{index}") for index in range(count)]
    for each in all_:
        builder.begin_op("aten::add_.Tensor", duration_ns=1000)
        builder.access(each, Access.READ | (Access.WRITE if written else Access.READ))
        builder.end_op()
    return builder.finish(target="cuda", source="synthetic")


def test_a_step_that_fits_takes_its_ops_time() -> None:
    assert lower_bound(layers(4), V100, 40 * MIB) == Bound(
        "compute", 8 * 10**6, True, lower_bound(layers(4), V100, 40 * MIB).details
    )


def test_an_op_that_does_not_fit() -> None:
    found = lower_bound(layers(4), V100, 10 * MIB - 1)
    assert (found.kind, found.feasible, found.details["needed_bytes"]) == ("feasibility", False, 10 * MIB)


@pytest.mark.parametrize("written", [False, True])
def test_weights_by_hand(written: bool) -> None:
    """Of ten weights in turn, with room for one, all come to the device in each step; what is written goes back."""
    one = 10 * MIB
    expected_ns = 10 * one * IN_NS  # room for one: nine at least are elsewhere when any is used, and the tenth next
    found = lower_bound(weights(10, written=written), V100, one, coarse=None)
    assert found.step_ns >= 0.999 * expected_ns
    both_bytes_per_s = V100.link.d2h.both_bytes_per_s.value
    if written and both_bytes_per_s is None:
        assert found.step_ns >= 0.999 * 10 * one * OUT_NS


def test_what_leaves_takes_time_before_the_peak_and_after_it() -> None:
    """Ops of no time to speak of: all but what there is room for goes out, then comes back."""
    trace = layers(40, op_ns=1)
    budget_bytes = 100 * MIB
    moved = 300 * MIB
    found = lower_bound(trace, V100, budget_bytes, coarse=None)
    assert found.step_ns == pytest.approx(moved * (IN_NS + OUT_NS), rel=0.08)
    assert found.details["link_ns"] == pytest.approx(moved * max(IN_NS, OUT_NS), rel=1e-6)


def every_plan(trace: Trace, budget_bytes: int) -> list[int]:
    """Lengths of the steps of all plans that move each storage once or not at all, where the simulator runs them."""
    ops = range(len(trace.ops))
    moves = [
        [
            (None, None),
            *((out, back) for out in ops for back in ops if trace.births[each] <= out < back <= trace.deaths[each]),
        ]
        for each in range(len(trace.storages))
    ]
    lengths = []
    for chosen in itertools.product(*moves):
        actions = []
        for storage, (out, back) in enumerate(chosen):
            if out is not None and back is not None:
                actions.append(Action(ActionKind.SWAP_OUT, out, storage, after=True))
                actions.append(Action(ActionKind.SWAP_IN, back, storage))
        plan = Plan.from_actions(trace, actions, planner="all", budget_bytes=budget_bytes)
        try:
            lengths.append(simulate_swap(trace, V100, plan, spans=False).step_ns)
        except NoRoomError:
            continue
    return lengths


@pytest.mark.parametrize(("op_ns", "room"), [(10**5, 2), (10**6, 2), (10, 2)])
def test_brute_force(op_ns: int, room: int) -> None:
    trace = layers(3, op_ns=op_ns)
    budget_bytes = room * 10 * MIB
    best_ns = min(every_plan(trace, budget_bytes))
    exact = optimum(trace, V100, budget_bytes)
    full = lower_bound(trace, V100, budget_bytes, coarse=None)
    assert full.step_ns <= exact.step_ns * (1 + 1e-6)
    assert exact.step_ns <= best_ns
    assert best_ns <= exact.step_ns * 1.02 + 2 * op_ns + 200_000  # whole copies, one after the other, at ops' ends


@st.composite
def random_plans(draw: st.DrawFn, trace: Trace, budget_bytes: int) -> Plan:
    """Belady's, made worse: some storages also leave early, and come back at once or before their use."""
    plan = planners.run(draw(st.sampled_from(["belady", "lru"])), trace, V100, budget_bytes)
    actions = list(plan)
    for _ in range(draw(st.integers(0, 4)) if len(trace.storages) else 0):
        storage = draw(st.integers(0, len(trace.storages) - 1))
        op = draw(st.integers(0, len(trace.ops) - 1))
        kind = draw(st.sampled_from([ActionKind.SWAP_OUT, ActionKind.SWAP_IN, ActionKind.WAIT]))
        if trace.births[storage] < op < trace.deaths[storage]:
            actions.append(Action(kind, op, storage, after=draw(st.booleans())))
    return Plan.from_actions(trace, actions, planner="random", budget_bytes=budget_bytes)


@given(trace=traces(most_ops=10), data=st.data())
@settings(max_examples=120, deadline=None)
def test_no_plan_is_faster_than_its_bounds(trace: Trace, data: st.DataObject) -> None:
    assume(len(trace.ops))
    budget_bytes = data.draw(st.integers(0, max(int(trace.peak_bytes), 1)))
    full = lower_bound(trace, V100, budget_bytes, coarse=None)
    if not full.feasible:
        return
    coarse = lower_bound(trace, V100, budget_bytes, coarse=data.draw(st.integers(1, 5)))
    again = lower_bound(trace, V100, budget_bytes, coarse=None, recompute=True)
    exact = optimum(trace, V100, budget_bytes, time_limit_s=10)
    assert full.step_ns <= exact.step_ns * (1 + 3e-6) + 1
    assert coarse.step_ns <= full.step_ns * (1 + 3e-6) + 1
    assert again.step_ns <= full.step_ns * (1 + 3e-6) + 1
    try:
        plan = data.draw(random_plans(trace, budget_bytes))
        result = simulate_swap(trace, V100, plan, spans=False, iterations=40).result
    except (BudgetError, UsageError):
        return
    assume(result.iterations < 40)  # a steady run
    assert exact.step_ns <= result.step_ns


def test_regret() -> None:
    bound = Bound("compute", 100, True)
    assert regret(150, bound) == 0.5
    assert regret(0, Bound("compute", 0, True)) == 0.0


def test_recompute_by_hand() -> None:
    """On a link that is slow beside the ops, what does not fit is made again: an op's time for each map."""
    trace = layers(10, op_ns=1000)
    swapping = lower_bound(trace, V100, 50 * MIB, coarse=None)
    either = lower_bound(trace, V100, 50 * MIB, coarse=None, recompute=True)
    assert either.step_ns == pytest.approx(20_000 + 5_000, rel=0.01)
    assert swapping.step_ns > 10 * either.step_ns


def test_recompute_of_what_freed_memory_was_for() -> None:
    """Each map is made of another one that is freed at once: both ops run again."""
    builder, maps = TraceBuilder(), []
    for _ in range(10):
        builder.begin_op("aten::mm", duration_ns=1000)
        between = builder.allocate(10 * MIB, Role.INTERMEDIATE)
        builder.access(between, Access.WRITE | Access.WHOLE)
        builder.end_op()
        builder.begin_op("aten::relu", duration_ns=1000)
        maps.append(builder.allocate(10 * MIB, Role.INTERMEDIATE))
        builder.access(between, Access.READ)
        builder.access(maps[-1], Access.WRITE | Access.WHOLE)
        builder.end_op()
        builder.free(between)
    for each in reversed(maps):
        builder.begin_op("aten::threshold_backward", duration_ns=1000)
        builder.access(each, Access.READ)
        builder.end_op()
        builder.free(each)
    trace = builder.finish(target="cuda", source="synthetic")
    # The last map is made of one that has memory too, and so there is room for three more of nine.
    found = lower_bound(trace, V100, 50 * MIB, coarse=None, recompute=True)
    assert found.step_ns == pytest.approx(30_000 + 6 * 2_000, rel=0.01)


def test_a_write_of_the_step_before() -> None:
    """A weight changes in the last op of a step: what the host has of it is old at the beginning of the next one."""
    builder = TraceBuilder()
    weight, other = (builder.allocate(40 * MIB, Role.PARAMETER, name) for name in ("weight", "other"))
    for each, access in ((weight, Access.READ), (other, Access.READ), (weight, Access.READ | Access.WRITE)):
        builder.begin_op("aten::mul", duration_ns=1)
        builder.access(each, access)
        builder.end_op()
    trace = builder.finish(target="cuda", source="synthetic")
    # Room for one and a half: half of the weight is away at op 1, half of the other one at ops 2 and 0. The weight's
    # goes out once a step, as it was since op 2, and comes in; so does the other's, which the host always has.
    found = lower_bound(trace, V100, 60 * MIB, coarse=None)
    assert found.details["programme_ns"] >= 0.999 * 40 * MIB * IN_NS
    assert lower_bound(trace, V100, 60 * MIB, coarse=2).step_ns <= found.step_ns


def test_what_the_host_wrote_before_the_step_is_there() -> None:
    builder = TraceBuilder()
    weight = builder.allocate(10 * MIB, Role.PARAMETER, "weight")
    builder.event(EventKind.HOST_WRITE, weight, 0, 10 * MIB)
    builder.begin_op("aten::mul", duration_ns=1000)
    builder.access(weight, Access.READ)
    builder.end_op()
    trace = builder.finish(target="cuda", source="synthetic")
    assert lower_bound(trace, V100, 20 * MIB).step_ns == 1000
    assert simulate_swap(trace, V100, None, budget_bytes=20 * MIB, spans=False).step_ns == 1000


def test_bad_input() -> None:
    with pytest.raises(UsageError, match="coarse: expected at least one op, found 0"):
        lower_bound(layers(2), V100, MIB, coarse=0)


@pytest.mark.parametrize("op_ns", [1, 10**5, 10**6])
def test_few_points_are_enough(op_ns: int) -> None:
    trace = layers(60, op_ns=op_ns)
    few, all_ = (lower_bound(trace, V100, 200 * MIB, coarse=coarse) for coarse in (8, None))
    assert few.details["chosen"] < all_.details["chosen"] / 2
    assert 0.99 * all_.step_ns <= few.step_ns <= all_.step_ns * (1 + 3e-6)


def test_coarser_is_never_more() -> None:
    trace = layers(60)
    found = [lower_bound(trace, V100, 200 * MIB, coarse=coarse).step_ns for coarse in (5, 30, None)]
    assert np.all(np.diff(found) >= -found[-1] * 3e-6)
