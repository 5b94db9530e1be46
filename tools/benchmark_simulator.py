"""Benchmark of the simulator of explicit swapping: how long a step takes to simulate, by its number of ops.

python tools/benchmark_simulator.py [--ops 10000 100000 1000000] [--allocator caching] [--json]

The step is synthetic: a chain of ops that each keep an activation, and their backward ops, with every activation
swapped out behind its op and swapped in some ops before it is needed. Exits 3 when a figure is outside its limit:
20 ms for 10,000 ops, 3 s for a million, 1 GiB of memory.
"""

import argparse
import json
import resource
import sys
import time
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from umadvise.devices.catalogue import load_device
from umadvise.errors import CheckFailedError
from umadvise.records.enums import Role
from umadvise.records.plan import ActionKind, Actions, Plan
from umadvise.records.trace import Access, Accesses, EventKind, Events, Ops, Storages, Table, Trace, check
from umadvise.simulator.swap import ALLOCATOR_MODELS, AllocatorModel, simulate_swap

LIMIT_S = {10_000: 0.020, 1_000_000: 3.0}
LIMIT_BYTES = 1 << 30
Rows = TypeVar("Rows", bound=Table)
_AHEAD = 12
_BYTES = 24 << 20


def chain(ops: int) -> Trace:
    """A step of `ops` ops, three accesses each: forward op i keeps activation i, backward op i frees it."""
    half = ops // 2
    parameters = max(half // 5, 1)
    forward, backward = np.arange(half), np.arange(half)[::-1]
    activation = parameters + np.arange(half)
    gradient = activation + half
    count = parameters + 2 * half
    sizes = np.full(count, _BYTES)
    sizes[:parameters] = _BYTES // 6
    sizes[activation] += (np.arange(half) % 7) << 20
    read, made = Access.READ, Access.WRITE | Access.WHOLE
    storage = np.concatenate(
        [
            np.stack([forward % parameters, np.where(forward > 0, activation - 1, 0), activation], axis=1),
            np.stack([activation[backward], gradient[np.minimum(backward + 1, half - 1)], gradient[backward]], axis=1),
        ]
    )
    flags = np.tile([read, read, made], (2 * half, 1))
    flags[half, 1] = made  # the first gradient comes from nowhere
    return Trace(
        target="cuda",
        source="synthetic",
        device="",
        torch_version="",
        workload=f"a chain of {ops} ops",
        strings=("",),
        storages=_table(
            Storages,
            count,
            bytes=sizes,
            role=np.where(np.arange(count) < parameters, Role.PARAMETER, Role.INTERMEDIATE),
            successor=np.full(count, -1),
        ),
        ops=_table(
            Ops,
            2 * half,
            phase=np.repeat([1, 2], half),
            step=np.ones(2 * half),
            duration_ns=np.repeat([2_000_000, 4_000_000], half),
            flops=np.full(2 * half, -1),
        ),
        accesses=_table(
            Accesses,
            6 * half,
            op=np.repeat(np.arange(2 * half), 3),
            storage=storage.ravel(),
            bytes=sizes[storage.ravel()],
            flags=flags.ravel(),
        ),
        events=_events(half, parameters, activation, gradient),
    )


def _table(made: type[Rows], rows: int, /, **columns: NDArray[Any]) -> Rows:
    """A table of which only some columns are not 0."""
    return made(**{name: columns.get(name, np.zeros(rows)) for name in made.DTYPES})


def _events(half: int, parameters: int, activation: NDArray[Any], gradient: NDArray[Any]) -> Events:
    """Each op makes one storage; backward op i frees activation i and the gradient that it was given."""
    backward = np.arange(half)[::-1]
    given = np.append(gradient[-1:], gradient[:0:-1])
    storage = np.stack([gradient[backward], activation[backward], given], axis=1).ravel()
    kind = np.tile([EventKind.ALLOCATE, EventKind.FREE, EventKind.FREE], half)
    op = np.repeat(half + np.arange(half), 3)
    keep = np.arange(3 * half) != 2  # nothing was given to the first backward op
    op = np.concatenate([np.full(parameters, -1), np.arange(half), op[keep], [2 * half - 1]])
    kind = np.concatenate([np.full(parameters + half, EventKind.ALLOCATE), kind[keep], [EventKind.FREE]])
    storage = np.concatenate([np.arange(parameters), activation, storage[keep], gradient[:1]])
    inside = (kind == EventKind.ALLOCATE) & (op >= 0)
    return _table(Events, len(op), kind=kind, op=op, inside=inside, storage=storage)


def swap_everything(trace: Trace, budget_bytes: int) -> Plan:
    """Every activation leaves behind its op and comes back some ops before its backward op."""
    half = len(trace.ops) // 2
    first = int((trace.storages.role == Role.PARAMETER).sum())
    index = np.arange(half - 4 * _AHEAD)
    out, back = index + 1, 2 * half - 1 - index - _AHEAD
    op = np.concatenate([out, back])
    after = np.repeat([1, 0], len(index))
    order = np.argsort(op * 2 + after, kind="stable")
    storage = (first + np.concatenate([index, index]))[order]
    return Plan(
        planner="everything",
        budget_bytes=budget_bytes,
        options=MappingProxyType({}),
        trace_digest=trace.digest,
        actions=_table(
            Actions,
            len(storage),
            kind=np.repeat([ActionKind.SWAP_OUT, ActionKind.SWAP_IN], len(index))[order],
            op=op[order],
            after=after[order],
            storage=storage,
            bytes=trace.storages.bytes[storage],
        ),
    )


def measure(ops: int, allocator: AllocatorModel) -> dict[str, float]:
    """Seconds to simulate the step until it is steady, the best of five, and what it was."""
    device = load_device("v100-16gb")
    trace = chain(ops)
    check(trace)
    parameters = int(trace.storages.bytes[trace.storages.role == Role.PARAMETER].sum())
    plan = swap_everything(trace, parameters + (8 << 30))
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        made = simulate_swap(trace, device, plan, allocator=allocator, spans=False)
        seconds.append(time.perf_counter() - begin)
    return {
        "ops": ops,
        "accesses": len(trace.accesses),
        "actions": len(plan),
        "iterations": made.result.iterations,
        "seconds": min(seconds),
        "step_s": made.step_ns / 1e9,
        "stalled_share": (made.result.wait_copy_ns + made.result.wait_room_ns) / made.step_ns,
    }


def main() -> int:
    """Measures, prints, and judges."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--allocator", choices=ALLOCATOR_MODELS, default="exact")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [measure(ops, options.allocator) for ops in options.ops]
    memory_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if options.json:
        print(json.dumps({"schema": "umadvise.benchmark-simulator/1", "rows": rows, "memory_bytes": memory_bytes}))
    else:
        for row in rows:
            print(
                f"{row['ops']:>9} ops {row['actions']:>9} actions {row['iterations']} iterations: "
                f"{row['seconds'] * 1e3:9.1f} ms, {row['seconds'] / row['ops'] * 1e9:6.0f} ns an op; "
                f"a step of {row['step_s']:.1f} s, {row['stalled_share']:.1%} stalled"
            )
        print(f"memory {memory_bytes / 2**20:.0f} MiB")
    slow = [row for row in rows if row["seconds"] > LIMIT_S.get(int(row["ops"]), float("inf"))]
    return CheckFailedError.exit_code if slow or memory_bytes > LIMIT_BYTES else 0


if __name__ == "__main__":
    sys.exit(main())
