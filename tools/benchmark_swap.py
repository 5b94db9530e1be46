"""BERT-Large by planned swaps on part of the memory that it needs, against unified memory and checkpointing.

    python tools/benchmark_swap.py [--batch 2] [--length 128] [--parts 50,33] [--rounds 1] [--threads N] [--json FILE]

Everything runs in one go, each run in a process of its own on the emulated device. Copies, faults and evictions take
the time of --link, a device of the catalogue. On each part of the memory that training needs, unlimited memory, unified
memory without advice and planned swaps take turns; then the part comes again at memcpy speed, and activation
checkpointing, with planned swaps on the memory that it takes. Times are medians over the steps after the first ones, in
which a step is recorded and planned. "stall removed" is the part of unified memory's excess over unlimited memory that
planned swaps do not have. All kinds compute with as many threads, and leave a processor to those that copy: a GPU's
copy engines take nothing from its compute either. Beside each time is what the simulator says of the same step, plan
and device.
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from demo import available_bytes
from swap_prediction import Prediction, predict
from swap_run import Kind, Run, Specification, Step, run

from umadvise.catalogue import load_device
from umadvise.units import format_bytes

WARM_UP = 4
"""Steps that are not measured: the first makes the optimizer's state, others are recorded and planned."""
GOAL = 0.8
_BLOCK_BYTES = 2 << 20
_NAMES: dict[Kind, str] = {
    "resident": "unlimited memory",
    "no advice": "unified, no advice",
    "swap": "planned swap",
    "checkpointing": "checkpointing, unlimited",
}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of memory, measured in all rounds, and predicted for a link."""

    kind: Kind
    link: str | None
    capacity_bytes: int
    runs: list[Run]
    prediction: Prediction | None

    @property
    def error(self) -> str | None:
        """Of the first run that ended early."""
        return next((each.error for each in self.runs if each.error is not None), None)

    @property
    def steps(self) -> list[Step]:
        """Those that are measured."""
        return [step for each in self.runs for step in each.steps[WARM_UP:]]

    @property
    def step_s(self) -> float | None:
        """The median."""
        if self.error is not None:
            return None
        return statistics.median(step.duration_ns for step in self.steps) / 1e9

    @property
    def predicted_s(self) -> float | None:
        """What the simulator says."""
        return None if self.prediction is None else self.prediction.step_ns / 1e9


class Benchmark:
    """The runs of one network.

    Attributes:
        rows: in order.
    """

    def __init__(self, options: dict[str, int | str], steps: int, rounds: int, threads: int, folder: str) -> None:
        """Takes the network's options, how many steps and rounds are measured, and where traces and plans go."""
        self._options, self._steps, self._rounds, self._folder = options, steps, rounds, folder
        self._threads = threads
        self.rows: list[Row] = []

    def turns(self, sizes: dict[Kind, int], link: str | None) -> list[Row]:
        """Kinds of memory by turns, each of its own size."""
        runs: dict[Kind, list[Run]] = {kind: [] for kind in sizes}
        kept = {kind: self._new_folder() for kind in sizes}
        for _ in range(self._rounds):
            for kind, size in sizes.items():
                runs[kind].append(self._run(kind, size, link, kept[kind]))
        rows = []
        for kind, size in sizes.items():
            prediction = None
            if link is not None and runs[kind][-1].error is None:
                resident = kept.get("resident", kept[kind])
                prediction = predict(kind, resident, kept[kind], size, load_device(link))
            row = Row(kind=kind, link=link, capacity_bytes=size, runs=runs[kind], prediction=prediction)
            rows.append(row)
            print("\n".join(_lines(row)), flush=True)
        self.rows += rows
        return rows

    def _new_folder(self) -> str:
        return tempfile.mkdtemp(dir=self._folder)

    def _run(self, kind: Kind, size: int, link: str | None, keep: str) -> Run:
        return run(
            Specification(
                network="bert_large",
                options=self._options,
                kind=kind,
                capacity_bytes=-(-size // _BLOCK_BYTES) * _BLOCK_BYTES,
                link=link,
                steps=WARM_UP + self._steps,
                threads=self._threads,
                keep=keep,
            )
        )


def _lines(row: Row) -> Iterator[str]:
    words = f"  {_NAMES[row.kind]:26} {format_bytes(row.capacity_bytes):>10}"
    if row.step_s is None:
        yield f"{words}   {(row.error or '').splitlines()[0]}"
        return
    predicted = "" if row.predicted_s is None else f", predicted {row.predicted_s:.2f} s"
    last = row.runs[-1]
    yield f"{words}   {row.step_s:6.2f} s a step{predicted}; at most {format_bytes(last.peak_bytes)} taken"
    if row.kind == "swap":
        yield from _of_swaps(row, last)


def _of_swaps(row: Row, last: Run) -> Iterator[str]:
    steps, indent = row.steps, " " * 40
    followed = sum(step.followed for step in steps)
    evictions = statistics.median(step.evictions for step in steps)
    stood_ms = statistics.median(step.wait_copy_ns + step.wait_room_ns for step in steps) / 1e6
    yield (
        f"{indent}{followed} of {len(steps)} steps as planned, {evictions:g} unplanned evictions and {stood_ms:.0f} ms "
        "of waits a step"
    )
    moved = f"{format_bytes(steps[-1].swap_in_bytes)} in and {format_bytes(steps[-1].swap_out_bytes)} out"
    if row.prediction is None or row.prediction.bytes_h2d is None:
        yield f"{indent}{moved}"
        return
    peak_bytes = (row.prediction.peak_bytes or 0) + last.pinned_bytes
    yield (
        f"{indent}{moved}, predicted {format_bytes(row.prediction.bytes_h2d)} and "
        f"{format_bytes(row.prediction.bytes_d2h)}; the peak {last.peak_bytes / peak_bytes - 1:+.1%} off the plan's"
    )


def removed(times_s: Sequence[float | None]) -> str:
    """The part of the stalls of unified memory that planned swaps do not have: of unlimited, unadvised and planned."""
    known = [each for each in times_s if each is not None]
    if len(known) < len(times_s) or known[1] <= known[0]:
        return "-"
    return f"{(known[1] - known[2]) / (known[1] - known[0]):.0%}"


def _print_ratio(one: Row, other: Row) -> None:
    if one.step_s is not None and other.step_s is not None:
        print(f"  {_NAMES[one.kind]} takes x{one.step_s / other.step_s:.2f} of {_NAMES[other.kind]} (goal at most 1)")


def measure(benchmark: Benchmark, parts: list[int], link: str) -> None:
    """All rows, printed as they come."""
    unlimited_bytes = available_bytes() * 2 // 3
    (unlimited,) = benchmark.turns({"resident": unlimited_bytes}, link)
    needed_bytes = unlimited.runs[-1].needed_bytes
    print(f"it needs {format_bytes(needed_bytes)}")
    for percent in parts:
        size = needed_bytes * percent // 100
        print(f"{percent} % of that, the link of {link}")
        rows = benchmark.turns({"resident": unlimited_bytes, "no advice": size, "swap": size}, link)
        measured, predicted = removed([row.step_s for row in rows]), removed([row.predicted_s for row in rows])
        print(f"  stall removed {measured}, predicted {predicted} (goal {GOAL:.0%})")
        print(f"{percent} % of that, at memcpy speed")
        unadvised, planned = benchmark.turns({"no advice": size, "swap": size}, None)
        _print_ratio(planned, unadvised)
    print(f"beside checkpointing of each layer, the link of {link}")
    (checkpointed,) = benchmark.turns({"checkpointing": unlimited_bytes}, link)
    size = checkpointed.runs[-1].needed_bytes
    _, planned = benchmark.turns({"resident": unlimited_bytes, "swap": size}, link)
    _print_ratio(planned, checkpointed)


def main() -> int:
    """Prints times and ratios; 3 where losses differ."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--layers", type=int, default=24, help="of 24: fewer are quicker")
    parser.add_argument("--hidden", type=int, default=1024, help="of 1024")
    parser.add_argument("--steps", type=int, default=4, help="that are measured in each run")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--parts", default="50,33", help="percent of what training needs")
    parser.add_argument("--threads", type=int, default=max(1, (os.cpu_count() or 2) - 1), help="that compute")
    parser.add_argument("--link", default="v100-pcie3", help="a device of the catalogue")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows")
    options = parser.parse_args()
    network = {name: getattr(options, name) for name in ("batch", "length", "layers", "hidden")}
    parts = [int(part) for part in options.parts.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        benchmark = Benchmark({**network, "attention": "sdpa"}, options.steps, options.rounds, options.threads, folder)
        words = " ".join(f"{name} {value}" for name, value in network.items())
        print(f"BERT-Large, {words}, threads {options.threads}")
        measure(benchmark, parts, options.link)
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(benchmark.rows), indent=1) + b"\n")
    ended = [each for row in benchmark.rows for each in row.runs if each.error is None]
    same = len({tuple(step.loss_hex for step in each.steps) for each in ended}) == 1
    print("losses equal to the last bit" if same else "LOSSES DIFFER")
    return 0 if same else 3


if __name__ == "__main__":
    sys.exit(main())
