"""Benchmark of the simulator of explicit swapping: how long a step takes to simulate, by its number of ops.

python tools/benchmark_simulator.py [--ops 10000 100000 1000000] [--allocator caching] [--json]

The step is synthetic: a chain of ops that each keep an activation, and their backward ops, with every activation
swapped out behind its op and swapped in some ops before it is needed. Exits 3 when a figure is outside its limit:
20 ms for 10,000 ops, 3 s for a million, 1 GiB of memory.
"""

import json
import resource
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from harness import command_line

from umadvise.devices.catalogue import load_device
from umadvise.errors import CheckFailedError
from umadvise.recording.builder import TraceBuilder
from umadvise.records import plan_file, trace_file
from umadvise.records.enums import Phase, Role
from umadvise.records.plan import Action, ActionKind, Plan
from umadvise.records.trace import Access, Trace
from umadvise.simulator.swap import ALLOCATOR_MODELS, AllocatorModel, simulate_swap

LIMIT_S = {10_000: 0.020, 1_000_000: 3.0}
LIMIT_BYTES = 1 << 30
_AHEAD = 12
_BYTES = 24 << 20
_MADE = Access.WRITE | Access.WHOLE


def chain(ops: int) -> Trace:
    """A step of `ops` ops, three accesses each: forward op i keeps activation i, backward op i frees it."""
    half, builder = ops // 2, TraceBuilder()
    parameters = [builder.allocate(_BYTES // 6, Role.PARAMETER) for _ in range(max(half // 5, 1))]

    def run(phase: Phase, duration_ns: int, index: int, *read: int) -> int:
        builder.begin_op("op", phase=phase, duration_ns=duration_ns)
        for storage in read:
            builder.access(storage, Access.READ)
        made = builder.allocate(_BYTES + ((index % 7) << 20), Role.INTERMEDIATE)
        builder.access(made, _MADE)
        builder.end_op()
        return made

    activations = [parameters[0]]
    for index in range(half):
        read = (parameters[index % len(parameters)], activations[-1])
        activations.append(run(Phase.FORWARD, 2_000_000, index, *read))
    gradients: list[int] = []  # the first one comes from nowhere
    for index in reversed(range(half)):
        activation = activations.pop()
        made = run(Phase.BACKWARD, 4_000_000, index, activation, *gradients)
        for storage in (activation, *gradients):
            builder.free(storage)
        gradients = [made]
    builder.free(gradients[0])
    return builder.finish(target="cuda", source="synthetic", workload=f"a chain of {ops} ops")


def swap_everything(trace: Trace, budget_bytes: int) -> Plan:
    """Every activation leaves behind its op and comes back some ops before its backward op."""
    half = len(trace.ops) // 2
    first = int((trace.storages.role == Role.PARAMETER).sum())
    actions = [
        action
        for index in range(half - 4 * _AHEAD)
        for action in (
            Action(ActionKind.SWAP_OUT, index + 1, first + index, after=True),
            Action(ActionKind.SWAP_IN, 2 * half - 1 - index - _AHEAD, first + index),
        )
    ]
    return Plan.from_actions(trace, actions, planner="everything", budget_bytes=budget_bytes)


def write_planned(ops: int, folder: Path) -> None:
    """Leaves the step and its plan in a folder."""
    trace = chain(ops)
    parameters = int(trace.storages.bytes[trace.storages.role == Role.PARAMETER].sum())
    trace_file.write(trace, folder / "trace")
    plan_file.write(swap_everything(trace, parameters + (8 << 30)), folder / "plan")


def measure(ops: int, allocator: AllocatorModel) -> dict[str, float]:
    """Seconds to simulate the step until it is steady, the best of five, and what it was."""
    device = load_device("v100-16gb")
    with tempfile.TemporaryDirectory() as name, ProcessPoolExecutor(1) as pool:
        folder = Path(name)
        pool.submit(write_planned, ops, folder).result()  # apart, as the memory that it takes is not the simulator's
        trace = trace_file.read(folder / "trace")
        plan = plan_file.read(folder / "plan", trace)
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
    parser = command_line(__doc__)
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
