"""What sessions leave behind in a process: heap in use, resident memory, descriptors, threads, kept files."""

import ctypes
import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

import umadvise

_OWN, _FILES = ("RssAnon", "RssFile"), ("RssShmem",)
_FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _Mallinfo(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIELDS.split())


class Footprint(NamedTuple):
    """One process, now."""

    heap_bytes: int
    resident_bytes: int
    descriptors: int
    threads: int
    kept_files: int


def footprint(*, device: bool = True) -> Footprint:
    """What the process has once all garbage is gone.

    Args:
        device: whether the emulated device's memory, a file in memory, counts as resident.
    """
    gc.collect()
    library = ctypes.CDLL(None)
    library.malloc_trim(0)
    library.mallinfo2.restype = _Mallinfo
    heap = library.mallinfo2()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return Footprint(
        heap_bytes=heap.uordblks + heap.hblkhd,
        resident_bytes=sum(int(status[each].split()[0]) << 10 for each in (*_OWN, *(_FILES if device else ()))),
        descriptors=len(list(Path("/proc/self/fd").iterdir())),
        threads=int(status["Threads"]),
        kept_files=sum(path.is_file() for path in Path(os.environ["XDG_CACHE_HOME"], "umadvise").rglob("*.*")),
    )


def train(policy: str, *, steps: int = 3, rows: Callable[[int], int] = lambda _: 64) -> None:
    """One session whose steps do not fit, but on "resident"."""
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(6)))
    optimizer = torch.optim.Adam(model.parameters())
    budget = "64MiB" if policy == "resident" else "8MiB"
    with umadvise.session(model, optimizer, device="emulated", budget=budget, policy=policy) as um:
        for step in range(steps):
            with um.step():
                model(um.to_device(torch.randn(rows(step), 256))).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()


def empty(policy: str) -> None:
    """One session in which nothing happens."""
    with umadvise.session(torch.nn.Linear(4, 4), device="emulated", budget="64MiB", policy=policy):
        pass


def grown(kind: str, policy: str, first: int, last: int) -> list[int]:
    """By how much what is left behind grows from so many sessions to so many."""
    run = {"train": train, "empty": empty}[kind]
    for _ in range(first):
        run(policy)
    before = footprint()
    for _ in range(last - first):
        run(policy)
    return [new - old for old, new in zip(before, footprint(), strict=True)]
