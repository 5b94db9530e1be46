"""Benchmark of what plans a step at once: how long it takes, and how much longer its steps are than those of `best`.

python tools/benchmark_at_once.py [--network bert gpt2 ...] [--cache DIR]

Steps are recorded dry, and planned as sessions do: in chunks, at 75, 50 and 30 % of their peak, by swaps alone.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmark_planners import CASES
from harness import command_line

from umadvise import planners
from umadvise.devices.catalogue import load_device
from umadvise.errors import UmadviseError
from umadvise.planners.at_once import at_once
from umadvise.planners.capacity import Capacity
from umadvise.planners.judging.score import score
from umadvise.records.device import DeviceProfile
from umadvise.records.plan import Plan
from umadvise.records.trace import Trace
from umadvise.training.plans.plan_memory import chunk_capacity

CHUNK_BYTES = 2 << 20
SHARES = (0.75, 0.5, 0.3)
OTHERS = ("belady", "lru", "window", "lms")
Make = Callable[[Trace, DeviceProfile, Capacity], Plan]


def other(name: str, **options: bool) -> Make:
    """A planner of a name."""
    return lambda trace, device, capacity: planners.run(name, trace, device, capacity, **options)


MAKERS: dict[str, Make] = {
    "best": other("best", recompute=False, paging=False),
    "at once": lambda trace, device, capacity: capacity.planned(at_once, trace, device),
    **{name: other(name) for name in OTHERS},
}


def cells(trace: Trace, device: DeviceProfile, capacity: Capacity) -> str:
    """For each planner the milliseconds that it takes, and by how much its step is longer than that of `best`."""
    found: list[str] = []
    least_ns = 0
    for make in MAKERS.values():
        begun = time.perf_counter()
        try:
            plan = make(trace, device, capacity)
            taken_ms = (time.perf_counter() - begun) * 1e3
            step_ns = score(trace, device, plan, capacity=capacity).step_ns or 0
        except UmadviseError:
            found.append(f"{'-':>17}")
            continue
        least_ns = least_ns or step_ns
        found.append(f"{taken_ms:6.0f} ms {step_ns / least_ns - 1:+7.1%}")
    return "  ".join(found)


def main() -> int:
    """Prints a row for each network and budget."""
    parser = command_line(__doc__)
    parser.add_argument("--network", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--cache", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(f"{'network':17}{'ops':>6}{'budget':>8}  " + "  ".join(f"{name:>17}" for name in MAKERS))
        for name in arguments.network:
            trace, device = CASES[name].trace(arguments.cache or Path(folder)), load_device(CASES[name].device)
            for share in SHARES:
                budget_bytes = int(trace.peak_bytes * share)
                capacity = chunk_capacity(trace, budget_bytes=budget_bytes, chunk_bytes=CHUNK_BYTES)
                print(f"{name:17}{len(trace.ops):6}{share:8.0%}  {cells(trace, device, capacity)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
