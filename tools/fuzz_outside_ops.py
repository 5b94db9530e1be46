"""Instructions of random programs that use memory outside of ops: raw pointers, lists, system calls, signals."""

import ctypes
import faulthandler
import os
import signal
import socket
import tempfile
from collections.abc import Callable

import numpy as np
import torch
from fuzz_instructions import instruction
from fuzz_program import COLUMNS, ROWS, Choose, World

from umadvise.torch_seam.runtime import address_of

_PIECE_BYTES = 60_000
"""What a pipe takes at once."""


def _span(tensor: torch.Tensor, choose: Choose) -> tuple[int, int]:
    """Address and bytes of some elements, which lie one after the other."""
    first = choose.randrange(tensor.numel())
    count = choose.randrange(1, tensor.numel() - first + 1)
    return address_of(tensor) + first * tensor.element_size(), count * tensor.element_size()


def _solid(world: World, choose: Choose) -> torch.Tensor:
    tensor = world.pick(choose)
    return tensor if tensor.is_contiguous() else world.kept[choose.randrange(len(world.kept))]


def _pattern(byte_count: int, choose: Choose) -> np.ndarray:
    """Floats between 0 and 1."""
    return ((np.arange(byte_count // 4, dtype=np.float32) * choose.randrange(1, 50)) % 97) / 97


@instruction(5)
def poke(world: World, choose: Choose) -> None:
    """An extension writes to what it was given, or moves bytes from one tensor to another."""
    address, byte_count = _span(_solid(world, choose), choose)
    if choose.random() < 0.6:
        data = _pattern(byte_count, choose)
        ctypes.memmove(address, data.ctypes.data, data.nbytes)
    else:
        other, others = _span(_solid(world, choose), choose)
        ctypes.memmove(address, other, min(byte_count, others))


@instruction(4)
def peek(world: World, choose: Choose) -> None:
    """An extension reads."""
    address, byte_count = _span(_solid(world, choose), choose)
    world.log.append(f"bytes: {hash(ctypes.string_at(address, min(byte_count, 1 << 20)))}")


@instruction(4)
def make_by_hand(world: World, choose: Choose) -> None:
    """An extension makes a tensor and fills it."""
    made = torch.empty(choose.choice(ROWS), COLUMNS)
    data = _pattern(made.numel() * 4, choose)
    ctypes.memmove(address_of(made), data.ctypes.data, data.nbytes)
    world.add(made)


@instruction(3)
def make_of_lists(world: World, choose: Choose) -> None:
    """Torch's constructors fill memory in no op."""
    rows = choose.choice(ROWS[:4])
    numbers: list[float] = _pattern(rows * COLUMNS * 4, choose).tolist()
    makers: list[Callable[[], torch.Tensor]] = [
        lambda: torch.tensor(numbers),
        lambda: torch.as_tensor(numbers, dtype=torch.float32),
        lambda: torch.FloatTensor(numbers),
        lambda: world.pick(choose).detach().new_tensor(numbers),
        lambda: (
            torch.sparse_coo_tensor(torch.arange(len(numbers))[None], torch.tensor(numbers), (len(numbers),))
            .coalesce()
            .values()
            .clone()
        ),
    ]
    world.add(choose.choice(makers)().reshape(rows, COLUMNS))


@instruction(3)
def index_by_lists(world: World, choose: Choose) -> None:
    """Python's lists, ranges and bools as indices, which torch makes tensors of in no op."""
    x = world.matrix(choose).detach()
    rows = [choose.randrange(len(x)) for _ in range(choose.choice(ROWS[:4]))]

    def written() -> torch.Tensor:
        made = x.clone()
        made[sorted(set(rows))] = choose.random()
        return made

    works: list[Callable[[], torch.Tensor]] = [
        lambda: x[rows],
        lambda: x[[index % 3 != 0 for index in range(len(x))]],
        lambda: x[range(len(x) - 1, -1, -1)],
        lambda: x.reshape(-1)[[(index * 7) % x.numel() for index in range(270_000)]],
        written,
    ]
    world.add(choose.choice(works)())


@instruction(3)
def look_oddly(world: World, choose: Choose) -> None:
    """Views that torch makes whole by copies of its own, beside those that kernels understand."""
    one, other = world.pair(choose)
    x = torch.complex(one.detach(), other.detach())
    views: list[Callable[[], torch.Tensor]] = [
        lambda: x.conj().imag.clone(),
        lambda: x.conj().new_empty(x.numel()).copy_(x).real.clone(),
        lambda: torch.vdot(x, x.conj()).real.reshape(1).expand(COLUMNS).clone(),
        lambda: x.conj().imag.new_zeros(x.numel()) + x.imag,
        lambda: torch.as_strided(one.detach(), (one.numel() // 2,), (2,)).clone(),
        lambda: one.detach().view(torch.uint8)[1:-3].view(-1)[: 4 * (one.numel() - 1)].to(torch.float32),
        lambda: one.detach().flip(0).expand(2, -1).clone().reshape(-1),
    ]
    world.add(choose.choice(views)())


@instruction(2)
def call_the_system(world: World, choose: Choose) -> None:
    """Files, pipes and sockets read into tensors, and write what is in them."""
    x = _solid(world, choose)
    if x.requires_grad:
        return
    flat = x.reshape(-1)
    view = flat.numpy().data.cast("B")[: 4 * flat.numel()]
    data = _pattern(min(len(view), 1 << 20), choose).tobytes()
    way = choose.randrange(3)
    if way == 0:
        with tempfile.TemporaryFile(buffering=0) as file:
            written = file.write(view[: len(data)])
            file.seek(0)
            world.log.append(f"file: {written} {hash(file.read())}")
            file.seek(0)
            file.write(data)
            file.seek(0)
            file.readinto(view[: len(data)])
    elif way == 1:
        reading, writing = os.pipe()
        os.write(writing, data[:_PIECE_BYTES])
        os.readv(reading, [view[:_PIECE_BYTES]])
        os.write(writing, view[-_PIECE_BYTES:])
        world.log.append(f"pipe: {hash(os.read(reading, _PIECE_BYTES))}")
        os.close(reading)
        os.close(writing)
    else:
        one, other = socket.socketpair()
        with one, other:
            one.sendall(data[:_PIECE_BYTES])
            other.recv_into(view[:_PIECE_BYTES], min(_PIECE_BYTES, len(data)))
            other.sendall(view[-_PIECE_BYTES:])
            world.log.append(f"socket: {hash(one.recv(_PIECE_BYTES))}")


@instruction(2)
def play_with_signals(world: World, choose: Choose) -> None:
    """Handlers that come and go, as libraries and test runners have them."""
    work = choose.randrange(4)
    if work == 0:
        signal.signal(signal.SIGSEGV, signal.getsignal(signal.SIGSEGV) or signal.SIG_DFL)
    elif work == 1:
        faulthandler.enable()
        faulthandler.disable()
    elif work == 2:
        for number in (signal.SIGSEGV, signal.SIGTERM):
            before = signal.getsignal(number)
            signal.signal(number, signal.SIG_DFL)
            signal.signal(number, before if before is not None else signal.SIG_DFL)
    else:
        seen: list[float] = []
        tensor = world.pick(choose).detach()
        before = signal.signal(signal.SIGALRM, lambda *_: seen.append(float(tensor.sum())))
        signal.setitimer(signal.ITIMER_REAL, 0.0005)
        total = tensor.abs().sum()
        while not seen:
            total = total + tensor.reshape(-1)[:1000].sum() * 0
        signal.signal(signal.SIGALRM, before)
        world.log.append(f"alarm: {seen[0].hex()} {float(total).hex()}")
