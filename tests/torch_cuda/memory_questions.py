"""What torch says of memory: the same requests in plain torch and under umadvise, in any kind of memory, on any GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from several import main
from torch import nn

import umadvise

MIB = 1 << 20
COMPARED = [
    f"{what}.all.{key}"
    for what in ("allocation", "requested_bytes")
    for key in ("current", "peak", "allocated", "freed")
]
SIZES = (3 * MIB, 5 * MIB + 13, 1000, 24 * MIB)


@contextmanager
def under(memory: str, ordinal: int = 0, budget: str | None = None) -> Iterator[None]:
    """Plain torch, patch() alone, memory after unpatch(), or a session."""
    device = f"cuda:{ordinal}"
    if memory in ("patched", "unpatched"):
        umadvise.patch(device=device, budget=budget)
        if memory == "unpatched":
            umadvise.unpatch()
        yield
        if memory == "patched":
            umadvise.unpatch()
    elif memory == "plain":
        yield
    else:
        with umadvise.session(nn.Linear(2, 2), device=device, policy=memory, sample_every=0):
            yield


def counted(ordinal: int, since: dict[str, int]) -> dict[str, int]:
    stats = torch.cuda.memory_stats(ordinal)
    return {name: stats[name] - since.get(name, 0) for name in COMPARED}


def asked(memory: str, ordinal: str) -> Any:
    """What is counted of four tensors, of which two go, and one comes again; and of peaks that start again."""
    index = int(ordinal)
    with under(memory, index):
        torch.cuda.init()
        torch.cuda.reset_peak_memory_stats(index)
        torch.cuda.reset_accumulated_memory_stats(index)
        before = {name: torch.cuda.memory_stats(index)[name] for name in COMPARED if name.endswith(("current", "peak"))}
        tensors = [torch.zeros(size, dtype=torch.uint8, device=f"cuda:{index}") for size in SIZES]
        all_there = counted(index, before)
        del tensors[1], tensors[2]
        tensors.append(torch.ones(7 * MIB, dtype=torch.uint8, device=f"cuda:{index}"))
        some_gone = counted(index, before)
        torch.cuda.reset_peak_memory_stats(index)
        del tensors[0]
        peak_again = counted(index, before)
        kept = {
            "allocated": torch.cuda.memory_allocated(index) >= 7 * MIB,
            "reserved": torch.cuda.memory_reserved(index) >= torch.cuda.memory_allocated(index),
            "most reserved": torch.cuda.max_memory_reserved(index) >= torch.cuda.max_memory_allocated(index),
            "of the other": torch.cuda.memory_allocated(1 - index),
            "summary": "Requested memory" in torch.cuda.memory_summary(index),
        }
        return {
            "steps": [all_there, some_gone, peak_again],
            "kept": kept,
            "keys": sorted(torch.cuda.memory_stats(index)),
            "accelerator": by_accelerator(index),
        }


def by_accelerator(index: int) -> bool:
    """torch.accelerator says the same in its own words."""
    ours, theirs = torch.cuda, torch.accelerator
    same = [
        theirs.memory_allocated(index) == ours.memory_allocated(index),
        theirs.max_memory_allocated(index) == ours.max_memory_allocated(index),
        theirs.memory_reserved(index) == ours.memory_reserved(index),
        theirs.max_memory_reserved(index) == ours.max_memory_reserved(index),
        theirs.memory_stats(index) == ours.memory_stats(index),
        theirs.get_memory_info(index) == ours.mem_get_info(index),
    ]
    theirs.reset_peak_memory_stats(index)
    same.append(ours.max_memory_allocated(index) == ours.memory_allocated(index))
    theirs.reset_accumulated_memory_stats(index)
    same.append(ours.memory_stats(index)["allocation.all.allocated"] == 0)
    return all(same)


def given_back(memory: str) -> Any:
    """What empty_cache(), in both words, leaves of what is reserved and nothing uses."""
    seen = []
    with under(memory):
        for give_back in (torch.cuda.empty_cache, torch.accelerator.empty_cache):
            tensors = [torch.ones(16 * MIB, device="cuda") for _ in range(3)]
            seen.append(torch.cuda.memory_reserved() >= 3 * 64 * MIB)
            del tensors
            torch.cuda.synchronize()
            give_back()
            seen.append(torch.cuda.memory_reserved() < 64 * MIB)
    return seen


def free(budget: str) -> Any:
    """mem_get_info() of both GPUs, before and while 24 MiB are held on each."""
    torch.cuda.empty_cache()  # or the other GPU's plain tensor takes memory that torch already holds
    with under("patched", budget=budget if budget != "none" else None):
        before = [torch.cuda.mem_get_info(index) for index in (0, 1)]
        tensors = [torch.ones(6 * MIB, device=f"cuda:{index}") for index in (0, 1)]
        now = [torch.cuda.mem_get_info(index) for index in (0, 1)]
        del tensors
    return {"before": before, "now": now, "total": torch.cuda.get_device_properties(0).total_memory}


def out_of_memory(memory: str) -> Any:
    """More than the GPU has, and then something that fits."""
    with under(memory):
        torch.cuda.init()
        before = torch.cuda.memory_stats()["num_ooms"]
        try:
            torch.empty(1 << 42, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            message = str(error)
        return {
            "message": message,
            "after": torch.ones(1000, device="cuda").sum().item(),
            "num_ooms": torch.cuda.memory_stats()["num_ooms"] - before,
        }


if __name__ == "__main__":
    main(globals())
