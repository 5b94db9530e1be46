"""Benchmark of the deep Q-network planner: overheads at equal memory, beside those of its paper's baselines.

python tools/benchmark_dqn.py [--device gtx-1080-ti] [--net NAME ...] [--share 0.75 0.5 0.25] [--episodes N]
    [--time-limit 600] [--seed N] [--json]

The nets are those of the paper's figure 5, recorded dry at a batch of about the device's memory; the baselines are its
own: MXNet-memonger, SuperNeurons and TFLMS. An LSTM of any number of layers is one op of cuDNN, whose working set is
nearly all of the step; `lstm` is recorded with the ops of torch's CPU library, one a layer, timed for the device. A
share is of the way from what the net's largest op uses, below which nothing runs, up to its unlimited peak. An overhead
is the part by which the simulated step is longer than in unlimited memory; x is where a planner has no plan. Exits 3
where a baseline has less than the planner on a net that the paper claims.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import TypeAlias

from harness import command_line  # isort: split

from networks import char_lstm, kmeans, resnet, stochastic_depth, unet, vgg

from umadvise import planners
from umadvise.devices.catalogue import load_device
from umadvise.errors import BudgetError, CheckFailedError
from umadvise.planners.judging.score import score
from umadvise.recording.dry import recorder as dry
from umadvise.recording.workload import Workload
from umadvise.records.device import DeviceProfile
from umadvise.records.plan import Option
from umadvise.records.trace import Trace

NETS: dict[str, Callable[[], Workload]] = {
    "resnet50": lambda: resnet.resnet50(128),
    "resnet101": lambda: resnet.resnet101(96),
    "vgg16": lambda: vgg.vgg16(128),
    "vgg116": lambda: vgg.vgg116(32),
    "unet": lambda: unet.unet(8),
    "lstm": lambda: char_lstm.char_lstm(512),
    "lstm8": lambda: char_lstm.char_lstm(512, layers=8, hidden=512),
    "cudnn_lstm": lambda: char_lstm.char_lstm(256, layers=8, hidden=512),
    "sd_resnet": lambda: stochastic_depth.stochastic_depth_resnet(1024),
    "kmeans": kmeans.kmeans,
}
CLAIMED = ("resnet50", "resnet101", "vgg16", "vgg116", "unet", "lstm", "lstm8", "cudnn_lstm")
"""Nets on which the paper says that its planner has the least overhead; the baselines did not run on the others."""
BY_LAYER = ("lstm", "lstm8")
BASELINES = ("sqrt-recompute", "superneurons", "lms")
Row: TypeAlias = dict[str, str | float | None]


def overhead(name: str, trace: Trace, device: DeviceProfile, budget_bytes: int, **options: Option) -> float | None:
    """Of a planner's plan; None where it has none."""
    try:
        plan = planners.run(name, trace, device, budget_bytes, **options)
        return score(trace, device, plan).overhead
    except BudgetError:
        return None


def measure(net: str, device: DeviceProfile, shares: list[float], options: dict[str, Option]) -> list[Row]:
    """One row a share."""
    trace = dry.record(NETS[net], device=device, target="cpu" if net in BY_LAYER else "cuda")
    least_bytes, rows = int(trace.working_set_bytes().max()), []
    for share in shares:
        budget_bytes = least_bytes + int((trace.peak_bytes - least_bytes) * share)
        begin = time.perf_counter()
        dqn = overhead("dqn", trace, device, budget_bytes, **options)
        seconds = time.perf_counter() - begin
        others = {name: overhead(name, trace, device, budget_bytes) for name in BASELINES}
        wins = all(each is None or (dqn is not None and dqn <= each) for each in others.values())
        part = budget_bytes / trace.peak_bytes
        row: Row = {"net": net, "part_of_peak": part, "dqn": dqn, **others, "seconds": seconds, "wins": wins}
        rows.append(row)
        print(words(rows[-1]), file=sys.stderr, flush=True)
    return rows


def words(row: Row) -> str:
    """A line of the table."""
    found = [row[name] for name in ("dqn", *BASELINES)]
    cells = [f"{100 * each:14.1f}" if isinstance(each, float) else f"{'x':>14}" for each in found]
    return f"{row['net']:>10} {100 * float(str(row['part_of_peak'])):6.1f} {' '.join(cells)} {row['seconds']:8.1f}"


def main() -> int:
    """Measures, prints, and judges."""
    parser = command_line(__doc__)
    parser.add_argument("--device", default="gtx-1080-ti")
    parser.add_argument("--net", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument("--share", nargs="+", type=float, default=[0.75, 0.5, 0.25])
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--time-limit", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    options: dict[str, Option] = {"episodes": given.episodes, "time_limit_s": given.time_limit, "seed": given.seed}
    device = load_device(given.device)
    heads = " ".join(f"{name:>14}" for name in ("dqn %", *BASELINES))
    print(f"{'net':>10} {'peak %':>6} {heads} {'dqn in s':>8}", file=sys.stderr)
    rows = [row for net in given.net for row in measure(net, device, given.share, options)]
    if given.json:
        print(json.dumps({"schema": "umadvise.benchmark-dqn/1", "rows": rows}))
    lost = [row for row in rows if not row["wins"] and row["net"] in CLAIMED]
    return CheckFailedError.exit_code if lost else 0


if __name__ == "__main__":
    sys.exit(main())
