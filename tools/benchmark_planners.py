"""Benchmark of the planners: what their plans cost on networks from 90 % of the peak down, and how long they plan.

python tools/benchmark_planners.py [--network bert gpt2 ...] [--planner NAMES] [--budgets 6] [--cache DIR] [--no-regret]
    [--only tables times growth] [--growth 10000 100000 1000000]

Steps are recorded dry. The budgets go in equal steps from 90 % of the unlimited peak down to the smallest in which a
planner of swaps can, one of them at half the peak. Exits 3 when something that is to hold of `best`, or of times, does
not: recording BERT-Large at most 3 s, window planning of it at most 100 ms, `best` and the bound at most 10 s, and the
window planner's time an op no more than twice as long for the largest as for the smallest step.
"""

import functools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmark_simulator import chain
from harness import command_line  # isort: split

from networks import NETWORKS
from planner_table import BEST, Claim, claims, table

from umadvise import planners
from umadvise.commands._options import parse_competitors
from umadvise.devices.catalogue import load_device
from umadvise.errors import CheckFailedError, UmadviseError
from umadvise.planners.bounds.bound import lower_bound
from umadvise.planners.judging.comparison import Competitor, PlannerComparison, compare
from umadvise.recording.dry import recorder as dry
from umadvise.records import trace_file as io
from umadvise.records.device import DeviceProfile
from umadvise.records.enums import Role
from umadvise.records.trace import Trace

FIRST_SHARE = 0.9
LIMITS_S = {"window": 0.1, BEST: 10.0, "the bound": 10.0, "recording": 3.0}
ROUNDS = {"window": 5, "recording": 2}
"""Of which the shortest counts; of others there is one."""
MOST_GROWTH = 2.0
PARTS = ("tables", "times", "growth")
_QUICK = ("belady", "lru", "window", "superneurons")  # who is asked for the smallest budget: unified memory knows none


@dataclass(frozen=True)
class SizedWorkload:
    """A network at a size whose step fills a device of the catalogue, or nearly."""

    factory: str
    batch: int
    device: str = "v100-pcie-16gb"
    options: dict[str, Any] = field(default_factory=dict)

    def trace(self, cache: Path) -> Trace:
        """Recorded dry, once."""
        file = cache / f"{self.factory}-{self.batch}-{self.device}.trace"
        if not file.exists():
            io.write(self.record(), file)
        return io.read(file)

    def record(self) -> Trace:
        """Recorded dry, again each time."""
        return dry.record(functools.partial(NETWORKS[self.factory], self.batch, **self.options), device=self.device)


CASES = {
    "bert": SizedWorkload("bert_large", 32, "rtx-6000-24gb"),
    "gpt2": SizedWorkload("gpt2", 10),
    "vit": SizedWorkload("vit_b16", 112),
    "resnet50": SizedWorkload("resnet50", 192),
    "vgg16": SizedWorkload("vgg16", 192),
    "unet": SizedWorkload("unet", 16),
    "densenet121": SizedWorkload("densenet121", 128),
    "stochastic_depth": SizedWorkload("stochastic_depth_resnet", 2048),
    "alexnet": SizedWorkload("alexnet", 4096),
    "deeplab": SizedWorkload("deeplabv3plus", 9),
    "pix2pixhd": SizedWorkload("pix2pixhd", 12, options={"image": (256, 512)}),
}
OF_DQN = {
    "resnet101": SizedWorkload("resnet101", 96, "gtx-1080-ti"),
    "vgg116": SizedWorkload("vgg116", 32, "gtx-1080-ti"),
    "char_lstm": SizedWorkload("char_lstm", 512, "gtx-1080-ti"),
    "kmeans": SizedWorkload("kmeans", 1_000_000, "gtx-1080-ti"),
}
"""Networks of the paper of `dqn` that no other case has, for --network; its baselines are in --planner
dqn,sqrt-recompute,superneurons,lms.
"""


def budgets(trace: Trace, device: DeviceProfile, names: Sequence[str], count: int) -> list[int]:
    """In equal steps from 90 % of the peak to the smallest in which a planner of swaps can, and half the peak."""
    most, least = int(trace.peak_bytes * FIRST_SHARE), smallest(trace, device, names)
    sizes = [most - (most - least) * step // max(count - 1, 1) for step in range(count)]
    half = trace.peak_bytes // 2
    inner = range(1, count - 1)
    if inner and sizes[-1] < half < sizes[0]:
        sizes[min(inner, key=lambda step: abs(sizes[step] - half))] = half
    return sizes


def smallest(trace: Trace, device: DeviceProfile, names: Sequence[str]) -> int:
    """Halves, to 1 % of the peak, between the largest working set, below which nothing can run, and 90 %."""
    asked = [name for name in _QUICK if name in names] or list(names)

    def runs(budget_bytes: int) -> bool:
        return any(_plans(name, trace, device, budget_bytes) for name in asked)

    low, high = int(trace.working_set_bytes().max(initial=0)), int(trace.peak_bytes * FIRST_SHARE)
    if runs(low):
        return low
    while high - low > trace.peak_bytes // 100:
        middle = (low + high) // 2
        low, high = (low, middle) if runs(middle) else (middle, high)
    return high


def _plans(name: str, trace: Trace, device: DeviceProfile, budget_bytes: int) -> bool:
    try:
        planners.run(name, trace, device, budget_bytes)
    except UmadviseError:
        return False
    return True


def tables(
    networks: Sequence[str], competitors: Sequence[Competitor], count: int, cache: Path, *, regrets: bool
) -> Iterator[tuple[str, PlannerComparison]]:
    """Compares, network by network."""
    for network in networks:
        case = {**CASES, **OF_DQN}[network]
        device = load_device(case.device)
        trace = case.trace(cache)
        asked = list(dict.fromkeys(each.planner for each in competitors if each.planner))
        sizes = budgets(trace, device, asked, count)

        def progress(done: int, all_: int, network: str = network) -> None:
            if sys.stderr.isatty():
                print(f"\r{network}: {done} of {all_} ", end="\n" * (done == all_), file=sys.stderr, flush=True)

        yield (
            f"{network}, batch {case.batch}",
            compare(trace, device, competitors, sizes, regrets=regrets, progress=progress),
        )


def seconds(work: Callable[[], object], rounds: int = 1, clock: Callable[[], float] = time.perf_counter) -> float:
    """The shortest of some rounds."""
    taken = []
    for _ in range(rounds):
        begin = clock()
        work()
        taken.append(clock() - begin)
    return min(taken)


def times(cache: Path) -> Iterator[Claim]:
    """How long BERT-Large takes to record, and to plan for half its peak."""
    case = CASES["bert"]
    trace, device = case.trace(cache), load_device(case.device)
    half = trace.peak_bytes // 2
    works: dict[str, Callable[[], object]] = {
        name: functools.partial(planners.run, name, trace, device, half)
        for name in ("window", BEST)
        if name in planners.PLANNERS
    }
    works |= {"the bound": functools.partial(lower_bound, trace, device, half), "recording": case.record}
    for name, work in works.items():
        taken = seconds(work, ROUNDS.get(name, 1))
        words = f"{name} takes at most {LIMITS_S[name]:g} s for BERT-Large, batch {case.batch}"
        yield Claim(words, taken <= LIMITS_S[name], f"{taken:.3f} s.")


def growth(sizes: Sequence[int]) -> Claim:
    """The window planner's processor time an op by the number of ops."""
    device = load_device("v100-pcie-16gb")
    per_op = {}
    for ops in sorted(sizes):
        trace = chain(ops)
        parameters = int(trace.storages.bytes[trace.storages.role == Role.PARAMETER].sum())
        plan = functools.partial(planners.run, "window", trace, device, parameters + (8 << 30))
        per_op[ops] = seconds(plan, 3 if ops <= 100_000 else 1, time.process_time) / ops
    first, last = per_op[min(per_op)], per_op[max(per_op)]
    words = (
        f"the window planner grows near-linearly: at most x{MOST_GROWTH:g} an op from {min(per_op)} to {max(per_op)}"
    )
    measured = ", ".join(f"{each * 1e6:.1f} us an op at {ops}" for ops, each in per_op.items())
    return Claim(words, last <= MOST_GROWTH * first, f"x{last / first:.2f}: {measured}.")


def main() -> int:
    """Measures, prints, and judges."""
    parser = command_line(__doc__)
    parser.add_argument("--network", nargs="+", choices=[*CASES, *OF_DQN], default=list(CASES))
    parser.add_argument("--planner", default=",".join(planners.PLANNERS), metavar="NAMES", help="as `umadvise compare`")
    parser.add_argument("--budgets", type=int, default=6)
    parser.add_argument("--cache", type=Path, help="where traces are kept; by default nowhere")
    parser.add_argument("--no-regret", action="store_true", help="look for no lower bounds")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--growth", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], metavar="OPS")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cache = options.cache or Path(folder)
        cache.mkdir(parents=True, exist_ok=True)
        found: list[Claim] = []
        compared = []
        if "tables" in options.only:
            competitors = parse_competitors(options.planner)
            for title, comparison in tables(
                options.network, competitors, options.budgets, cache, regrets=not options.no_regret
            ):
                print(table(title, comparison), flush=True)
                compared.append((title, comparison))
            found += claims(compared)
        if "times" in options.only:
            found += times(cache)
        if "growth" in options.only:
            found.append(growth(options.growth))
    print("\n".join(["### What is to hold", "", *map(str, found)]))
    failed = any(claim.holds is False for claim in found) or any(each.missing for _, each in compared)
    return CheckFailedError.exit_code if failed else 0


if __name__ == "__main__":
    sys.exit(main())
