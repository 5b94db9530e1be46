"""Planners that recompute: chains worked by hand, and random nets on which every plan gives every op what it read."""

import math
from collections.abc import Callable

import pytest
from contents import reads
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import traces

from umadvise import planners
from umadvise.devices.catalogue import load_device
from umadvise.errors import BudgetError, UsageError
from umadvise.recording.builder import TraceBuilder
from umadvise.records.enums import Phase, Role
from umadvise.records.plan import ActionKind, Plan
from umadvise.records.trace import Access, OpClass, Trace
from umadvise.simulator.swap import simulate_swap

V100 = load_device("v100-16gb")
MIB = 1 << 20
MAP = 8 * MIB
MADE = Access.WRITE | Access.WHOLE
IN_PLACE = Access.READ | Access.WRITE | Access.IN_PLACE
Op = tuple[list[int], str, OpClass]


class Net:
    """Forward op by op, then backward in the opposite order: it reads an op's inputs and makes a gradient."""

    def __init__(self) -> None:
        self.builder = TraceBuilder()
        self.maps: list[int] = []
        self.tape: list[tuple[list[int], int]] = []
        self.weight = self.builder.allocate(MIB, Role.PARAMETER, "w")

    def op(
        self,
        inputs: list[int],
        op_class: OpClass = OpClass.ELEMENTWISE,
        *,
        bytes_: int = MAP,
        saved: bool = True,
        in_place: bool = False,
        name: str = "aten::op",
        changes_weight: bool = False,
    ) -> int:
        """An op of forward on maps; returns its output. Each takes a millisecond."""
        self.builder.begin_op(name, phase=Phase.FORWARD, op_class=op_class, duration_ns=10**6)
        output = inputs[0] if in_place else self.builder.allocate(bytes_, Role.INTERMEDIATE)
        for each in inputs[1:] if in_place else inputs:
            self.builder.access(each, Access.READ)
        self.builder.access(self.weight, IN_PLACE if changes_weight else Access.READ)
        self.builder.access(output, IN_PLACE if in_place else MADE)
        self.builder.end_op()
        if not in_place:
            self.maps.append(output)
        self.tape.append((inputs if saved else [], output))
        return output

    def free(self, storage: int) -> None:
        self.builder.free(storage)
        self.maps.remove(storage)

    def finish(self, *, gradient_bytes: int = 0, overwrites: Callable[[], bool] = lambda: False) -> Trace:
        gradient = self.builder.allocate(gradient_bytes, Role.GRADIENT)
        for inputs, output in reversed(self.tape):
            self.builder.begin_op("aten::op_backward", phase=Phase.BACKWARD, duration_ns=2 * 10**6)
            for each in sorted({*inputs, output} & set(self.maps)):
                self.builder.access(each, IN_PLACE if overwrites() else Access.READ)
            self.builder.access(gradient, IN_PLACE)
            self.builder.end_op()
            later = [each for row in self.tape[: self.tape.index((inputs, output))] for each in (*row[0], row[1])]
            for each in sorted({*inputs, output} & set(self.maps) - set(later)):
                self.free(each)
        self.builder.free(gradient)
        return self.builder.finish(target="cuda", source="synthetic")


def chain(count: int, classes: tuple[OpClass, ...] = (OpClass.ELEMENTWISE,)) -> Trace:
    """Layers one after the other; backward of each needs its output alone."""
    net = Net()
    last = net.op([], classes[0], saved=False)
    for index in range(1, count):
        last = net.op([last], classes[index % len(classes)], saved=False)
    return net.finish()


def moves(plan: Plan) -> list[tuple[str, int, int]]:
    return [(action.kind.name.lower(), action.op, action.storage) for action in plan]


# ---- square roots --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "stage"), [(16, 4), (36, 6), (25, 5), (64, 4)])
def test_a_chain_in_stages_by_hand(count: int, stage: int) -> None:
    """A stage ends with the layer that makes more than the threshold: its map stays. When backward has used the last
    map of all, count / stage - 1 are there that stayed, and stage - 1 that are made again: nothing takes more. All that
    did not stay runs again, once."""
    trace = chain(count)
    threshold = (stage - 1) * MAP // MIB
    kept = count // stage
    budget_bytes = MIB + (kept + stage - 2) * MAP
    result = simulate_swap(trace, V100, planners.run("sqrt-recompute", trace, V100, budget_bytes, threshold=threshold))
    assert result.result.peak_live_bytes == budget_bytes
    assert result.result.recompute_ns == (count - kept) * 10**6
    assert result.result.recomputed_ops == count - kept
    assert result.step_ns == (count + 2 * count + count - kept) * 10**6
    with pytest.raises(BudgetError, match="square-root recomputation reaches"):
        planners.run("sqrt-recompute", trace, V100, budget_bytes - 1, threshold=threshold)


@pytest.mark.parametrize("count", [16, 100, 400])
def test_the_search_comes_to_two_square_roots(count: int) -> None:
    """The least of floor(n / k) + k - 2 is 2 sqrt(n) - 2 for a square n; the thresholds that are tried come near."""
    trace = chain(count)
    least = MIB + (2 * math.isqrt(count) - 2) * MAP
    plan = planners.run("sqrt-recompute", trace, V100, int(least * 1.15))
    result = simulate_swap(trace, V100, plan, spans=False).result
    assert least <= result.peak_live_bytes <= least * 1.15
    assert result.recompute_ns < count * 10**6
    with pytest.raises(BudgetError):
        planners.run("sqrt-recompute", trace, V100, least - 1)


@pytest.mark.parametrize("name", ["sqrt-recompute", "superneurons"])
def test_what_fits_stays(name: str) -> None:
    trace = chain(9)
    assert len(planners.run(name, trace, V100, trace.peak_bytes)) == 0


# ---- SuperNeurons --------------------------------------------------------------------------------------------------

CONV_AND_TWO = (OpClass.CONVOLUTION, OpClass.REDUCTION, OpClass.ELEMENTWISE)


def test_convolutions_stay_and_the_rest_is_made_again_at_once() -> None:
    """conv, norm, act, conv, norm, act: what is not a convolution leaves, and each pair is made again together."""
    trace = chain(6, CONV_AND_TWO)
    plan = planners.run("superneurons", trace, V100, MIB + 5 * MAP, strategy="speed-centric", lru_on=False)
    made_again = [(op, storage) for kind, op, storage in moves(plan) if kind == "recompute"]
    maps = [trace.births.tolist().index(op) for op in range(6)]
    assert made_again == [(6, maps[4]), (6, maps[5]), (9, maps[1]), (9, maps[2])]
    result = simulate_swap(trace, V100, plan).result
    assert result.peak_live_bytes == MIB + 4 * MAP  # both convolutions' and one pair
    assert result.recompute_ns == 4 * 10**6


def test_memory_centric_runs_more_and_holds_less() -> None:
    """Four layers after a convolution: 4 + 3 + 2 + 1 ops run again, and two of their maps at most are there at once."""
    trace = chain(5, (OpClass.CONVOLUTION, *[OpClass.ELEMENTWISE] * 4))
    plan = planners.run("superneurons", trace, V100, MIB + 3 * MAP, strategy="memory-centric", lru_on=False)
    result = simulate_swap(trace, V100, plan).result
    assert result.recompute_ns == 10 * 10**6
    assert result.peak_live_bytes == MIB + 3 * MAP


def test_the_cache_alone_is_lru() -> None:
    trace = chain(8)
    budget_bytes = MIB + 4 * MAP
    plan = planners.run("superneurons", trace, V100, budget_bytes, recompute_on=False)
    ours = simulate_swap(trace, V100, plan, spans=False).result
    lru = simulate_swap(trace, V100, planners.run("lru", trace, V100, budget_bytes), spans=False).result
    assert ours.recomputed_ops == 0
    assert ours.swap_out_bytes == lru.swap_out_bytes == 4 * MAP


def test_fork_join_and_concat_stay() -> None:
    net = Net()
    first = net.op([], OpClass.CONVOLUTION)
    fork = net.op([first])
    left = net.op([fork])
    right = net.op([fork])
    join = net.op([left, right])
    after = net.op([join])
    concat = net.op([after], OpClass.COPY, name="aten::cat")
    net.op([concat], OpClass.MATMUL)
    trace = net.finish()
    plan = planners.run("superneurons", trace, V100, trace.peak_bytes - 1, lru_on=False)
    assert {storage for kind, _, storage in moves(plan) if kind == "recompute"} == {left, right, after}


def test_an_unknown_strategy() -> None:
    with pytest.raises(UsageError, match="unknown strategy 'fast': expected one of cost-aware"):
        planners.run("superneurons", chain(2), V100, MIB, strategy="fast")


# ---- every plan ----------------------------------------------------------------------------------------------------


@st.composite
def nets(draw: st.DrawFn) -> Trace:
    """Nets with branches, ops in place, in backward too, what is freed in forward, and running statistics."""
    net, chance = Net(), draw(st.randoms(use_true_random=True))
    net.op([], OpClass.CONVOLUTION)
    classes = [OpClass.CONVOLUTION, OpClass.ELEMENTWISE, OpClass.REDUCTION]
    freed, weight_changed = draw(st.sampled_from([0, 0.3])), draw(st.sampled_from([0, 0.1]))
    for _ in range(draw(st.integers(3, 24))):
        recent = net.maps[-3:]
        net.op(
            chance.sample(recent, min(len(recent), chance.choice([1, 1, 2]))),
            chance.choice(classes),
            bytes_=chance.choice([MIB, 4 * MIB, MAP]),
            saved=chance.random() < 0.7,
            in_place=chance.random() < 0.2,
            changes_weight=chance.random() < weight_changed,
        )
        if len(net.maps) > 2 and chance.random() < freed:
            net.free(chance.choice(net.maps[:-1]))
    overwritten = draw(st.sampled_from([0, 0.1]))
    return net.finish(gradient_bytes=MIB, overwrites=lambda: chance.random() < overwritten)


PLANS = st.sampled_from(
    [
        ("sqrt-recompute", {}),
        ("sqrt-recompute", {"threshold": 8}),
        ("sqrt-recompute", {"threshold": 20}),
        ("superneurons", {}),
        ("superneurons", {"recompute_on": False}),
        ("superneurons", {"strategy": "speed-centric"}),
        ("superneurons", {"strategy": "memory-centric"}),
        ("superneurons", {"strategy": "memory-centric", "lru_on": False}),
    ]
)


@given(trace=nets() | nets() | traces(), chosen=PLANS, share=st.sampled_from([0.4, 0.55, 0.7, 0.8, 0.9, 0.95, 0.99]))
@settings(max_examples=300, deadline=None)
def test_the_simulator_executes_every_plan(trace: Trace, chosen: tuple[str, dict[str, object]], share: float) -> None:
    budget_bytes = int(trace.peak_bytes * share)
    try:
        plan = planners.run(chosen[0], trace, V100, budget_bytes, **chosen[1])  # type: ignore[arg-type]
    except BudgetError:
        return
    if not len(trace.ops):
        return
    result = simulate_swap(trace, V100, plan, spans=False).result
    assert result.peak_live_bytes <= budget_bytes
    assert result.on_demand_swap_ins == result.evictions == 0
    assert result.step_ns >= result.compute_ns + result.recompute_ns
    assert reads(trace, plan) == reads(trace, None)


@pytest.mark.parametrize("name", ["sqrt-recompute", "superneurons"])
def test_what_is_read_tells_a_wrong_plan(name: str) -> None:
    """The property above holds of something: without one of its recomputations a plan reads what is lost."""
    trace = chain(9, CONV_AND_TWO)
    plan = planners.run(name, trace, V100, trace.peak_bytes - 1)
    assert reads(trace, plan) == reads(trace, None)
    actions = list(plan)
    actions.remove(next(action for action in actions if action.kind is ActionKind.RECOMPUTE))
    wrong = Plan.from_actions(trace, actions, planner=name, budget_bytes=plan.budget_bytes)
    assert reads(trace, wrong) != reads(trace, None)
