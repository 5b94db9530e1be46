"""What test_waits.py runs: programs in which memory changes hands all the time, and whose results are known.

Kernels run later, in a thread of their stream, after random delays (STAND_IN_ASYNC, STAND_IN_DELAY_US, STAND_IN_SEED).
Each program prints how many of its results were wrong.
"""

import json
import sys

import torch
from torch import nn

import umadvise

ROUNDS = 12
SIZE = 1 << 20  # of float32, 4 MiB: two chunks
MIB = 1 << 20


def filled(value: float) -> torch.Tensor:
    return torch.full((SIZE,), value, device="cuda")


def busy(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, after the stream has worked for a while."""
    for _ in range(6):
        tensor = tensor * 1
    return tensor


def wrong(results: list[torch.Tensor], values: list[float]) -> int:
    torch.cuda.synchronize()
    return sum(not bool((result == value).all()) for result, value in zip(results, values, strict=True))


def handed_over() -> int:
    """What one stream frees, another one gets."""
    umadvise.patch(device="cuda")
    side, results = torch.cuda.Stream(), []
    for index in range(ROUNDS):
        results.append(busy(filled(index)))
        with torch.cuda.stream(side):
            for _ in range(4):
                filled(-1)
    return wrong(results, list(range(ROUNDS)))


def lent() -> int:
    """A stream works on memory of another one, which frees it and gets it again."""
    umadvise.patch(device="cuda")
    side, results = torch.cuda.Stream(), []
    for index in range(ROUNDS):
        tensor = filled(index)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            zeros = busy(torch.zeros(SIZE, device="cuda"))
            results.append(tensor + zeros)
        tensor.record_stream(side)
        del tensor
        filled(-1)
    return wrong(results, list(range(ROUNDS)))


def swapped() -> int:
    """Twice as much as fits, in two streams that wait for each other; some of it is freed while it is worked on."""
    streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
    with umadvise.session(nn.Linear(2, 2), device="cuda", budget=40 * MIB, policy="swap", sample_every=0):
        tensors = [filled(index) for index in range(16)]
        for turn in range(3 * ROUNDS):
            here, there = streams[turn % 2], streams[(turn + 1) % 2]
            here.wait_stream(there)
            with torch.cuda.stream(here):
                tensors[turn % 16].add_(100)
                tensors[(turn * 7 + 3) % 16].add_(busy(filled(1)))
        streams[0].wait_stream(streams[1])
        values: list[float] = [index for index in range(16)]
        for turn in range(3 * ROUNDS):
            values[turn % 16] += 100
            values[(turn * 7 + 3) % 16] += 1
        return wrong(tensors, values)


def lent_chunks() -> int:
    """As `lent`, with memory that leaves."""
    with umadvise.session(nn.Linear(2, 2), device="cuda", budget=40 * MIB, policy="swap", sample_every=0):
        side, results, values = torch.cuda.Stream(), [], []
        others = [filled(200 + index) for index in range(8)]
        for index in range(ROUNDS):
            tensor = filled(index)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                zero = busy(torch.zeros(1 << 18, device="cuda"))
                results.append(tensor[:1000] + zero[:1000])
            tensor.record_stream(side)
            del tensor
            others[index % 8].add_(0)
            values.append(index)
        return wrong([*results, *others], [*values, *range(200, 208)])


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(globals()[sys.argv[1]]()))
