"""How much slower each kind of memory gets beside another busy process, against plain PyTorch.

    python tools/benchmark_busy.py [--kinds plain,swap] [--part 33] [--steps 4] [--rounds 2] [--processes 1]

Every kind trains BERT on the emulated device, on a third of the memory that it needs, in a process of its own and with
torch's own number of threads. After the first steps, steps on a quiet machine and steps beside a process that does
nothing but count take turns in the same training. What is compared is busy over quiet, each the median of all its
steps: the goal is at most 1.5 times the same ratio of plain PyTorch. Exit codes: 0 all kinds keep it, 1 one does not.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast, get_args

from benchmark_swap import WARM_UP
from demo import available_bytes
from swap_run import Kind, Run, Specification, Trainee, run

from umadvise.records.units import format_bytes

GOAL = 1.5
DEFAULT_KINDS = "plain,no advice,advise,window,swap,auto"
"""Those of `make demo`."""
_BLOCK_BYTES = 2 << 20
_AUTO_WARM_UP = 24
"""Steps in which the governor has tried what it tries."""


class Competitors:
    """Processes that count, stopped until they are wanted."""

    def __init__(self, count: int) -> None:
        """Starts as many, and stops them."""
        count_up = [sys.executable, "-c", "while True: pass"]
        self._processes = [subprocess.Popen(count_up) for _ in range(count)]
        self._tell(signal.SIGSTOP)

    def _tell(self, what: signal.Signals) -> None:
        for process in self._processes:
            os.kill(process.pid, what)

    @contextmanager
    def running(self) -> Iterator[None]:
        """They count meanwhile."""
        self._tell(signal.SIGCONT)
        try:
            yield
        finally:
            self._tell(signal.SIGSTOP)

    def end(self) -> None:
        """No process is left."""
        for process in self._processes:
            process.kill()
            process.wait()


def measure(
    specification: Specification, competitors: Competitors, steps: int, rounds: int
) -> tuple[Run, list[int], list[int]]:
    """What happened, and the numbers of the steps that were quiet and of those that were busy, from 0."""
    quiet: list[int] = []
    busy: list[int] = []
    with Trainee(specification) as trainee:
        done = 0

        def step(numbers: list[int]) -> None:
            nonlocal done
            trainee.step()
            numbers.append(done)
            done += 1

        for _ in range(_AUTO_WARM_UP if specification.kind == "auto" else WARM_UP):
            step([])
        for _ in range(rounds):
            for _ in range(steps):
                step(quiet)
            with competitors.running():
                for _ in range(steps):
                    step(busy)
        return trainee.finish(), quiet, busy


def _median_s(run: Run, numbers: Sequence[int]) -> float:
    return statistics.median(run.steps[number].duration_ns for number in numbers) / 1e9


def _kinds(text: str) -> list[Kind]:
    kinds = text.split(",")
    if unknown := set(kinds) - set(get_args(Kind)):
        raise SystemExit(f"unknown kinds {', '.join(sorted(unknown))}: expected some of {', '.join(get_args(Kind))}")
    return cast(list[Kind], kinds)


def main() -> int:
    """Prints a line for each kind; 1 where one is slowed down by more than the goal."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--kinds", type=_kinds, default=DEFAULT_KINDS, help=f"of memory: {DEFAULT_KINDS}")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--part", type=int, default=33, help="percent of what training needs")
    parser.add_argument("--steps", type=int, default=4, help="in a row that are quiet, then busy")
    parser.add_argument("--rounds", type=int, default=2, help="of both")
    parser.add_argument("--processes", type=int, default=1, help="beside the training")
    options = parser.parse_args()
    network: dict[str, int | str] = {
        name: getattr(options, name) for name in ("batch", "length", "layers", "hidden", "heads")
    }
    network["attention"] = "sdpa"

    def specification(kind: Kind, size: int) -> Specification:
        capacity_bytes = -(-size // _BLOCK_BYTES) * _BLOCK_BYTES
        return Specification(network="bert_large", options=network, kind=kind, capacity_bytes=capacity_bytes)

    needed_bytes = run(specification("resident", available_bytes() * 2 // 3), 2).needed_bytes
    print(f"it needs {format_bytes(needed_bytes)}; {options.part} % of that, {options.processes} other processes")
    competitors = Competitors(options.processes)
    plain_ratio: float | None = None
    kept = True
    try:
        for kind in options.kinds:
            asked = specification(kind, needed_bytes * options.part // 100)
            found, quiet, busy = measure(asked, competitors, options.steps, options.rounds)
            if found.error is not None:
                print(f"  {kind:16} {found.error.splitlines()[0]}", flush=True)
                continue
            quiet_s, busy_s = _median_s(found, quiet), _median_s(found, busy)
            ratio = busy_s / quiet_s
            plain_ratio = ratio if kind == "plain" else plain_ratio
            against = "" if plain_ratio is None else f", x{ratio / plain_ratio:.2f} of plain's (goal at most {GOAL})"
            kept = kept and (plain_ratio is None or ratio <= GOAL * plain_ratio)
            rung = f" on {found.rung}" if kind == "auto" else ""
            print(f"  {kind:16} {quiet_s:6.3f} s quiet, {busy_s:6.3f} s busy: x{ratio:.2f}{against}{rung}", flush=True)
    finally:
        competitors.end()
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
