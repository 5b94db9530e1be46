"""What the interposer adds to an op, against torch alone and against a Python TorchDispatchMode, measured in one run.

    python tools/benchmark_interposer.py [--json FILE] [--ratios FILE]

Times are CPU time of the thread for one small op, the median over rounds; the three ways take turns within a round. All
tensors are on the emulated device and resident, so that the whole of the guard runs for each op. Then the same for ops
that follow a program, and for its actions.
"""

import statistics
import sys
from collections.abc import Callable
from typing import Any

import executor_overhead
import torch
from harness import add_results, command_line, cpu_ns, write_results
from torch.utils._python_dispatch import TorchDispatchMode

import umadvise
from umadvise import _native
from umadvise.torch_seam.runtime import current

ROUNDS = 15
OPS = 5000
GOAL_NS = 500


class PassThrough(TorchDispatchMode):
    """The least that a Python observer can do."""

    def __init__(self) -> None:
        """Nothing to prepare."""
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the op."""
        return function(*args, **(kwargs or {}))


def measure(op: Callable[[], object]) -> tuple[float, float, float]:
    """Medians for torch alone, with the interposer, and with the Python mode."""
    device = current().device
    rounds: list[tuple[float, float, float]] = []
    for _ in range(ROUNDS):
        _native.interpose(None)
        alone = cpu_ns(op, OPS)
        with PassThrough():
            python = cpu_ns(op, OPS // 10)
        _native.interpose(device)
        rounds.append((alone, cpu_ns(op, OPS), python))
    return tuple(statistics.median(column) for column in zip(*rounds[1:], strict=True))


def main() -> int:
    """Prints a row an op."""
    parser = command_line(__doc__)
    add_results(parser)
    options = parser.parse_args()
    umadvise.patch(device=umadvise.EmulatedDevice(capacity="64MiB"))
    first, second, result = torch.ones(16), torch.ones(16), torch.empty(16)
    matrix = torch.ones(8, 8)
    several = [torch.ones(16) for _ in range(20)]
    ops: dict[str, Callable[[], object]] = {
        "add(out=), 3 tensors": lambda: torch.add(first, second, out=result),
        "add_, in place": lambda: result.add_(first),
        "mm, allocates its output": lambda: torch.mm(matrix, matrix),
        "_foreach_add_, 20 tensors": lambda: torch._foreach_add_(several, 1.0),
    }
    rows: list[dict[str, Any]] = []
    with torch.no_grad():
        for name, op in ops.items():
            alone, interposed, python = measure(op)
            rows.append({"op": name, "alone_ns": alone, "interposed_ns": interposed, "torch_dispatch_mode_ns": python})
            ours = f"interposed +{interposed - alone:6,.0f} ns (x{interposed / alone:.2f}, goal at most +{GOAL_NS})"
            beside = f"TorchDispatchMode +{python - alone:8,.0f} ns (x{python / alone:.2f})"
            print(f"{name:28} alone {alone:8,.0f} ns   {ours}   {beside}", flush=True)
    umadvise.unpatch()
    executed = list(executor_overhead.rows())
    for each in executed:
        print(executor_overhead.words(each), flush=True)
    ratios = {str(row["op"]): row["interposed_ns"] / row["alone_ns"] for row in rows}
    alone_ns, guarded_ns, followed_ns = (float(each["ns"]) for each in executed[:3])
    ratios["neg_, guarded, in chunks"] = 1 + guarded_ns / alone_ns
    ratios["neg_, following a program"] = 1 + followed_ns / alone_ns
    write_results(options, "umadvise.benchmark-interposer/2", ratios, rows=rows, executor=executed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
