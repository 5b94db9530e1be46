"""What random programs are made of: instructions on tensors that are alive, by name."""

import gc
from collections.abc import Callable, Iterable

import numpy as np
import torch
from fuzz_program import COLUMNS, KEPT, ROWS, Choose, Instruction, World, WorldError, small_network

INSTRUCTIONS: dict[str, tuple[Instruction, int]] = {}
"""By name, with the weight with which a program has it."""


def instruction(weight: int) -> Callable[[Instruction], Instruction]:
    """Registers one."""

    def register(function: Instruction) -> Instruction:
        INSTRUCTIONS[function.__name__] = (function, weight)
        return function

    return register


# ---- new memory ----------------------------------------------------------------------------------------------------


@instruction(4)
def make(world: World, choose: Choose) -> None:
    """A tensor out of nothing."""
    shape = (choose.choice(ROWS), COLUMNS)
    makers: list[Callable[[], torch.Tensor]] = [
        lambda: torch.zeros(shape),
        lambda: torch.full(shape, choose.random()),
        lambda: torch.rand(shape),
        lambda: torch.empty(shape).fill_(choose.random()),
        lambda: torch.arange(shape[0] * COLUMNS, dtype=torch.float32).reshape(shape).sin_(),
        lambda: torch.empty(shape).normal_(),
    ]
    world.add(choose.choice(makers)())


@instruction(6)
def combine(world: World, choose: Choose) -> None:
    """Two make a third."""
    one, other = world.pair(choose)
    works: list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = [
        torch.add, torch.mul, torch.maximum, torch.sub, torch.atan2, torch.hypot,
    ]  # fmt: skip
    world.add(choose.choice(works)(one, other).tanh())


@instruction(2)
def multiply(world: World, choose: Choose) -> None:
    """Matrices."""
    one, other = world.matrix(choose), world.matrix(choose)
    world.add(torch.tanh(one @ other[:COLUMNS].t())[:, :COLUMNS])


@instruction(3)
def join(world: World, choose: Choose) -> None:
    """cat, stack, and taking apart again."""
    one, other = world.matrix(choose)[:500], world.matrix(choose)[:500]
    rows = min(len(one), len(other))
    works: list[Callable[[], Iterable[torch.Tensor]]] = [
        lambda: [torch.cat([one, other])],
        lambda: [torch.stack([one[:rows], other[:rows]], dim=choose.randrange(3))],
        lambda: world.matrix(choose).split(max(1, choose.choice(ROWS) // 2))[:3],
        lambda: [part.clone() for part in world.matrix(choose).chunk(2, dim=1)],
    ]
    world.add(*choose.choice(works)())


@instruction(2)
def change_type(world: World, choose: Choose) -> None:
    """Other types and layouts, and back."""
    source = world.pick(choose)
    if choose.random() < 0.3:
        world.add(source > 0.1, (source * 100).to(torch.int32))
    world.add(source.to(choose.choice([torch.bfloat16, torch.float64, torch.float16])).to(torch.float32).contiguous())


@instruction(2)
def gather(world: World, choose: Choose) -> None:
    """Indices that the data chooses."""
    source = world.matrix(choose)
    rows = source[:, 0].argsort()
    works: list[Callable[[], Iterable[torch.Tensor]]] = [
        lambda: [source[rows[: choose.choice(ROWS)]]],
        lambda: [source.index_select(1, torch.arange(0, COLUMNS, 3))],
        lambda: [torch.zeros_like(source).index_add_(0, rows, source)],
        lambda: [source[source > 0.3]],
        lambda: [torch.where(source > 0, source, source.flip(0)), *source.sort(dim=0)[:1]],
    ]
    world.add(*choose.choice(works)())


# ---- writes --------------------------------------------------------------------------------------------------------


@instruction(8)
def write(world: World, choose: Choose) -> None:
    """In place, whole tensors and parts of them."""
    target = world.pick(choose)
    source = world.pick(choose)
    works: list[Callable[[], object]] = [
        lambda: target.mul_(0.5).add_(0.25),
        lambda: target.cumsum_(0).tanh_(),
        lambda: target.zero_(),
        lambda: target.view(-1)[::7].copy_(source.reshape(-1)[:1]),
        lambda: target.view(-1)[3:-3].clamp_(-0.5, 0.5),
        lambda: target.masked_fill_(target > 0.9, 0.125),
        lambda: target[..., :5].sin_(),
        lambda: target.index_fill_(0, torch.tensor([0, len(target) - 1]), 0.5),
        lambda: target.t()[2:9].neg_(),
        lambda: torch.add(target, 1, out=target),
        lambda: torch.sigmoid(target, out=torch.empty(0)),
        lambda: target.random_(0, 7).div_(9),
    ]
    with torch.set_grad_enabled(choose.random() < 0.3):
        choose.choice(works)()


@instruction(3)
def activate_in_place(world: World, choose: Choose) -> None:
    """Activations that overwrite their operand, of which autograd keeps a copy where backward needs the old value."""
    weight = choose.choice(list(world.weights))
    hidden = world.matrix(choose).detach()[: choose.choice(ROWS)] @ weight.t()[:, :COLUMNS]
    works: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: torch.nn.functional.silu(x, inplace=True),
        lambda x: torch.nn.functional.hardswish(x, inplace=True),
        lambda x: torch.nn.functional.elu(x, inplace=True),
        lambda x: torch.nn.functional.relu_(x),
        lambda x: x.sin_(),
        lambda x: x.mul_(x.clone()),  # not of itself: torch's graph would keep itself alive
    ]
    for _ in range(3):
        hidden = choose.choice(works)(hidden * 0.5)
    world.add(hidden)
    hidden.mean().backward()


@instruction(3)
def key_by_address(world: World, choose: Choose) -> None:
    """A cache that tells tensors apart by address and keeps each one with its key, as savers and offloaders do."""
    copies: dict[tuple[object, ...], torch.Tensor] = {}
    live = [tensor.detach() for tensor in world.live if tensor.numel() > 0]
    for tensor in live:
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        copies.setdefault(key, tensor.clone())
    world.log.append(f"{len(copies)} of {len(live)} live tensors differ by address")
    chosen = choose.choice(live)
    world.add(copies[chosen.data_ptr(), chosen.shape, chosen.stride(), chosen.dtype])


@instruction(3)
def write_lists(world: World, choose: Choose) -> None:
    """The ops on lists that optimizers use."""
    floats = [one for one in world.live if one.dtype == torch.float32 and not one.requires_grad]
    targets = choose.sample(floats, min(len(floats), 3))
    sources = [one.detach().tanh() for one in targets]
    works: list[Callable[[], object]] = [
        lambda: torch._foreach_add_(targets, sources, alpha=0.5),
        lambda: torch._foreach_mul_(targets, 0.75),
        lambda: torch._foreach_lerp_(targets, sources, 0.1),
        lambda: torch._foreach_addcdiv_(targets, sources, torch._foreach_add(torch._foreach_abs(sources), 1.0)),
        lambda: torch._foreach_zero_(targets[:1]),
        lambda: torch._foreach_copy_(targets, sources),
        lambda: world.add(*torch._foreach_norm(sources)),
    ]
    with torch.no_grad():
        choose.choice(works)()


@instruction(2)
def resize(world: World, choose: Choose) -> None:
    """A storage that grows, shrinks, or is let go and comes back, as sharded training does."""
    target = world.matrix(choose).detach().clone()
    before = target.numel()
    work = choose.randrange(3)
    if work == 0:
        target.resize_(choose.choice(ROWS), COLUMNS)
        target.view(-1)[before:].fill_(0.5)
    elif work == 1:
        size = target.untyped_storage().nbytes()
        target.untyped_storage().resize_(0)
        target.untyped_storage().resize_(size)
        target.fill_(0.25)
    else:
        target.resize_(0)
        target.resize_(ROWS[2], COLUMNS).fill_(0.75)
    world.add(target)


# ---- views ---------------------------------------------------------------------------------------------------------


@instruction(6)
def view(world: World, choose: Choose) -> None:
    """Views, of views too; what they were taken of may go before them."""
    source = world.pick(choose)
    views: list[Callable[[], torch.Tensor]] = [
        lambda: source[len(source) // 2 :],
        lambda: source[::2],
        lambda: source.t(),
        lambda: source.view(-1, 2),
        lambda: source.narrow(0, 0, max(1, len(source) // 3)),
        lambda: source.unsqueeze(0).expand(3, *source.shape)[1],
        lambda: source.detach(),
        lambda: source.as_strided((20, 30), (7, 1)),
        lambda: source.view(torch.int32).view(torch.float32),
        lambda: source.diagonal(),
        lambda: source.unfold(0, 2, 3)[0],
        lambda: source.movedim(0, -1),
    ]
    world.add(choose.choice(views)())


@instruction(2)
def set_storage(world: World, choose: Choose) -> None:
    """Another tensor on the same storage, by `set_` or `.data`."""
    source = world.matrix(choose).detach()
    if choose.random() < 0.5:
        other = torch.empty(0)
        other.set_(source.untyped_storage(), COLUMNS, (len(source) - 1, COLUMNS), (COLUMNS, 1))
        world.add(other)
    else:
        other = torch.zeros(3)
        other.data = source
        world.add(other)


@instruction(8)
def drop(world: World, choose: Choose) -> None:
    """Frees, in any order; rarely with all cycles."""
    for _ in range(choose.randrange(1, 4)):
        if len(world.live) > KEPT:
            world.live.pop(choose.randrange(len(world.live)))
    if choose.random() < 0.02:
        gc.collect()


# ---- the host ------------------------------------------------------------------------------------------------------


@instruction(3)
def read(world: World, choose: Choose) -> None:
    """Values on the host."""
    source = world.pick(choose).detach()
    reads: list[Callable[[], object]] = [
        lambda: source.reshape(-1)[-1].item(),
        lambda: source.double().sum().item(),
        lambda: source.reshape(-1)[:3].tolist(),
        lambda: torch.equal(source, source.clone()),
        lambda: bool((source > 0).any()),
        lambda: repr(source.reshape(-1)[:8]),
        lambda: bytes(source.contiguous().numpy().tobytes()[:64]),
    ]
    world.log.append(repr(choose.choice(reads)()))


@instruction(1)
def share(world: World, choose: Choose) -> None:
    """A numpy array on a tensor's memory, written from there."""
    if len(world.arrays) < 2:
        world.arrays.append(world.matrix(choose).detach().numpy())
    array = world.arrays[-1]
    np.tanh(array, out=array)
    array[0] = 0.5


@instruction(1)
def let_go(world: World, _choose: Choose) -> None:
    """The oldest array ends."""
    del world.arrays[:1]


# ---- autograd ------------------------------------------------------------------------------------------------------


@instruction(4)
def backward(world: World, choose: Choose) -> None:
    """Gradients of some layers, whose tensors may stay alive afterwards."""
    x = small_network(world, choose)
    if choose.random() < 0.4:
        world.add(x)
    loss = x.square().mean()
    if choose.random() < 0.3:
        loss.backward(retain_graph=True)
    loss.backward()
    world.log.append(repr(loss.item()))


@instruction(1)
def fail_in_backward(world: World, choose: Choose) -> None:
    """An exception in the middle of backward."""

    def fail(_: torch.Tensor) -> None:
        raise WorldError("on purpose")

    x = small_network(world, choose)
    x.register_hook(lambda gradient: gradient * 2)
    y = torch.tanh(x * 2)
    x.register_hook(fail)
    y.sum().backward()


@instruction(1)
def no_gradients(world: World, choose: Choose) -> None:
    """The same layers without autograd."""
    with torch.inference_mode() if choose.random() < 0.3 else torch.no_grad():
        x = small_network(world, choose)
        world.log.append(repr(x.double().sum().item()))
    if not x.is_inference():
        world.add(x)


@instruction(1)
def refuse(world: World, choose: Choose) -> None:
    """An op that torch refuses in the middle of things."""
    one = world.matrix(choose)
    torch.cat([one, one[:, :3]], dim=0)
