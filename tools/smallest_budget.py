"""The smallest budget in which policy `swap` trains six networks of small tensors, beside what no budget can be below.

python tools/smallest_budget.py ["GPT-2 small" ...] [--small] [--bar]

Of each network three steps run in the emulated device. The columns: the need (the most that its tensors take at once),
whether half of that runs, the working set of the largest op (what one op is given and makes, in bytes), the bar (1.1
times that and 16 MiB, the constant that small tensors may take), the smallest budget that was seen to run, and what
that is of the working set and the constant. With `--bar` none below the bar is tried. Losses are compared with those of
plain PyTorch, bit by bit.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from floor_networks import NETWORKS, FloorTraining

import umadvise
from umadvise.errors import UmadviseError
from umadvise.records.trace import EventKind, Trace
from umadvise.torch_seam import runtime

MIB = 1 << 20
CHUNK_BYTES = 2 * MIB
CONSTANT_BYTES = 16 * MIB
"""The most that a budget may need beside the largest op's working set (docs/driving.md)."""
STEPS = 3
_PART = 100
"""The search ends within one part in so many."""
_ABOVE = 1.1


@dataclass(frozen=True)
class Floor:
    """What was found of a network.

    Attributes:
        need_bytes: the most bytes of its tensors at once.
        op_bytes: bytes of the largest op's working set.
        half_runs: whether half of the need runs.
        smallest_bytes: the smallest budget in bytes that was seen to run.
    """

    need_bytes: int
    op_bytes: int
    half_runs: bool
    smallest_bytes: int

    @property
    def bar_bytes(self) -> int:
        """What the smallest budget may be at most."""
        return round(_ABOVE * (self.op_bytes + CONSTANT_BYTES))


def largest_working_set(trace: Trace) -> int:
    """The most bytes that one op of a step is given and has made at once; shared storages count once."""
    given: list[set[int]] = [set() for _ in range(len(trace.ops))]
    for op, storage in zip(trace.accesses.op.tolist(), trace.accesses.storage.tolist(), strict=True):
        if trace.births[storage] < op:
            given[op].add(storage)
    sizes: list[int] = trace.storages.bytes.tolist()
    now = [sum(sizes[storage] for storage in each) for each in given]
    most = list(now)
    columns = (getattr(trace.events, name).tolist() for name in ("op", "inside", "kind", "storage"))
    for op, inside, kind, storage in zip(*columns, strict=True):
        if op < 0 or not inside or kind not in (EventKind.ALLOCATE, EventKind.FREE):
            continue
        now[op] += sizes[storage] if kind == EventKind.ALLOCATE else -sizes[storage]
        most[op] = max(most[op], now[op])
    return max(most)


def losses(training: FloorTraining, session: umadvise.session | None = None) -> list[torch.Tensor]:
    """The losses of a few steps, in a session or without one."""
    found = []
    for number in range(STEPS):
        with session.step() if session is not None else torch.enable_grad():
            loss = training.loss(number)
            loss.backward()
            training.optimizer.step()
            training.optimizer.zero_grad()
        found.append(loss.detach().cpu().clone())
    return found


def _made(network: str, *, small: bool) -> FloorTraining:
    torch.manual_seed(0)
    return NETWORKS[network](small=small)


def _unpatch() -> None:
    if runtime.is_patched():
        umadvise.unpatch()


def recorded(network: str, *, small: bool) -> Trace:
    """A steady step of a network."""
    try:
        training = _made(network, small=small)
        with umadvise.session(
            training.model, training.optimizer, device="emulated", capacity="4GiB", policy="advise", record=True
        ) as um:
            losses(training, um)
        return um.trace(step=STEPS)
    finally:
        _unpatch()


def runs(network: str, budget_bytes: int, expected: Sequence[torch.Tensor], *, small: bool) -> bool:
    """Whether a network trains in a budget.

    Raises:
        AssertionError: with other losses than those of plain PyTorch.
    """
    try:
        training = _made(network, small=small)
        with umadvise.session(
            training.model, training.optimizer, device="emulated", policy="swap", budget=budget_bytes
        ) as um:
            found = losses(training, um)
    except (UmadviseError, torch.OutOfMemoryError):
        return False
    finally:
        _unpatch()
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True)), network
    return True


def floor_of(network: str, *, small: bool, search: bool = True) -> Floor:
    """What a network needs; without a `search` its smallest budget is the bar's, if that runs."""
    expected = losses(_made(network, small=small))
    trace = recorded(network, small=small)
    need_bytes, op_bytes = int(trace.peak_bytes), largest_working_set(trace)

    def does(budget_bytes: int) -> bool:
        return runs(network, budget_bytes // CHUNK_BYTES * CHUNK_BYTES, expected, small=small)

    found = Floor(need_bytes, op_bytes, does(need_bytes // 2), 0)
    high = next(each for each in (found.bar_bytes, 2 * found.bar_bytes, 4 * need_bytes) if does(each))
    low = op_bytes // 2
    while search and high - low > max(CHUNK_BYTES, high // _PART):
        middle = (low + high) // 2
        low, high = (low, middle) if does(middle) else (middle, high)
    return Floor(need_bytes, op_bytes, found.half_runs, high // CHUNK_BYTES * CHUNK_BYTES)


def main() -> None:
    """Prints a row for each network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help="of: " + ", ".join(NETWORKS))
    parser.add_argument("--small", action="store_true", help="networks of the same kinds, for tests")
    parser.add_argument("--bar", action="store_true", help="try the bar, and nothing below it")
    options = parser.parse_args()
    words = ("need MiB", "half runs", "op MiB", "bar MiB", "smallest MiB", "of op + 16 MiB")
    print("| network | " + " | ".join(words) + " |\n" + "|---" * (len(words) + 1) + "|")
    for network in options.networks or NETWORKS:
        floor = floor_of(network, small=options.small, search=not options.bar)
        sizes = (floor.need_bytes, floor.op_bytes, floor.bar_bytes, floor.smallest_bytes)
        need, op, bar, smallest = (f"{size / MIB:.1f}" for size in sizes)
        share = floor.smallest_bytes / (floor.op_bytes + CONSTANT_BYTES)
        half = "yes" if floor.half_runs else "no"
        print(f"| {network} | {need} | {half} | {op} | {bar} | {smallest} | {share:.2f} |", flush=True)


if __name__ == "__main__":
    main()
