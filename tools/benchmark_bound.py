"""Benchmark of the lower bound: how long it takes, and how near it is to the one that looks at memory in every op.

python tools/benchmark_bound.py [--networks bert_large] [--device rtx-6000-24gb] [--shares 0.9,0.7,0.5,0.3,0]
                                [--recompute] [--full] [--json]

Steps are recorded dry, in shares of their unlimited peak (0: the largest working set, the smallest budget there is).
`--full` solves the programme of all ops and storages too: seconds for some hundred ops, hours for BERT-Large.
Exits 3 where a bound takes more than 10 s, or is below 99 % of the full one.
"""

import json
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial

from harness import command_line  # isort: split

from networks import NETWORKS

from umadvise.devices.catalogue import load_device
from umadvise.errors import CheckFailedError
from umadvise.planners.bounds.bound import lower_bound
from umadvise.planners.bounds.bound_search import COARSE
from umadvise.recording.dry import recorder as dry
from umadvise.records.device import DeviceProfile
from umadvise.records.trace import Trace

LIMIT_S = 10.0
LIMIT_SHARE = 0.99
BATCHES = {"bert_large": 32, "resnet50": 128, "vgg16": 64, "unet": 8, "char_lstm": 512, "densenet121": 64}


@dataclass(frozen=True, slots=True)
class BoundRow:
    """One network in one budget."""

    network: str
    ops: int
    budget_bytes: int
    kind: str
    overhead: float
    step_ms: float
    seconds: float
    full_ms: float | None
    full_seconds: float | None

    @property
    def good(self) -> bool:
        """Whether it is fast enough, and near enough where that is known."""
        return self.seconds <= LIMIT_S and (self.full_ms is None or self.step_ms >= LIMIT_SHARE * self.full_ms)


def measure(trace: Trace, device: DeviceProfile, share: float, *, recompute: bool, full: bool) -> BoundRow:
    """The bound of a step in a share of its peak."""
    budget_bytes = int(trace.peak_bytes * share) or int(trace.working_set_bytes().max())

    def timed(coarse: int | None) -> tuple[float, float, str]:
        begin = time.perf_counter()
        bound = lower_bound(trace, device, budget_bytes, coarse=coarse, recompute=recompute)
        return bound.step_ns / 1e6, time.perf_counter() - begin, bound.kind

    step_ms, seconds, kind = timed(COARSE)
    full_ms, full_seconds, _ = timed(None) if full else (None, None, "")
    return BoundRow(
        network=trace.workload,
        ops=len(trace.ops),
        budget_bytes=budget_bytes,
        kind=kind,
        overhead=step_ms / (trace.duration_ns / 1e6) - 1,
        step_ms=step_ms,
        seconds=seconds,
        full_ms=full_ms,
        full_seconds=full_seconds,
    )


def text(row: BoundRow) -> str:
    """A line of the table."""
    line = f"{row.network:<14}{row.ops:>6} ops {row.budget_bytes / 2**30:>8.3f} GiB  {row.kind:<10}"
    line += f"{row.step_ms:>10.1f} ms (+{row.overhead:.1%}) in {row.seconds:6.2f} s"
    if row.full_ms is None or row.full_seconds is None:
        return line
    return line + f"  {row.step_ms / row.full_ms:.2%} of {row.full_ms:.1f} ms in {row.full_seconds:.1f} s"


def main() -> int:
    """Measures, prints, and judges."""
    parser = command_line(__doc__)
    parser.add_argument("--networks", default="bert_large", help=f"of {', '.join(BATCHES)}")
    parser.add_argument("--device", default="rtx-6000-24gb")
    parser.add_argument("--shares", default="0.9,0.7,0.5,0.3,0")
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    device = load_device(options.device)
    rows = []
    for name in options.networks.split(","):
        trace = dry.record(partial(NETWORKS[name], BATCHES[name]), device=device)
        for share in options.shares.split(","):
            row = measure(trace, device, float(share), recompute=options.recompute, full=options.full)
            rows.append(row)
            if not options.json:
                print(text(row), flush=True)
    if options.json:
        print(json.dumps({"schema": "umadvise.benchmark-bound/2", "rows": [asdict(row) for row in rows]}))
    return 0 if all(row.good for row in rows) else CheckFailedError.exit_code


if __name__ == "__main__":
    sys.exit(main())
