"""Ops on CUDA storages that lie in page-locked memory of the host, as JSON: `python page_locked.py cuda PART`.

The engine points storages there, and what has no other place is used where it lies. Each op runs twice on the device
and once with its operands there; where the device repeats itself to the last bit, so must the third.
"""

import ctypes
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import parts
import torch
from driver import DriverError
from parts import MIB
from sizes import by_kind, small
from torch import nn
from torch.nn import functional

import umadvise
from umadvise._native.library import hooks_library
from umadvise._native.structures import structure
from umadvise.devices.rungs import RESIDENT
from umadvise.torch_seam.runtime import HOST, address_of, current, routed, storage_address

WORDS = by_kind(cuda=1 << 22, emulated=1 << 12)
"""Elements of a tensor."""
CAPACITY = "256MiB"
"""Of the emulated device."""
_CLOSE = 1e-3
"""Relative to the largest element, where the device does not repeat itself."""

Tensors = list[torch.Tensor]
Op = Callable[[int], tuple[Tensors, Callable[[], Tensors]]]
"""By the number of elements: operands that shall lie there, and the op with its results."""
_OWNERS = {
    "remember": ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p),
    "repoint": ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p),
    "forget": ctypes.CFUNCTYPE(None, ctypes.c_void_p),
    "drop_references": ctypes.CFUNCTYPE(None),
}
"""Of um_owner_functions."""


class Trial:
    """Runs ops on one patched device."""

    def __init__(self, kind: str) -> None:
        self.kind, self.on_gpu = kind, kind == "cuda"
        umadvise.patch(kind if self.on_gpu else umadvise.EmulatedDevice(capacity=CAPACITY))
        current().set_policy(RESIDENT)
        functions = structure("um_owner_functions").from_address(hooks_library().um_hooks_owner_functions())
        self._owners = {name: make(getattr(functions, name)) for name, make in _OWNERS.items()}

    def all(self, ops: dict[str, Op]) -> dict[str, Any]:
        """What becomes of each."""
        return {name: self._compared(op) for name, op in ops.items()}

    def _compared(self, op: Op) -> dict[str, Any]:
        try:
            expected, _, _ = self._run(op, there=False)
            again, device_ns, _ = self._run(op, there=False)
            found, elapsed_ns, moved = self._run(op, there=True)
        except Exception as error:  # of one op: the others go on, unless the device is lost
            return {"right": False, "reason": f"{type(error).__name__}: {error}"[:500]}
        repeats, same = _same_bits(expected, again), _same_bits(expected, found)
        difference = max(map(_difference, expected, found))
        right = same or (not repeats and difference <= _CLOSE)
        times = {"moved": moved, "device_ns": device_ns, "page_locked_ns": elapsed_ns}
        return {"right": right, "repeats": repeats, "same_bits": same, "difference": difference, **times}

    def _run(self, op: Op, *, there: bool) -> tuple[Tensors, int, int]:
        """Results, nanoseconds until they were there, and how many storages were moved for it."""
        torch.manual_seed(0)
        with torch.device("cuda" if self.on_gpu else "cpu"):
            operands, work = op(WORDS[self.kind])
        with self._page_locked(operands if there else []) as moved:
            started = time.perf_counter_ns()
            results = work()
            self._synchronize()
            elapsed = time.perf_counter_ns() - started
        return [result.detach().cpu() for result in results], elapsed, moved

    @contextmanager
    def _page_locked(self, tensors: Iterable[torch.Tensor]) -> Iterator[int]:
        """Has the storages of tensors, so many, lie in page-locked memory, then on the device again."""
        moved = []
        try:
            for storage in {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}.values():
                shown, address = _bytes_of(storage), storage_address(storage)
                with routed(HOST):
                    host = torch.empty(storage.nbytes(), dtype=torch.uint8, device="cpu", pin_memory=self.on_gpu)
                host.copy_(shown)
                self._synchronize()
                owner = self._owners["remember"](storage._cdata, address)
                if owner is None or not self._owners["repoint"](owner, address, address_of(host)):
                    raise RuntimeError("the storage refuses another address")
                moved.append((owner, shown, address, host))
            self._owners["drop_references"]()
            yield len(moved)
        finally:
            self._synchronize()
            for owner, shown, address, host in moved:
                self._owners["repoint"](owner, address_of(host), address)
                self._owners["forget"](owner)
                self._owners["drop_references"]()
                shown.copy_(host)

    def _synchronize(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _same_bits(ones: Tensors, others: Tensors) -> bool:
    def bits(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.contiguous().reshape(-1).view(torch.uint8)

    return all(torch.equal(bits(one), bits(other)) for one, other in zip(ones, others, strict=True))


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    largest = max(float(one.double().abs().max()), 1.0)
    difference = float((one.double() - other.double()).abs().max()) / largest
    return difference if math.isfinite(difference) else sys.float_info.max


# ---- ops -------------------------------------------------------------------------------------------------------------


def _square(words: int) -> int:
    return math.isqrt(words)


def _between(work: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], *, both: bool = False) -> Op:
    """Of a square tensor there and another one, which lies there too or on the device."""

    def op(words: int) -> tuple[Tensors, Callable[[], Tensors]]:
        side = _square(words)
        there, other = torch.rand(side, side), torch.rand(side, side)
        return [there, other] if both else [there], lambda: [work(there, other)]

    return op


def _hosts(tensor: torch.Tensor, *, pinned: bool) -> torch.Tensor:
    """Host memory with other numbers than the tensor has."""
    with routed(HOST):
        made = torch.arange(tensor.numel(), dtype=torch.float32, device="cpu").reshape(tensor.shape)
        return made.pin_memory() if pinned and tensor.is_cuda else made


def _to_host(there: torch.Tensor) -> torch.Tensor:
    host = _hosts(there, pinned=True).copy_(there, non_blocking=True)
    if there.is_cuda:
        torch.cuda.synchronize()
    return host


COPIES: dict[str, Op] = {
    "from the device": _between(lambda there, here: there.copy_(here)),
    "to the device": _between(lambda there, here: here.copy_(there)),
    "from there to there": _between(lambda there, other: there.copy_(other), both=True),
    "strided from the device": _between(lambda there, here: there.copy_(here.t())),
    "strided to the device": _between(lambda there, here: here.copy_(there.t())),
    "converted to the device": _between(lambda there, _: there.to(torch.bfloat16)),
    "converted from the device": _between(lambda there, here: there.copy_(here.to(torch.bfloat16))),
    "from pageable host memory": _between(lambda there, _: there.copy_(_hosts(there, pinned=False))),
    "from page-locked host memory": _between(
        lambda there, _: there.copy_(_hosts(there, pinned=True), non_blocking=True)
    ),
    "to pageable host memory": _between(lambda there, _: there.cpu()),
    "to page-locked host memory": _between(lambda there, _: _to_host(there)),
    "clone": _between(lambda there, _: there.clone()),
    "fill_": _between(lambda there, _: there.fill_(3)),
    "zero_": _between(lambda there, _: there.zero_()),
    "cat": _between(lambda there, other: torch.cat([there, other]), both=True),
    "item": _between(lambda there, _: torch.tensor(there[1, 2].item())),
}


def _convolution(words: int) -> tuple[Tensors, Callable[[], Tensors]]:
    side = max(8, _square(words // 64))
    images, weight = torch.rand(4, 16, side, side), torch.rand(16, 16, 3, 3).requires_grad_()

    def work() -> Tensors:
        output = functional.conv2d(images, weight, padding=1)
        return [output, *torch.autograd.grad(output.sum(), weight)]

    return [images, weight], work


COMPUTE: dict[str, Op] = {
    "add_": _between(lambda there, here: there.add_(here)),
    "sum": _between(lambda there, _: there.sum(0)),
    "softmax": _between(lambda there, _: there.softmax(1)),
    "sort": _between(lambda there, _: there.sort(1).values),
    "matrix product": _between(lambda there, other: there @ other, both=True),
    "matrix product into there": _between(lambda there, here: torch.mm(here, here, out=there)),
    "matrix product in bf16": _between(lambda there, other: there.bfloat16() @ other.bfloat16(), both=True),
    "convolution, forward and backward": _convolution,
}


def _added(work: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor], dtype: torch.dtype) -> Op:
    """Small integers are added to few places there, by many threads: every order gives the same sum."""

    def op(words: int) -> tuple[Tensors, Callable[[], Tensors]]:
        # Over the link an atomic takes its time; and sums of more are no exact numbers of the small types.
        count = words // 16 if dtype.itemsize >= 4 else 4096
        there, places = torch.zeros(64, dtype=dtype), torch.arange(count) % 64
        values = (torch.arange(count) // 64 % 2).to(dtype)
        return [there, places, values], lambda: [work(there, places, values)]

    return op


def _atomics() -> dict[str, Op]:
    works: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "index_add_": lambda there, places, values: there.index_add_(0, places, values),
        "scatter_add_": lambda there, places, values: there.scatter_add_(0, places, values),
        "index_put_": lambda there, places, values: there.index_put_((places,), values, accumulate=True),
        "scatter_reduce_": lambda there, places, values: there.scatter_reduce_(0, places, values, "amax"),
    }
    dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32)
    found = {
        f"{name}, {str(dtype).removeprefix('torch.')}": _added(work, dtype)
        for name, work in works.items()
        for dtype in dtypes
    }
    return found | {"bincount": _bins}


def _bins(words: int) -> tuple[Tensors, Callable[[], Tensors]]:
    places = torch.arange(words) % 64
    return [places], lambda: [torch.bincount(places, minlength=64)]


def _embedding(*, rows: int, tokens: int) -> Op:
    """The weight, its gradient, which is added to, and the tokens lie there."""

    def op(_words: int) -> tuple[Tensors, Callable[[], Tensors]]:
        weight = torch.rand(rows, 32).requires_grad_()
        weight.grad = torch.ones(rows, 32)
        places = torch.randint(rows, (tokens,))

        def work() -> Tensors:
            functional.embedding(places, weight).sum().backward()
            assert weight.grad is not None
            return [weight.grad]

        return [weight, weight.grad, places], work

    return op


def _recurrent(kind: type[nn.LSTM] | type[nn.GRU]) -> Op:
    """cuDNN's: all weights, which are parts of one storage, and the input lie there."""

    def op(_words: int) -> tuple[Tensors, Callable[[], Tensors]]:
        network = kind(32, 64, num_layers=2, bidirectional=True)
        inputs, parameters = torch.rand(12, 8, 32), list(network.parameters())

        def work() -> Tensors:
            output = network(inputs)[0]
            return [output, *torch.autograd.grad(output.sum(), parameters)]

        return [inputs, *parameters], work

    return op


GRADIENTS: dict[str, Op] = {
    "embedding, few tokens": _embedding(rows=50, tokens=200),
    "embedding, many tokens": _embedding(rows=50, tokens=20000),
    "LSTM": _recurrent(nn.LSTM),
    "GRU": _recurrent(nn.GRU),
}


def _optimizer(kind: Callable[..., torch.optim.Optimizer], **options: Any) -> Op:
    """Parameters, gradients and state lie there."""

    def op(words: int) -> tuple[Tensors, Callable[[], Tensors]]:
        parameters = [torch.rand(size).requires_grad_() for size in (words // 4, 1000, 7)]
        for parameter in parameters:
            parameter.grad = torch.rand_like(parameter)
        optimizer = kind(parameters, lr=0.1, **options)
        optimizer.step()  # makes the state
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        state = [each for of in optimizer.state.values() for each in of.values() if isinstance(each, torch.Tensor)]
        there = [*parameters, *gradients, *(each for each in state if each.numel() > 1)]

        def work() -> Tensors:
            nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
            optimizer.step()
            return there

        return there, work

    return op


OPTIMIZERS: dict[str, Op] = {
    "AdamW, foreach": _optimizer(torch.optim.AdamW, foreach=True),
    "AdamW, fused": _optimizer(torch.optim.AdamW, fused=True),
    "SGD, foreach": _optimizer(torch.optim.SGD, momentum=0.9, foreach=True),
}


# ---- streams ---------------------------------------------------------------------------------------------------------

_BUDGET_BYTES, _TENSOR_BYTES, _TENSORS, _ROUNDS = 40 * MIB, 4 * MIB, 12, 8


def streams(kind: str) -> Any:
    """A stream is told of what lies on the host and works on it, then it is freed: its memory is nobody's too early.

    Raises:
        DriverError: the device has no streams.
    """
    if kind != "cuda":
        raise DriverError("torch has no streams on the emulated device")
    with umadvise.session(
        nn.Linear(2, 2), device="cuda", budget=_BUDGET_BYTES, policy="swap", sample_every=0
    ) as session:
        wrong = sum(_lent(float(number)) for number in range(_ROUNDS))
        left = session.swap_counters().swap_outs
    return {"record_stream": {"right": wrong == 0 and left > 0, "wrong": wrong, "swap_outs": left}}


def _lent(value: float) -> int:
    """Wrong numbers of one round."""

    def filled(number: float) -> torch.Tensor:
        return torch.full((_TENSOR_BYTES // 4,), number, device="cuda")

    here, side, source = torch.cuda.current_stream(), torch.cuda.Stream(), filled(value)
    others = [filled(-1) for _ in range(_TENSORS)]  # it leaves
    side.wait_stream(here)
    source.record_stream(side)
    with torch.cuda.stream(side):
        if not small():
            torch.cuda._sleep(20_000_000)  # about ten milliseconds
        others[0].mul_(1)
        worked = [source * 1 for _ in range(4)]
    others[0].record_stream(side)
    del source, others
    again = [filled(-2) for _ in range(_TENSORS)]
    here.wait_stream(side)
    wrong = sum(int((each != value).sum()) for each in worked) + sum(int((each != -2).sum()) for each in again)
    for each in worked:
        each.record_stream(here)
    return wrong


PARTS: dict[str, Callable[[str], Any]] = {
    "copies": lambda kind: Trial(kind).all(COPIES),
    "compute": lambda kind: Trial(kind).all(COMPUTE),
    "atomics": lambda kind: Trial(kind).all(_atomics()),
    "gradients": lambda kind: Trial(kind).all(GRADIENTS),
    "optimizers": lambda kind: Trial(kind).all(OPTIMIZERS),
    "streams": streams,
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    code = parts.main(PARTS)
    sys.stdout.flush()
    os._exit(code)  # threads of autograd may still be in C++, which Python's end cannot unwind
