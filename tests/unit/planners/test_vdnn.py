"""vDNN's planners: a network worked by hand, the shapes that a trace gives away, and random steps that are executed."""

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from networks import NETWORKS
from torch import nn
from traces import traces

from umadvise import planners
from umadvise.devices.catalogue import load_device
from umadvise.errors import BudgetError, UsageError
from umadvise.planners.papers.convolution import SPEED_RATIO, tiled_fft_bytes, with_algorithms, workspace_bytes
from umadvise.planners.papers.vdnn import choose
from umadvise.recording.builder import TraceBuilder
from umadvise.recording.dry import recorder as dry
from umadvise.records.enums import Phase, Role
from umadvise.records.plan import ActionKind, Plan
from umadvise.records.trace import Access, OpClass, Trace
from umadvise.records.trace_check import check
from umadvise.simulator.swap import simulate_swap

V100 = load_device("v100-16gb")
MIB = 1 << 20
MAP = 10 * MIB
NAMES = ("vdnn-all", "vdnn-conv", "vdnn-dyn")

CHAIN = (OpClass.CONVOLUTION, OpClass.CONVOLUTION, OpClass.REDUCTION, OpClass.CONVOLUTION, OpClass.REDUCTION)
"""Layers 0 to 4: two convolutions, a pooling, a convolution, a pooling; then a full layer, 5."""


def chain(milliseconds: int = 10) -> Trace:
    """Six layers with 10 MiB between each two: map n is layer n's X, op n its forward, op 11 - n its backward."""
    builder = TraceBuilder()
    maps = [builder.allocate(MAP, Role.INPUT)]
    for layer, op_class in enumerate((*CHAIN, OpClass.MATMUL)):
        builder.begin_op(
            "op", phase=Phase.FORWARD, module=str(layer), op_class=op_class, duration_ns=milliseconds * 10**6
        )
        maps.append(builder.allocate(MAP, Role.INTERMEDIATE))
        builder.access(maps[layer], Access.READ)
        builder.access(maps[-1], Access.WRITE | Access.WHOLE)
        builder.end_op()
    for layer, op_class in reversed(list(enumerate((*CHAIN, OpClass.MATMUL)))):
        builder.begin_op(
            "back", phase=Phase.BACKWARD, module=str(layer), op_class=op_class, duration_ns=milliseconds * 10**6
        )
        builder.access(maps[layer], Access.READ)
        builder.access(maps[layer + 1], Access.READ)
        builder.end_op()
        builder.free(maps[layer + 1])
    return builder.finish(target="cuda", source="synthetic")


@functools.cache
def recorded(network: str, batch: int) -> Trace:
    return dry.record(functools.partial(NETWORKS[network], batch), target="cuda", device="v100-16gb")


def moves(plan: Plan, *kinds: ActionKind) -> list[tuple[str, int, bool, int]]:
    return [(each.kind.name.lower(), each.op, each.after, each.storage) for each in plan if each.kind in kinds]


def test_all_by_hand() -> None:
    """X 3 is that of the last convolution and X 5 of the full layer: they stay. X 0 is there before the step.

    Backward of 5 (op 6) looks at 4 and finds X 4. That of 4 (op 7) finds convolution 3, which has nothing: no search
    goes on beyond it. That of 3 (op 8) finds X 2, of 2 X 1, of 1 X 0.
    """
    plan = planners.run("vdnn-all", chain(), V100, 60 * MIB)
    out, back, wait = ActionKind.SWAP_OUT, ActionKind.SWAP_IN, ActionKind.WAIT
    assert moves(plan, out) == [
        ("swap_out", 0, True, 0),
        *(("swap_out", layer, after, layer) for layer in (1, 2, 4) for after in (False, True)),
    ]
    returns = [(6, 4), (8, 2), (9, 1), (10, 0)]
    assert moves(plan, back) == [("swap_in", op, False, storage) for op, storage in returns]
    # Each is gone before the next layer, and there before the next layer's backward.
    away = [("wait", layer, True, layer) for layer in (0, 1, 2, 4)]
    assert moves(plan, wait) == [*away, *(("wait", op, True, storage) for op, storage in returns)]


def test_conv_by_hand() -> None:
    """Of convolutions 0 and 1 only. Backward of 3 (op 8) looks at 2, a pooling, and goes on to 1; that of 2 finds
    convolution 1, whose X has been asked for, and no search goes on beyond it.
    """
    plan = planners.run("vdnn-conv", chain(), V100, 90 * MIB)
    assert moves(plan, ActionKind.SWAP_IN) == [("swap_in", 8, False, 1), ("swap_in", 10, False, 0)]


def test_a_layer_waits_for_its_map_to_be_gone() -> None:
    """Layers of a microsecond hide nothing: the step takes all its copies, one after the other."""
    trace = chain(milliseconds=0)
    result = simulate_swap(trace, V100, planners.run("vdnn-all", trace, V100, 60 * MIB)).result
    way = V100.link.d2h
    copy_ns = way.fixed_ns.value + MAP / way.bytes_per_s.value * 1e9
    assert result.swap_out_bytes == 3 * MAP  # X 0 is clean
    assert result.wait_room_ns == pytest.approx(3 * copy_ns, rel=0.01)


def test_what_is_on_the_device_by_hand() -> None:
    """All maps are 70 MiB. Of `all`, the most is in backward of 4: maps 3 to 5. Of `conv`, in forward of 5: 2 to 6."""
    trace = chain()
    assert trace.peak_bytes == 7 * MAP
    for name, most in (("vdnn-all", 4 * MAP), ("vdnn-conv", 5 * MAP)):
        plan = planners.run(name, trace, V100, most)
        assert simulate_swap(trace, V100, plan).result.peak_live_bytes == most
        with pytest.raises(BudgetError, match="more than the budget"):
            planners.run(name, trace, V100, most - 1)


@pytest.mark.parametrize(("budget_maps", "transfer"), [(7, "none"), (6, "conv"), (5, "conv"), (4, "all")])
def test_dyn_moves_no_more_than_it_has_to(budget_maps: int, transfer: str) -> None:
    assert choose(chain(), budget_maps * MAP).transfer == transfer


def test_dyn_downgrades_the_convolutions_that_do_not_fit() -> None:
    """Where every X leaves and all workspaces do not fit, those go that overflow, and no others."""
    trace = dry.record(functools.partial(NETWORKS["vgg16"], 2, image=64, width=16), target="cuda", device="v100-16gb")
    least = max(int(bytes_) for bytes_ in _peaks(trace, np.zeros(len(trace.ops), bool)))
    all_fast = max(int(bytes_) for bytes_ in _peaks(trace, np.ones(len(trace.ops), bool)))
    assert least < all_fast
    budget_bytes = (least + all_fast) // 2
    choice = choose(trace, budget_bytes)
    assert choice.algorithms == "greedy"
    plan = planners.run("vdnn-dyn", trace, V100, budget_bytes)
    workspace = workspace_bytes(trace)
    peaks = np.array(_peaks(with_algorithms(trace, choice.fast), None, plan))
    assert peaks.max() <= budget_bytes
    downgraded = (workspace > 0) & ~choice.fast
    assert downgraded.any()
    without = simulate_swap(trace, V100, plan).live_bytes
    assert (without[downgraded] + workspace[downgraded] > budget_bytes).all()


def _peaks(trace: Trace, fast: np.ndarray | None, plan: Plan | None = None) -> list[int]:
    """Live bytes by op, of `all` with these algorithms or of a plan."""
    plan = plan or planners.run("vdnn-all", trace, V100, 1 << 40)
    chosen = trace if fast is None else with_algorithms(trace, fast)
    plan = replace(plan, trace_digest=chosen.structure_digest)
    return [int(bytes_) for bytes_ in simulate_swap(chosen, V100, plan, budget_bytes=1 << 40).live_bytes]


# ---- algorithms ------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("network", ["alexnet", "overfeat", "vgg16", "resnet50"])
def test_the_shapes_that_a_trace_gives_away_are_those_of_the_modules(network: str) -> None:
    trace = recorded(network, 6)
    expected = []
    with torch.device("meta"):
        workload = NETWORKS[network](6)

        def note(layer: nn.Conv2d, _maps: object, output: torch.Tensor) -> None:
            fits = layer.stride == (1, 1) and layer.kernel_size != (1, 1)
            shape = (6, layer.in_channels, layer.out_channels, output.shape[-1], layer.kernel_size[0])
            expected.append(tiled_fft_bytes(*shape) if fits else 0)

        for module in workload.modules[0].modules():
            if isinstance(module, nn.Conv2d):
                module.register_forward_hook(note)
        with torch.no_grad():
            workload.modules[0](workload.inputs[0])
    convolutions = trace.ops.op_class == OpClass.CONVOLUTION
    found = workspace_bytes(trace)
    assert not found[~convolutions].any()
    assert found[convolutions & (trace.ops.phase == Phase.FORWARD)].tolist() == expected
    assert found[convolutions & (trace.ops.phase == Phase.BACKWARD)].tolist() == expected[::-1]


def test_slower_algorithms_and_workspaces_are_a_step_of_their_own() -> None:
    trace = recorded("alexnet", 6)
    workspace = workspace_bytes(trace)
    tiled = workspace > 0
    slow = with_algorithms(trace, np.zeros(len(trace.ops), bool))
    assert slow.ops.duration_ns[tiled] == pytest.approx(trace.ops.duration_ns[tiled] * SPEED_RATIO, rel=1e-4)
    assert (slow.ops.duration_ns[~tiled] == trace.ops.duration_ns[~tiled]).all()
    fast = with_algorithms(trace, tiled)
    check(fast)
    assert (fast.ops.duration_ns == trace.ops.duration_ns).all()
    assert (fast.working_set_bytes() - trace.working_set_bytes() == workspace).all()


# ---- random steps ----------------------------------------------------------------------------------------------------


@st.composite
def networks(draw: st.DrawFn) -> Trace:
    """Passes forward and back with forks, ops in place, modules that come again and maps that backward wants or not."""
    builder = TraceBuilder()
    size = st.integers(0, 4 * MIB)
    modules = st.sampled_from(["", "a", "b", "c"])
    classes = st.sampled_from([OpClass.CONVOLUTION, OpClass.MATMUL, OpClass.ELEMENTWISE, OpClass.REDUCTION])
    maps = [builder.allocate(draw(size), Role.INPUT), builder.allocate(draw(size), Role.PARAMETER)]
    done = []
    for _ in range(draw(st.integers(1, 3))):
        for _ in range(draw(st.integers(0, 6))):
            module, op_class = draw(modules), draw(classes)
            duration_ns = draw(st.integers(0, 10**6))
            builder.begin_op("forward", phase=Phase.FORWARD, module=module, op_class=op_class, duration_ns=duration_ns)
            read = draw(st.lists(st.sampled_from(maps), max_size=2))
            for each in read:
                builder.access(each, draw(st.sampled_from([Access.READ] * 3 + [Access.READ | Access.WRITE])))
            if draw(st.booleans()):
                maps.append(builder.allocate(draw(size), Role.INTERMEDIATE))
                read.append(maps[-1])
                builder.access(maps[-1], Access.WRITE | Access.WHOLE)
            builder.end_op()
            done.append((module, op_class, read, duration_ns))
        for _ in range(draw(st.integers(0, len(done)))):
            module, op_class, read, duration_ns = done.pop()
            builder.begin_op(
                "backward", phase=Phase.BACKWARD, module=module, op_class=op_class, duration_ns=2 * duration_ns
            )
            for each in read:
                if each in maps and draw(st.booleans()):
                    builder.access(each, Access.READ)
            gradient = builder.allocate(draw(size), Role.INTERMEDIATE)
            builder.end_op()
            builder.free(gradient)
            for each in maps[2:]:
                if not any(each in left for _, _, left, _ in done) and draw(st.booleans()):
                    maps.remove(each)
                    builder.free(each)
    for each in maps[2:]:  # else they would be there when the step begins again
        if builder.op_count:
            builder.free(each)
    return builder.finish(target="cuda", source="synthetic")


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("algorithm", ["memory_optimal", "performance_optimal"])
@given(trace=traces() | networks(), data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_simulator_executes_every_plan(name: str, algorithm: str, trace: Trace, data: st.DataObject) -> None:
    assume(len(trace.ops))
    budget_bytes = data.draw(st.integers(0, max(int(trace.peak_bytes), 1)))
    try:
        plan = planners.run(name, trace, V100, budget_bytes, **({} if name == "vdnn-dyn" else {"algorithm": algorithm}))
    except BudgetError:
        return
    result = simulate_swap(trace, V100, plan, spans=False).result
    assert result.peak_live_bytes <= budget_bytes
    assert result.on_demand_swap_ins == result.evictions == 0


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("network", ["resnet50", "unet", "vit_b16"])
def test_plans_of_networks_run(name: str, network: str) -> None:
    """What the planner takes the step to need is what the simulator finds, to the byte."""
    trace = recorded(network, 2)
    for share in (1.0, 0.9, 0.7, 0.5):
        try:
            plan = planners.run(name, trace, V100, int(trace.peak_bytes * share))
        except BudgetError:
            continue
        result = simulate_swap(trace, V100, plan, spans=False).result
        assert result.on_demand_swap_ins == result.evictions == result.redundant_actions == 0
        if name == "vdnn-dyn":  # it has other plans for other budgets
            assert result.peak_live_bytes <= plan.budget_bytes
        else:
            assert planners.run(name, trace, V100, result.peak_live_bytes).actions
            with pytest.raises(BudgetError):
                planners.run(name, trace, V100, result.peak_live_bytes - 1)


def test_an_unknown_algorithm_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown algorithm 'winograd': expected one of memory_optimal"):
        planners.run("vdnn-all", chain(), V100, 99 * MIB, algorithm="winograd")
