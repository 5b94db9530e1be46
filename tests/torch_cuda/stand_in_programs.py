"""What test_stand_ins.py runs, torch alone: `python stand_in_programs.py NAME` prints what it saw as JSON."""

import ctypes
import itertools
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional

HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_kept: list[Any] = []


def network(name: str) -> tuple[nn.Module, torch.Tensor]:
    if name == "mlp":
        parts = [nn.Linear(32, 64), nn.ReLU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10)]
        return nn.Sequential(*parts), torch.randn(20, 32)
    layer = nn.TransformerEncoderLayer(32, 4, dim_feedforward=64, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(50, 32), encoder, nn.Flatten(), nn.Linear(32 * 8, 10)), torch.randint(50, (20, 8))


def losses(name: str, device: str) -> list[str]:
    torch.manual_seed(0)
    model, inputs = network(name)
    model, inputs, labels = model.to(device), inputs.to(device), (torch.arange(20) % 10).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found = []
    for _ in range(4):
        loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item().hex())
    return found


def training() -> Any:
    return {name: {device: losses(name, device) for device in ("cpu", "cuda")} for name in ("mlp", "transformer")}


def sparse_losses(kind: str, device: str) -> list[str]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(30, 8, sparse=True), nn.Flatten(), nn.Linear(8 * 4, 3)).to(device)
    sparse, dense = list(model[0].parameters()), list(model[2].parameters())
    optimizers = [getattr(torch.optim, kind)(sparse, lr=0.1), torch.optim.Adam(dense, lr=0.1)]
    tokens, labels = torch.randint(30, (12, 4)).to(device), (torch.arange(12) % 3).to(device)
    found = []
    for _ in range(3):
        loss = functional.cross_entropy(model(tokens), labels)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        found.append(loss.item().hex())
    return found


def sparse_gradients() -> Any:
    kinds = ("SparseAdam", "SGD")
    return {kind: {device: sparse_losses(kind, device) for device in ("cpu", "cuda")} for kind in kinds}


def averages(device: str) -> list[float]:
    """What averages of weights call: scalars that are integers, and operands without memory of their own."""
    x, ones = torch.arange(4.0).to(device), torch.ones(4).to(device)
    moved = torch.ones(1, 4).expand(3, 4).to(device, non_blocking=True)
    results = [
        x.addcdiv(ones, ones + 1, value=3),
        torch._foreach_addcdiv([x], [ones], [ones + 1], [2])[0],
        torch.addmm(x.expand(3, 4), moved, torch.eye(4).to(device)),
        torch.zeros(3, 4).to(device).copy_(torch.arange(4.0).expand(3, 4)),
    ]
    return [number for result in results for number in result.flatten().tolist()]


def averaging() -> Any:
    return {device: averages(device) for device in ("cpu", "cuda")}


def expandable_segments() -> Any:
    x = torch.ones(1 << 20, device="cuda")
    y = x * 2
    del x
    return [y[-1].item(), torch.cuda.memory_allocated()]


def waited() -> list[str]:
    ask = ctypes.CDLL("libcuda_kernels.so").cuda_kernels_waited
    ask.restype = ctypes.c_char_p
    return [name for name in ask().decode().split(",") if name]


def waits() -> Any:
    losses("transformer", "cuda")
    before = waited()
    torch.ones(4, device="cuda").nonzero()
    return {"training": before, "nonzero": waited()}


def error_of(call: Callable[[], object]) -> str:
    try:
        call()
        torch.cuda.synchronize()
    except RuntimeError as error:
        return str(error)
    return "no error"


def unknown_kernel() -> Any:
    x = torch.ones(8, device="cuda")
    first = error_of(lambda: torch.ops.aten._fused_dropout(x, 0.5))
    return {"first": first, "then": error_of(lambda: x + 1)}


def bad_index() -> Any:
    x, index = torch.ones(8, device="cuda"), torch.tensor([9], device="cuda")
    return error_of(lambda: x[index])


def bad_shapes() -> Any:
    x = torch.ones(8, device="cuda")
    others = (torch.ones(3, device="cuda"), torch.ones(8))
    return [error_of(lambda: x + others[0]), error_of(lambda: x.add_(others[0])), error_of(lambda: x + others[1])]


# ---- streams -------------------------------------------------------------------------------------------------------


def call_in_stream(stream: torch.cuda.Stream, function: Callable[[], object]) -> None:
    kept = HOST_FUNCTION(lambda _: function() and None)
    _kept.append(kept)
    assert ctypes.CDLL("libcudart.so.13").cudaLaunchHostFunc(ctypes.c_void_p(stream.cuda_stream), kept, None) == 0


@contextmanager
def blocked(stream: torch.cuda.Stream) -> Iterator[None]:
    """Nothing of what the stream is given in the block runs before its end."""
    released = threading.Event()
    call_in_stream(stream, released.wait)
    yield
    released.set()


def number_at(tensor: torch.Tensor) -> float:
    return ctypes.c_float.from_address(tensor.data_ptr()).value


def asynchronous() -> Any:
    x = torch.ones(8, device="cuda")
    torch.cuda.synchronize()
    with blocked(torch.cuda.current_stream()):
        x.add_(1)
        before = (number_at(x), torch.cuda.current_stream().query())
    torch.cuda.synchronize()
    return {"before": before, "after": (number_at(x), torch.cuda.current_stream().query())}


def at_once() -> Any:
    return number_at(torch.ones(8, device="cuda").add_(1))


def two_streams(waits: str) -> Any:
    """What a side stream reads of a tensor that the default stream is still to write."""
    x, side = torch.ones(8, device="cuda"), torch.cuda.Stream()
    torch.cuda.synchronize()
    with blocked(torch.cuda.current_stream()):
        x.add_(1)
        if waits == "waits":
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x * 10
        if waits != "waits":
            side.synchronize()
    torch.cuda.synchronize()
    return y[0].item()


def freed_too_early(recorded: str) -> Any:
    """What a blocked side stream reads of memory that the default stream has freed and taken again."""
    x, side = torch.ones(1 << 18, device="cuda"), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side), blocked(side):
        y = x * 10
        if recorded == "recorded":
            x.record_stream(side)
        del x
        with torch.cuda.stream(torch.cuda.default_stream()):
            torch.full((1 << 18,), 7.0, device="cuda")
            torch.cuda.current_stream().synchronize()
    torch.cuda.synchronize()
    return y[0].item()


def gaps_us() -> Any:
    """How long each of twenty pieces of work waited in its stream after the one before."""
    stream, times = torch.cuda.Stream(), [time.monotonic_ns()]
    with blocked(stream):
        times[0] = time.monotonic_ns()
    for _ in range(20):
        call_in_stream(stream, lambda: times.append(time.monotonic_ns()))
    stream.synchronize()
    return [(end - start) / 1000 for start, end in itertools.pairwise(times)]


# ---- random numbers, devices, attributes ---------------------------------------------------------------------------


def randomness() -> Any:
    x = torch.ones(64, device="cuda")

    def drawn(seed: int) -> list[list[float]]:
        torch.cuda.manual_seed(seed)
        return [functional.dropout(x, 0.5).tolist(), torch.randn(4, device="cuda").tolist()]

    torch.manual_seed(7)
    on_cpu = torch.rand(2)
    torch.manual_seed(7)
    first = drawn(1)
    state = torch.cuda.get_rng_state()
    following = torch.randn(4, device="cuda")
    torch.cuda.set_rng_state(state)
    return {
        "state": bool((torch.randn(4, device="cuda") == following).all()),
        "again": drawn(1) == first,
        "otherwise": drawn(2) == first,
        "zeros": first[0].count(0.0),
        "cpu": bool((torch.rand(2) == on_cpu).all()),
        "drawn": first,
    }


def two_devices() -> Any:
    x = torch.full((4,), 2.0, device="cuda:1")
    y = x * 3
    z = y.to("cuda:0") + 1
    return {
        "count": torch.cuda.device_count(),
        "devices": [str(tensor.device) for tensor in (y, z)],
        "values": [y.tolist(), z.tolist()],
        "allocated": [torch.cuda.memory_allocated(device) for device in (0, 1)],
        "mixed": error_of(lambda: y + z),
    }


def attribute(number: str) -> Any:
    """As the runtime says, and the driver, by the function that torch links."""
    torch.ones(1, device="cuda")
    told = [ctypes.c_int(-1), ctypes.c_int(-1)]
    libraries = (
        ctypes.CDLL("libcudart.so.13").cudaDeviceGetAttribute,
        ctypes.CDLL("libcuda.so.1").cuDeviceGetAttribute,
    )
    for ask, value in zip(libraries, told, strict=True):
        assert ask(ctypes.byref(value), int(number), 0) == 0
    return [value.value for value in told]


def copies() -> Any:
    """What pageable memory that changes right after its copy, and page-locked memory, come to."""
    stream, source = torch.cuda.current_stream(), torch.ones(8)
    pinned = torch.ones(8).pin_memory()
    with blocked(stream):
        staged, direct = torch.empty(8, device="cuda"), torch.empty(8, device="cuda")
        staged.copy_(source, non_blocking=True)
        direct.copy_(pinned, non_blocking=True)
        source.fill_(5)
        pinned.fill_(5)
    return {"staged": staged[0].item(), "direct": direct[0].item(), "back": direct.cpu()[0].item()}


if __name__ == "__main__":
    name, *words = sys.argv[1:]
    json.dump(globals()[name](*words), sys.stdout)
