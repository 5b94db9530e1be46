"""How much slower than the best rung alone `policy="auto"` is, once it has settled.

    python tools/benchmark_auto.py [--only bert,gpt2,resnet50,unet] [--parts 50,33] [--steps 5] [--limit-s 90]

For each network and part of the memory that it needs, the rungs take turns with `auto`, a step each, every one in a
process of its own on the emulated device, so that a machine that is slower for a minute is so for all. Steps before
`auto` has settled are not measured; then it is the median over the turns of its step over that of each rung. A rung
that cannot run the step is left out. A rung whose third step is three times as long as another's has no turns after
that. The goal is at most 1.1. Exit codes: 0 all keep it, 1 one does not, 3 losses differ.
"""

import statistics
import sys
import time
from contextlib import ExitStack

from harness import command_line
from swap_run import WARM_UP, Kind, Trainee, TraineeRun, needed_bytes, same_losses, task

from umadvise.records.units import format_bytes
from umadvise.training.policy.governor import SAMPLES

GOAL = 1.1
RUNGS: tuple[Kind, ...] = ("advise", "window", "swap")
NETWORKS: dict[str, tuple[str, dict[str, int | str]]] = {
    "bert": (
        "bert_large",
        {"batch": 2, "length": 128, "layers": 12, "hidden": 768, "heads": 12, "attention": "sdpa"},
    ),
    "gpt2": ("gpt2", {"batch": 1, "length": 256}),
    "resnet50": ("resnet50", {"batch": 8}),
    "unet": ("unet", {"batch": 1, "image": 380}),
    "small-bert": (
        "bert_large",
        {"batch": 2, "length": 128, "layers": 4, "hidden": 512, "heads": 8, "attention": "sdpa"},
    ),
    "small-gpt2": (
        "gpt2",
        {"batch": 2, "length": 128, "layers": 4, "width": 512, "heads": 8, "vocabulary": 4000},
    ),
    "small-resnet50": ("resnet50", {"batch": 16, "image": 64}),
    "small-unet": ("unet", {"batch": 1, "image": 188}),
}
"""Name, factory and its options; the small ones are for busy machines, and for trying this tool."""
DEFAULT = "bert,gpt2,resnet50,unet"
_QUIET_STEPS = WARM_UP + 3 * SAMPLES
"""Steps in a row on one rung after which `auto` has settled."""
_MOST_SETTLING = 60
_TOO_SLOW = 3.0


def _settle(trainee: Trainee, limit_s: float) -> int:
    """Steps of `auto` until its rung has not changed for a while; how many."""
    trainee.step()  # the process starts, and its network is built
    begun, count, unchanged, rung = time.perf_counter(), 1, 0, ""
    while unchanged < _QUIET_STEPS and count < _MOST_SETTLING and time.perf_counter() - begun < limit_s:
        trainee.step()
        count += 1
        now = trainee.rung
        rung, unchanged = now, unchanged + 1 if now == rung else 0
    return count


def measure(network: str, size: int, steps: int, limit_s: float) -> dict[Kind, tuple[TraineeRun, int]]:
    """What happened to each kind, and the number of its first measured step, from 0."""
    with ExitStack() as stack:
        kinds: dict[Kind, Trainee] = {
            kind: stack.enter_context(Trainee(task(*NETWORKS[network], kind, size))) for kind in (*RUNGS, "auto")
        }
        warm: dict[Kind, int] = {**dict.fromkeys(RUNGS, WARM_UP), "auto": _settle(kinds["auto"], limit_s)}
        for kind in RUNGS:
            kinds[kind].step(WARM_UP)
        slowest_s = _TOO_SLOW * min(trainee.last_s for trainee in kinds.values() if trainee.runs)
        taking_part = [trainee for kind, trainee in kinds.items() if kind == "auto" or trainee.last_s <= slowest_s]
        for _ in range(steps):
            for trainee in taking_part:
                trainee.step()
        return {kind: (trainee.finish(), warm[kind]) for kind, trainee in kinds.items()}


def _report(found: dict[Kind, tuple[TraineeRun, int]], steps: int) -> float:
    """Prints a line for each kind; the ratio of `auto` to the best rung."""
    auto, auto_warm = found["auto"]
    own_s = auto.durations_s(auto_warm)
    ratios = []
    for kind in RUNGS:
        rung, warm = found[kind]
        measured_s = rung.durations_s(warm)
        if rung.error is not None:
            print(f"    {kind:8} {rung.error.splitlines()[0][:100]}")
        elif len(measured_s) < steps:
            print(f"    {kind:8} {rung.durations_s()[-1]:7.3f} s a step, too slow to take turns")
        else:
            ratios.append(statistics.median(own / its for own, its in zip(own_s, measured_s, strict=True)))
            print(f"    {kind:8} {statistics.median(measured_s):7.3f} s a step; auto takes x{ratios[-1]:.2f} of it")
    rungs = [step.rung for step in auto.steps]
    path = [rung for number, rung in enumerate(rungs) if number == 0 or rungs[number - 1] != rung]
    print(f"    auto     {statistics.median(own_s):7.3f} s a step, by way of {', '.join(path)}, in {auto_warm} steps")
    return max(ratios)


def main() -> int:
    """Prints ratios; 1 where one is above the goal, 3 where losses differ."""
    parser = command_line(__doc__)
    parser.add_argument("--only", default=DEFAULT, help=f"networks, of {', '.join(NETWORKS)}")
    parser.add_argument("--parts", default="50,33", help="percent of what training needs")
    parser.add_argument("--steps", type=int, default=5, help="turns that are measured")
    parser.add_argument("--limit-s", type=float, default=90.0, help="in which `auto` has to settle")
    options = parser.parse_args()
    kept, runs = True, []
    for network in options.only.split(","):
        needs_bytes = needed_bytes(*NETWORKS[network])
        print(f"{network} needs {format_bytes(needs_bytes)}")
        for percent in (int(part) for part in options.parts.split(",")):
            size = needs_bytes * percent // 100
            print(f"  {percent} % of that, {format_bytes(size)}", flush=True)
            found = measure(network, size, options.steps, options.limit_s)
            ratio = _report(found, options.steps)
            kept = kept and ratio <= GOAL
            print(f"    x{ratio:.2f} of the best rung (goal at most {GOAL})", flush=True)
            runs.append([each for each, _ in found.values()])
    if not same_losses(runs):
        return 3
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
