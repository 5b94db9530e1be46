"""What umadvise's hooks add to an op and to an allocation, as JSON: `python overhead.py cuda patched`.

`vanilla` is torch alone. `patched` measures twice, without the interposer and with it. Times are medians in nanoseconds
of the thread that calls; the device's own work comes after.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
from sizes import by_kind

import umadvise
from umadvise import _native
from umadvise.torch_seam.runtime import current

ROUNDS = by_kind(cuda=11, emulated=3)
CALLS = by_kind(cuda=500, emulated=200)
"""In a round; so few that a GPU's queue is never full."""


def operations(device: str) -> dict[str, Callable[[], object]]:
    """Small ops: what they take is what it takes to call them."""
    where = "cuda" if device == "cuda" else "cpu"
    first, second = torch.ones(16, device=where), torch.ones(16, device=where)
    result, matrix = torch.empty(16, device=where), torch.ones(8, 8, device=where)
    several = [torch.ones(16, device=where) for _ in range(20)]
    return {
        "add into a tensor": lambda: torch.add(first, second, out=result),
        "mm into a new tensor": lambda: torch.mm(matrix, matrix),
        "_foreach_add_ of 20 tensors": lambda: torch._foreach_add_(several, 1.0),
        "empty of 1 KiB": lambda: torch.empty(256, device=where),
        "empty of 4 MiB": lambda: torch.empty(1 << 20, device=where),
    }


def per_call_ns(call: Callable[[], object], device: str) -> int:
    """The median over rounds, each of which ends with an empty queue."""
    samples = []
    for _ in range(ROUNDS[device]):
        started = time.perf_counter_ns()
        for _ in range(CALLS[device]):
            call()
        samples.append((time.perf_counter_ns() - started) // CALLS[device])
        if device == "cuda":
            torch.cuda.synchronize()
    return int(statistics.median(samples[1:]))


def measured(device: str) -> dict[str, int]:
    """All of them."""
    with torch.no_grad():
        return {name: per_call_ns(call, device) for name, call in operations(device).items()}


def patched(device: str) -> dict[str, dict[str, int]]:
    """In memory of umadvise, without the interposer and with it."""
    umadvise.patch(device if device == "cuda" else umadvise.EmulatedDevice(capacity="64MiB"))
    _native.interpose(None)
    allocator = measured(device)
    _native.interpose(current().device)
    return {"allocator_ns": allocator, "interposed_ns": measured(device)}


if __name__ == "__main__":
    kind, mode = sys.argv[1:]
    torch.set_num_threads(1)
    print(json.dumps(patched(kind) if mode == "patched" else {"vanilla_ns": measured(kind)}))
