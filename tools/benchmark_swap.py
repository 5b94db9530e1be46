"""BERT-Large by planned swaps on part of the memory that it needs, against unified memory and checkpointing.

    python tools/benchmark_swap.py [--batch 2] [--length 128] [--parts 50,33] [--steps 5] [--threads N] [--json FILE]

Everything runs in one go, each kind of memory in a process of its own on the emulated device. Copies, faults and
evictions take the time of --link, a device of the catalogue. On each part of the memory that training needs, unlimited
memory, unified memory without advice and planned swaps take turns, a step each, so that a machine that is slower for a
minute is so for all; then the part comes again at memcpy speed, and activation checkpointing, with planned swaps on the
memory that it takes. Times are medians over the steps after the first ones (`swap_run.WARM_UP`); ratios are medians
over the turns. "stall removed" is the part of unified memory's excess over unlimited memory that planned swaps do not
have, by the clock; of what is left, ops stood still for copies and room as long as is said beside, and the rest is what
copies and page tables take from compute where both share processors and memory. All kinds compute with as many threads,
and leave a processor to those that copy: a GPU's copy engines take nothing from its compute either. Beside each time is
what the simulator says of the same step, plan and device. Three processes at a time take three to four times the memory
that training needs.
"""

import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
from harness import command_line
from swap_prediction import PredictedStep, predict
from swap_run import (
    WARM_UP,
    Kind,
    Trainee,
    TraineeRun,
    TraineeStep,
    needed_bytes,
    same_losses,
    task,
    unlimited_bytes,
)

from umadvise.devices.catalogue import load_device
from umadvise.records.units import format_bytes

GOAL = 0.8
NETWORK = "bert_large"
_NAMES: dict[Kind, str] = {
    "resident": "unlimited memory",
    "no advice": "unified, no advice",
    "swap": "planned swap",
    "checkpointing": "checkpointing, unlimited",
}


class SwapRow(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of memory, measured, and predicted for a link."""

    kind: Kind
    link: str | None
    capacity_bytes: int
    run: TraineeRun
    prediction: PredictedStep | None

    @property
    def steps(self) -> list[TraineeStep]:
        """Those that are measured."""
        return self.run.steps[WARM_UP:]

    @property
    def step_s(self) -> float | None:
        """Seconds of a step: the median."""
        return self._median(self.run.durations_s(WARM_UP))

    @property
    def stood_s(self) -> float | None:
        """How long ops stood still in a step: the median."""
        return self._median([step.stood_ns / 1e9 for step in self.steps])

    def _median(self, values: list[float]) -> float | None:
        return None if self.run.error is not None else statistics.median(values)

    @property
    def predicted_s(self) -> float | None:
        """What the simulator says."""
        return None if self.prediction is None else self.prediction.step_ns / 1e9

    def ratio(self, other: "SwapRow") -> float | None:
        """Of its time to another row's that it took turns with."""
        if self.run.error is not None or other.run.error is not None:
            return None
        turns = zip(self.steps, other.steps, strict=True)
        return statistics.median(own.duration_ns / its.duration_ns for own, its in turns)


class Benchmark:
    """The runs of one network.

    Attributes:
        rows: what came of each kind of memory, in order.
    """

    def __init__(self, options: dict[str, int | str], steps: int, threads: int, folder: str) -> None:
        """Takes the network's options, how many steps are measured, with how many threads, and a folder to work in."""
        self._options, self._steps, self._threads, self._folder = options, steps, threads, folder
        self.rows: list[SwapRow] = []

    def turns(self, sizes: dict[Kind, int], link: str | None) -> list[SwapRow]:
        """Kinds of memory by turns, each of its own size."""
        kept = {kind: tempfile.mkdtemp(dir=self._folder) for kind in sizes}
        with ExitStack() as stack:
            trainees = {
                kind: stack.enter_context(
                    Trainee(task(NETWORK, self._options, kind, size, link=link, threads=self._threads, keep=kept[kind]))
                )
                for kind, size in sizes.items()
            }
            for trainee in trainees.values():
                trainee.step(WARM_UP)
            for _ in range(self._steps):
                for trainee in trainees.values():
                    trainee.step()
            runs = {kind: trainee.finish() for kind, trainee in trainees.items()}
        rows = []
        for kind, size in sizes.items():
            prediction = None
            if link is not None and runs[kind].error is None:
                resident = kept.get("resident", kept[kind])
                prediction = predict(kind, resident, kept[kind], size, load_device(link))
            row = SwapRow(kind=kind, link=link, capacity_bytes=size, run=runs[kind], prediction=prediction)
            rows.append(row)
            print("\n".join(_lines(row)), flush=True)
        self.rows += rows
        return rows

    def needed_bytes(self, kind: Kind) -> int:
        """What training takes."""
        return needed_bytes(NETWORK, self._options, kind, threads=self._threads)


def _lines(row: SwapRow) -> Iterator[str]:
    words = f"  {_NAMES[row.kind]:26} {format_bytes(row.capacity_bytes):>10}"
    if row.step_s is None:
        yield f"{words}   {(row.run.error or '').splitlines()[0]}"
        return
    predicted = "" if row.predicted_s is None else f", predicted {row.predicted_s:.2f} s"
    taken = f"at most {format_bytes(row.run.peak_bytes)} taken"
    yield f"{words}   {row.step_s:6.2f} s a step{predicted}; ops stood still for {row.stood_s:.2f} s; {taken}"
    if row.kind == "swap":
        yield from _of_swaps(row)


def _of_swaps(row: SwapRow) -> Iterator[str]:
    steps, indent = row.steps, " " * 40
    followed = sum(step.followed for step in steps)
    evictions = statistics.median(step.evictions for step in steps)
    yield f"{indent}{followed} of {len(steps)} steps as planned, {evictions:g} unplanned evictions a step"
    moved = f"{format_bytes(steps[-1].swap_in_bytes)} in and {format_bytes(steps[-1].swap_out_bytes)} out"
    if row.prediction is None or row.prediction.bytes_h2d is None or row.prediction.peak_bytes is None:
        yield f"{indent}{moved}"
        return
    off = row.run.peak_bytes / row.prediction.peak_bytes - 1
    yield (
        f"{indent}{moved}, predicted {format_bytes(row.prediction.bytes_h2d)} and "
        f"{format_bytes(row.prediction.bytes_d2h)}; the peak {off:+.1%} off the plan's"
    )


def removed(unadvised: float | None, planned: float | None) -> str:
    """The part of the stalls of unified memory that planned swaps do not have.

    Args:
        unadvised: a step's time in unified memory without advice, by that in unlimited memory; None: it did not end.
        planned: the same ratio by planned swaps.
    """
    if unadvised is None or planned is None or unadvised <= 1:
        return "-"
    return f"{(unadvised - planned) / (unadvised - 1):.0%}"


def _predicted_ratio(row: SwapRow, other: SwapRow) -> float | None:
    if row.predicted_s is None or other.predicted_s is None:
        return None
    return row.predicted_s / other.predicted_s


def _print_ratio(one: SwapRow, other: SwapRow) -> None:
    if (ratio := one.ratio(other)) is not None:
        print(f"  {_NAMES[one.kind]} takes x{ratio:.2f} of {_NAMES[other.kind]} (goal at most 1)")


def measure(benchmark: Benchmark, parts: list[int], link: str) -> None:
    """All rows, printed as they come."""
    most_bytes, needs_bytes = unlimited_bytes(), benchmark.needed_bytes("resident")
    print(f"it needs {format_bytes(needs_bytes)}")
    for percent in parts:
        size = needs_bytes * percent // 100
        print(f"{percent} % of that, the link of {link}")
        resident, *others = benchmark.turns({"resident": most_bytes, "no advice": size, "swap": size}, link)
        measured = removed(*(row.ratio(resident) for row in others))
        predicted = removed(*(_predicted_ratio(row, resident) for row in others))
        print(f"  stall removed {measured}, predicted {predicted} (goal {GOAL:.0%})")
        unadvised, planned = others
        if unadvised.stood_s and planned.stood_s is not None:
            print(f"  of the time that ops stood still {1 - planned.stood_s / unadvised.stood_s:.0%} is gone")
        print(f"{percent} % of that, at memcpy speed")
        unadvised, planned = benchmark.turns({"no advice": size, "swap": size}, None)
        _print_ratio(planned, unadvised)
    print(f"beside checkpointing of each layer, the link of {link}")
    size = benchmark.needed_bytes("checkpointing")
    _, checkpointed, planned = benchmark.turns(
        {"resident": most_bytes, "checkpointing": most_bytes, "swap": size}, link
    )
    _print_ratio(planned, checkpointed)


def main() -> int:
    """Prints times and ratios; 3 where losses differ."""
    parser = command_line(__doc__)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--layers", type=int, default=24, help="of 24: fewer are quicker")
    parser.add_argument("--hidden", type=int, default=1024, help="of 1024")
    parser.add_argument("--steps", type=int, default=5, help="that are measured of each kind")
    parser.add_argument("--parts", default="50,33", help="percent of what training needs")
    parser.add_argument("--threads", type=int, default=max(1, (os.cpu_count() or 2) - 1), help="that compute")
    parser.add_argument("--link", default="v100-pcie3", help="a device of the catalogue")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows")
    options = parser.parse_args()
    network = {name: getattr(options, name) for name in ("batch", "length", "layers", "hidden")}
    parts = [int(part) for part in options.parts.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        benchmark = Benchmark({**network, "attention": "sdpa"}, options.steps, options.threads, folder)
        words = " ".join(f"{name} {value}" for name, value in network.items())
        print(f"BERT-Large, {words}, threads {options.threads}")
        measure(benchmark, parts, options.link)
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(benchmark.rows), indent=1) + b"\n")
    return 0 if same_losses([[row.run for row in benchmark.rows if row.run.error is None]]) else 3


if __name__ == "__main__":
    sys.exit(main())
