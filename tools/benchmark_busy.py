"""How much slower each kind of memory gets beside another busy process, against plain PyTorch.

    python tools/benchmark_busy.py [--kinds plain,swap] [--part 33] [--steps 4] [--rounds 2] [--processes 1]

Every kind trains BERT on the emulated device, on a third of the memory that it needs, in a process of its own and with
torch's own number of threads. After the first steps, steps on a quiet machine and steps beside a process that does
nothing but count take turns in the same training. What is compared is busy over quiet, each the median of all its
steps: the goal is at most 1.5 times the same ratio of plain PyTorch. Exit codes: 0 all kinds keep it, 1 one does not.
"""

import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import cast, get_args

from harness import command_line
from swap_run import WARM_UP, Kind, Trainee, TraineeRun, TraineeTask, needed_bytes, task

from umadvise.records.units import format_bytes

GOAL = 1.5
DEFAULT_KINDS = "plain,no advice,advise,window,swap,auto"
"""Those of `make demo`."""
NETWORK = {"batch": 2, "length": 128, "layers": 6, "hidden": 512, "heads": 8}
_AUTO_WARM_UP = 24
"""Steps in which the governor has tried what it tries."""


Running = Callable[[], AbstractContextManager[None]]


@contextmanager
def competitors(count: int) -> Iterator[Running]:
    """Processes that count, but only inside the contexts that this gives."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]

    def tell(what: signal.Signals) -> None:
        for process in processes:
            process.send_signal(what)

    @contextmanager
    def running() -> Iterator[None]:
        tell(signal.SIGCONT)
        try:
            yield
        finally:
            tell(signal.SIGSTOP)

    tell(signal.SIGSTOP)
    try:
        yield running
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure(asked: TraineeTask, running: Running, steps: int, rounds: int) -> tuple[TraineeRun, float, float]:
    """What happened, and the median seconds of the steps that were quiet and of those that were busy."""
    warm_up = _AUTO_WARM_UP if asked.kind == "auto" else WARM_UP
    with Trainee(asked) as trainee:
        trainee.step(warm_up)
        for _ in range(rounds):
            for around in (nullcontext(), running()):
                with around:
                    trainee.step(steps)
        found = trainee.finish()
    busy_s: dict[bool, list[float]] = {False: [], True: []}
    for number, seconds in enumerate(found.durations_s(warm_up)):
        busy_s[number // steps % 2 == 1].append(seconds)
    if found.error is not None:
        return found, 0.0, 0.0
    return found, statistics.median(busy_s[False]), statistics.median(busy_s[True])


def _kinds(text: str) -> list[Kind]:
    kinds = text.split(",")
    if unknown := set(kinds) - set(get_args(Kind)):
        raise SystemExit(f"unknown kinds {', '.join(sorted(unknown))}: expected some of {', '.join(get_args(Kind))}")
    return cast(list[Kind], kinds)


def main() -> int:
    """Prints a line for each kind; 1 where one is slowed down by more than the goal."""
    parser = command_line(__doc__)
    parser.add_argument("--kinds", type=_kinds, default=DEFAULT_KINDS, help=f"of memory: {DEFAULT_KINDS}")
    for name, size in NETWORK.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--part", type=int, default=33, help="percent of what training needs")
    parser.add_argument("--steps", type=int, default=4, help="in a row that are quiet, then busy")
    parser.add_argument("--rounds", type=int, default=2, help="of both")
    parser.add_argument("--processes", type=int, default=1, help="beside the training")
    options = parser.parse_args()
    network: dict[str, int | str] = {name: getattr(options, name) for name in NETWORK} | {"attention": "sdpa"}
    needs_bytes = needed_bytes("bert_large", network)
    print(f"it needs {format_bytes(needs_bytes)}; {options.part} % of that, {options.processes} other processes")
    plain_ratio: float | None = None
    kept = True
    with competitors(options.processes) as running:
        for kind in options.kinds:
            asked = task("bert_large", network, kind, needs_bytes * options.part // 100)
            found, quiet_s, busy_s = measure(asked, running, options.steps, options.rounds)
            if found.error is not None:
                print(f"  {kind:16} {found.error.splitlines()[0]}", flush=True)
                continue
            ratio = busy_s / quiet_s
            plain_ratio = ratio if kind == "plain" else plain_ratio
            against = "" if plain_ratio is None else f", x{ratio / plain_ratio:.2f} of plain's (goal at most {GOAL})"
            kept = kept and (plain_ratio is None or ratio <= GOAL * plain_ratio)
            rung = f" on {found.rung}" if kind == "auto" else ""
            print(f"  {kind:16} {quiet_s:6.3f} s quiet, {busy_s:6.3f} s busy: x{ratio:.2f}{against}{rung}", flush=True)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
