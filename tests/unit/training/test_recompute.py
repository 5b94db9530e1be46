"""Ops that run again in marked regions: gradients, losses and buffers are those of torch's own checkpoint."""

import copy
import gc
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from umadvise.recording.builder import TraceBuilder
from umadvise.records.enums import Phase, Role
from umadvise.records.plan import Action, ActionKind, Plan
from umadvise.records.trace import Access
from umadvise.records.trace_check import check
from umadvise.torch_seam.replacements import Replacements
from umadvise.training.recompute.choice import (
    Region,
    RerunChoice,
    choose,
    ops_of,
    repeatable_ops,
    with_inputs_held,
)
from umadvise.training.recompute.regions import Regions


@pytest.fixture
def regions() -> Iterator[Regions]:
    """Regions that are followed; every op counter reads 0, so that each region begins at op 0."""
    replaced, followed = Replacements(), Regions(lambda: 0)
    followed.install(replaced)
    yield followed
    replaced.undo()


class Block(nn.Module):
    """Everything that must not run twice beside what may: dropout, in-place ops, and maybe running statistics."""

    def __init__(self, normalise: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)
        self.normalise = normalise or nn.GroupNorm(2, 8)
        self.drop = nn.Dropout(0.4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.relu(self.normalise(self.first(images)), inplace=True)
        hidden = self.drop(nn.functional.gelu(hidden) * 2 + hidden.mean())
        return images + torch.sigmoid(self.second(hidden)).transpose(2, 3).contiguous()


class Attention(nn.Module):
    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4 * 8, 4, 64, dropout=dropout, batch_first=True, norm_first=True)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        words = images.transpose(1, 2).flatten(2)
        return self.layer(words).unflatten(2, (4, 8)).transpose(1, 2)


class Nested(nn.Module):
    """Regions within regions."""

    def __init__(self, normalise: nn.Module | None = None) -> None:
        super().__init__()
        self.parts = nn.ModuleList([Block(normalise), Attention()])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            images = checkpoint(part, images, use_reentrant=False)
        return images.tanh()


class Renormalised(nn.Module):
    """Running it twice is not running it once: the weight is scaled in place, and rounded each time."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 8, max_norm=0.7)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        words = (images.detach().abs() * 9).long().clamp(max=31)
        return images + self.embed(words).tanh().mean(-1)


class Model(nn.Module):
    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            images = checkpoint(block, images, use_reentrant=False)
        return images


def train(
    model: nn.Module, steps: int, *, begin: Callable[[], None] = lambda: None, autocast: bool = False
) -> list[str]:
    """Losses, gradients, parameters and buffers, bit by bit."""
    torch.manual_seed(5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    seen: list[str] = []
    for _step in range(steps):
        begin()
        images = torch.randn(3, 4, 8, 8, requires_grad=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = model(images).square().mean()
        optimizer.zero_grad()
        loss.backward()
        gradients = [images.grad, *(parameter.grad for parameter in model.parameters())]
        seen += [loss.item().hex(), *(bits(each) for each in gradients if each is not None)]
        optimizer.step()
        seen += [bits(each) for each in model.state_dict().values()]
    return seen


def bits(tensor: torch.Tensor) -> str:
    return tensor.detach().contiguous().numpy().tobytes().hex()


def everything_repeatable(regions: Regions) -> RerunChoice:
    chosen = {
        region.place: frozenset(index for index, repeatable in enumerate(region.repeatable) if repeatable)
        for region in regions.recorded
    }
    return RerunChoice(chosen, frozenset())


STEPS = 5


@pytest.mark.parametrize(
    ("make", "followed"),
    [
        (lambda: Model(Block(), Block()), {0, 1}),
        (lambda: Model(Attention(), Attention(dropout=0)), {0, 1}),
        (lambda: Model(Block(), Nested(), Attention()), {0, 1, 2}),
        (lambda: Model(Block(nn.BatchNorm2d(8)), Block(), Nested(nn.BatchNorm2d(8)), Attention()), {1, 3}),
        (lambda: Model(Attention(), Renormalised(), Block()), {0, 2}),
    ],
    ids=["convolution", "attention", "nested", "statistics", "embedding"],
)
@pytest.mark.parametrize("autocast", [False, True])
def test_numbers_are_those_of_torchs_checkpoint(make: Callable[[], Model], followed: set[int], autocast: bool) -> None:
    torch.manual_seed(1)
    model = make()
    vanilla = train(copy.deepcopy(model), STEPS, autocast=autocast)
    replaced, regions = Replacements(), Regions(lambda: 0)
    steps = iter(range(STEPS))

    def begin() -> None:
        if regions.recorded:
            regions.run_again(everything_repeatable(regions))
        step = next(steps)
        assert regions.watched == (step == 1)
        regions.begin_step(record=step < 2)

    regions.install(replaced)
    try:
        assert train(model, STEPS, begin=begin, autocast=autocast) == vanilla
    finally:
        replaced.undo()
    assert {region.place for region in regions.recorded} == followed
    assert all(any(region.repeatable) for region in regions.recorded)


class Counting(TorchDispatchMode):
    """Which ops run, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ran[func.name()] += 1
        return func(*args, **(kwargs or {}))


def record(regions: Regions, function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> Region:
    for _time in ("watched", "followed"):
        regions.begin_step(record=True)
        checkpoint(function, *inputs, use_reentrant=False)
    return regions.recorded[-1]


def test_only_the_chosen_ops_run_again(regions: Regions) -> None:
    block, images = Block(), torch.randn(2, 4, 8, 8)
    region = record(regions, block, images)
    sigmoid = region.operators.index("aten::sigmoid")
    regions.run_again(choose({sigmoid}, regions.recorded))
    counts = []
    for marked in (False, True):
        regions.begin_step()
        block.zero_grad()
        output = checkpoint(block, images, use_reentrant=False) if marked else block(images)
        with Counting() as backward:
            output.sum().backward()
        counts.append(backward.ran)
    vanilla, again = counts
    ran_again = again - vanilla
    views = {name for name in ran_again if name in ("aten::as_strided", "aten::detach")}
    assert {name: ran_again[name] for name in ran_again if name not in views} == {"aten::sigmoid": 1}


def test_what_never_runs_again(regions: Regions) -> None:
    region = record(regions, nn.Sequential(Block(), Attention()), torch.randn(2, 4, 8, 8))
    repeatable = {name for name, may in zip(region.operators, region.repeatable, strict=True) if may}
    never = {name for name, may in zip(region.operators, region.repeatable, strict=True) if not may}
    assert {"aten::convolution", "aten::gelu", "aten::sigmoid", "aten::mul.Tensor", "aten::clone"} <= repeatable
    assert "aten::relu_" in repeatable  # on a copy of the result
    assert never & {"aten::native_dropout", "aten::bernoulli_.float"}
    plain = record(regions, Attention(dropout=0), torch.randn(2, 4, 8, 8))
    attention = [name for name in plain.operators if "scaled_dot_product" in name]
    assert attention
    assert plain.repeatable[plain.operators.index(attention[0])]  # without dropout it draws nothing


def test_memory_goes_in_forward_and_comes_again_in_backward(regions: Regions) -> None:
    alive: list[StorageWeakRef] = []

    def chain(tensor: torch.Tensor) -> torch.Tensor:
        for _link in range(400):  # more than Python could recurse
            tensor = tensor.exp().clamp(max=1.5)
            alive.append(StorageWeakRef(tensor.untyped_storage()))
        return tensor.sum()

    start = torch.zeros(16, requires_grad=True)
    (expected,) = torch.autograd.grad(chain(start), start)
    region = record(regions, chain, start)
    ops = set(range(len(region.operators)))
    regions.run_again(choose(ops, regions.recorded))
    alive.clear()
    regions.begin_step()
    total = checkpoint(chain, start, use_reentrant=False)
    gc.collect()
    assert sum(not each.expired() for each in alive) == 0
    (gradient,) = torch.autograd.grad(total, start)
    assert torch.equal(gradient, expected)


def gelu_of_sum(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return nn.functional.gelu(tensor * other + other).sum()


def chosen_all(regions: Regions, function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> None:
    record(regions, function, *inputs)
    regions.run_again(everything_repeatable(regions))
    regions.begin_step()


def test_retained_graphs_and_double_backward(regions: Regions) -> None:
    tensor, other = (torch.randn(8, requires_grad=True) for _ in range(2))
    expected = torch.autograd.grad(gelu_of_sum(tensor, other), (tensor, other), create_graph=True)
    expected_second = torch.autograd.grad(expected[0].square().sum(), (tensor, other))
    chosen_all(regions, gelu_of_sum, tensor, other)
    total = checkpoint(gelu_of_sum, tensor, other, use_reentrant=False)
    for _time in range(3):
        again = torch.autograd.grad(total, (tensor, other), retain_graph=True)
        assert all(torch.equal(*pair) for pair in zip(again, expected, strict=True))
    first = torch.autograd.grad(total, (tensor, other), create_graph=True)
    second = torch.autograd.grad(first[0].square().sum(), (tensor, other))
    assert all(torch.equal(*pair) for pair in zip(second, expected_second, strict=True))


def test_an_input_that_the_region_overwrites(regions: Regions) -> None:
    def overwriting(tensor: torch.Tensor, scratch: torch.Tensor) -> torch.Tensor:
        scratch = scratch.clone()
        total = (tensor + scratch).exp()  # needs neither of the two in backward
        scratch.zero_()
        return (total * scratch.add_(2)).sum()

    tensor, scratch = torch.randn(8, requires_grad=True), torch.randn(8)
    (expected,) = torch.autograd.grad(overwriting(tensor, scratch), tensor)
    chosen_all(regions, overwriting, tensor, scratch)
    (gradient,) = torch.autograd.grad(checkpoint(overwriting, tensor, scratch, use_reentrant=False), tensor)
    assert torch.equal(gradient, expected)


def test_in_place_ops_run_again_on_a_copy_of_their_own(regions: Regions) -> None:
    def chained(tensor: torch.Tensor) -> torch.Tensor:
        hidden = tensor * 3
        before = hidden + 1  # read before it is written, and made again after
        hidden.neg_()
        hidden[2:].mul_(2)  # a part of it: that does not run again
        return (hidden.exp() * before.exp()).sum()

    tensor = torch.randn(8, requires_grad=True)
    (expected,) = torch.autograd.grad(chained(tensor), tensor)
    chosen_all(regions, chained, tensor)
    total = checkpoint(chained, tensor, use_reentrant=False)
    for _time in range(2):
        (gradient,) = torch.autograd.grad(total, tensor, retain_graph=True)
        assert torch.equal(gradient, expected)


def runs_of(regions: Regions, function: Callable[..., torch.Tensor], *inputs: torch.Tensor, **options: bool) -> int:
    """How often torch would run a region in forward and backward, once its place is known."""
    runs = 0

    def counted(*inputs: torch.Tensor) -> torch.Tensor:
        nonlocal runs
        runs += 1
        return function(*inputs)

    for _time in ("watched", "known"):
        runs = 0
        regions.begin_step()
        checkpoint(counted, *inputs, use_reentrant=False, **options).sum().backward()
    return runs


def test_regions_that_torch_must_run_twice(regions: Regions) -> None:
    tensor, outside = torch.randn(8, 4, requires_grad=True), torch.zeros(4)
    twice = {
        "an outside tensor": lambda each: each.exp() * outside.add_(1),
        "a view of one": lambda each: each.exp() * outside[1:].mul_(1).sum(),
        "silently": lambda each: nn.functional.batch_norm(each.exp(), outside, torch.ones(4), training=True).exp(),
        "many at once": lambda each: (torch._foreach_add_([outside], 1), each.exp().exp())[1],
    }
    once = {
        "its own": lambda each: (each.exp() * torch.zeros(4).add_(1)).exp_(),
        "a view of its own": lambda each: each.exp() * torch.zeros(9)[1:5].add_(1),
        "random": lambda each: nn.functional.dropout(each.exp()),
    }
    for expected, functions in ((2, twice), (1, once)):
        for case, function in functions.items():
            assert runs_of(regions, function, tensor) == expected, case
    assert runs_of(regions, once["random"], tensor, preserve_rng_state=False) == 2  # torch draws anew


def test_another_function_at_a_known_place_is_watched_first(regions: Regions) -> None:
    tensor, outside = torch.randn(8, requires_grad=True), torch.zeros(8)
    plain, writing = nn.GELU(), nn.GELU()
    writing.register_forward_pre_hook(lambda *_: (outside.add_(1), None)[1])
    for step, (layer, watched) in enumerate([(plain, True), (plain, False), (writing, True), (plain, False)]):
        regions.begin_step()
        outside.zero_()
        checkpoint(layer, tensor, use_reentrant=False).sum().backward()
        assert regions.watched == watched, step
        assert outside.sum() == (16 if layer is writing else 0)
    plain.eval()  # layers may write only while they train
    regions.begin_step()
    checkpoint(plain, tensor, use_reentrant=False)
    assert regions.watched


def test_statistics_that_the_region_has_made(regions: Regions) -> None:
    def normalised(batch: torch.Tensor) -> torch.Tensor:
        mean, variance = torch.zeros(6), torch.ones(6)
        hidden = nn.functional.batch_norm(batch.exp(), mean, variance, training=True)
        return (hidden.exp() * (mean + variance).exp()).sum()

    batch = torch.randn(5, 6, requires_grad=True)
    (expected,) = torch.autograd.grad(normalised(batch), batch)
    region = record(regions, normalised, batch)
    assert region.repeatable[region.operators.index("aten::native_batch_norm")]
    chosen_all(regions, normalised, batch)
    (gradient,) = torch.autograd.grad(checkpoint(normalised, batch, use_reentrant=False), batch)
    assert torch.equal(gradient, expected)


def test_an_input_that_is_overwritten_before_backward_is_an_error(regions: Regions) -> None:
    def shifted(tensor: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        return (tensor + by).exp().sum()

    tensor, by = torch.randn(8, requires_grad=True), torch.randn(8)
    chosen_all(regions, shifted, tensor, by)
    total = checkpoint(shifted, tensor, by, use_reentrant=False)
    by.add_(1)
    with pytest.raises(RuntimeError, match=r"shape \[8\].*modified by an inplace operation.*swap\+recompute"):
        total.backward()


def test_an_exception_in_a_region_ends_it(regions: Regions) -> None:
    def failing(_tensor: torch.Tensor) -> torch.Tensor:
        raise KeyError("mine")

    tensor, other = (torch.randn(8, requires_grad=True) for _ in range(2))
    chosen_all(regions, gelu_of_sum, tensor, other)
    with pytest.raises(KeyError, match="mine"):
        checkpoint(failing, tensor, use_reentrant=False)
    regions.begin_step()
    checkpoint(gelu_of_sum, tensor, other, use_reentrant=False).backward()
    assert tensor.grad is not None


def test_other_ways_to_checkpoint_stay_torchs(regions: Regions) -> None:
    tensor, other = (torch.randn(8, requires_grad=True) for _ in range(2))
    contexts = lambda: create_selective_checkpoint_contexts([torch.ops.aten.mul.Tensor])  # noqa: E731
    chosen_all(regions, gelu_of_sum, tensor, other)
    for options in ({"use_reentrant": True}, {"use_reentrant": False, "context_fn": contexts}):
        regions.begin_step(record=True)
        checkpoint(gelu_of_sum, tensor, other, **options).backward()
        assert regions.recorded == []
    with torch.no_grad():
        regions.begin_step(record=True)
        checkpoint(gelu_of_sum, tensor, other, use_reentrant=False)
    assert regions.recorded == []


def test_a_plan_that_needs_a_region() -> None:
    marked = Region(0, 2, ("aten::mm", "aten::native_dropout", "aten::relu"), (True, False, True))
    choice = choose({1, 2, 3, 4, 9}, [marked])
    assert choice == RerunChoice({0: frozenset({0, 2})}, frozenset({1, 9}))
    assert choice.complaint is not None
    assert "2 ops again that lie in no marked region" in choice.complaint
    assert choose({2}, [marked]).complaint is None


def test_what_a_region_is_given_lives_until_the_end_of_backward() -> None:
    """0 makes a mask, 1 a result of it in a region; the mask dies. 2 is backward of the result, 3 the optimizer."""
    builder, storages = TraceBuilder(), []
    for phase, reads in ((Phase.FORWARD, ()), (Phase.FORWARD, (0,)), (Phase.BACKWARD, (1,)), (Phase.OPTIMIZER, ())):
        builder.begin_op("aten::relu", phase=phase)
        storages.append(builder.allocate(1 << 20, Role.INTERMEDIATE))
        for each in reads:
            builder.access(storages[each], Access.READ)
        builder.access(storages[-1], Access.WRITE | Access.WHOLE)
        builder.end_op()
        for each in reads:
            builder.free(storages[each])
    trace = builder.finish(target="cpu", source="synthetic")
    region = Region(0, 1, ("aten::relu",), (True,))
    held = with_inputs_held(trace, [region])
    check(held)
    assert trace.deaths.tolist() == [1, 2, 4, 4]
    assert held.deaths.tolist() == [2, 2, 4, 4]
    assert held.births.tolist() == trace.births.tolist()
    assert repeatable_ops(trace, [region]).tolist() == [False, True, False, False]


def test_ops_of_a_plan() -> None:
    """0 makes a, 1 makes b from a and frees a, 2 makes c from b and d; backward needs c, which was dropped, and b."""
    builder = TraceBuilder()
    storages = []
    for reads in ((), (0,), (1,)):
        builder.begin_op("aten::relu")
        storages.append(builder.allocate(1 << 20, Role.INTERMEDIATE))
        for each in reads:
            builder.access(storages[each], Access.READ)
        builder.access(storages[-1], Access.WRITE | Access.WHOLE)
        builder.end_op()
        if reads == (0,):
            builder.free(storages[0])
    builder.begin_op("aten::threshold_backward")
    builder.access(storages[2], Access.READ)
    builder.access(storages[1], Access.READ)
    builder.end_op()
    trace = builder.finish(target="cpu", source="synthetic")
    drop = Action(ActionKind.DROP, 2, storages[2], after=True)
    for first, expected in ((2, {2}), (0, {0, 2})):  # 1 makes b, which is still there
        again = Action(ActionKind.RECOMPUTE, 3, storages[2], argument=first)
        plan = Plan.from_actions(trace, [drop, again], planner="by hand", budget_bytes=1 << 30)
        assert ops_of(plan, trace) == expected
