"""What test_waits.py runs: programs in which memory changes hands all the time, and whose results are known.

Kernels run later, in a thread of their stream, after random delays (STAND_IN_ASYNC, STAND_IN_DELAY_US, STAND_IN_SEED).
Each program prints how many of its results were wrong.
"""

import json
import sys
from collections.abc import Sequence

import torch
from torch import nn

import umadvise

ROUNDS = 12
SIZE = 1 << 20  # of float32, 4 MiB: chunks of its own
BUDGET_BYTES = 40 << 20


def filled(value: float) -> torch.Tensor:
    """One tensor."""
    return torch.full((SIZE,), value, device="cuda")


def busy(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, after the stream has worked for a while."""
    for _ in range(6):
        tensor = tensor * 1
    return tensor


def wrong(results: Sequence[torch.Tensor], values: Sequence[float]) -> int:
    """How many results do not have their value everywhere."""
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
    return wrong(results, range(ROUNDS))


def lent() -> int:
    """A stream works on memory of another one, which frees it and gets it again; it frees nothing itself."""
    umadvise.patch(device="cuda")
    side, results = torch.cuda.Stream(), []
    zeros = torch.zeros(SIZE, device="cuda")
    for index in range(ROUNDS):
        tensor = filled(index)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(6):
                zeros.mul_(1)
            results.append(tensor + zeros)
        tensor.record_stream(side)
        del tensor
        filled(-1)
    return wrong(results, range(ROUNDS))


def swapped() -> int:
    """Two streams that wait for each other work on tensors in turn, of which half fit, and free some meanwhile."""
    with umadvise.session(nn.Linear(2, 2), device="cuda", budget=BUDGET_BYTES, policy="swap", sample_every=0):
        return worked_on_in_turn()


def worked_on_in_turn() -> int:
    """The tensors die when it returns, before the session ends."""
    streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
    values = [float(index) for index in range(16)]
    tensors = [filled(value) for value in values]
    for turn in range(3 * ROUNDS):
        here, one, other = turn % 2, turn % 16, (turn * 7 + 3) % 16
        streams[here].wait_stream(streams[1 - here])
        with torch.cuda.stream(streams[here]):
            tensors[one].add_(100)
            tensors[other].add_(busy(filled(1)))
        values[one] += 100
        values[other] += 1
    return wrong(tensors, values)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps(globals()[sys.argv[1]]()) + "\n")
