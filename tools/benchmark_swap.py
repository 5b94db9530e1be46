"""BERT-Large by planned swaps on part of the memory that it needs, against unified memory and checkpointing.

    python tools/benchmark_swap.py [--batch 2] [--length 128] [--parts 50,33] [--json FILE]

Everything runs in one go, each run in a process of its own on the emulated device: with all the memory it needs; on
parts of it under unified memory without advice and by planned swaps; with activation checkpointing, and by planned
swaps on what that takes. Copies, faults and evictions take the time of --link, a device of the catalogue; then the
parts come again at memcpy speed. Times are medians over the steps after the first ones, in which a step is recorded and
planned. "stall removed" is the part of unified memory's excess over unlimited memory that planned swaps do not have;
beside each time is what the simulator says of the same step, plan and device.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from demo import available_bytes
from swap_run import Kind, Run, Specification, plan_file, run, trace_file

from umadvise.catalogue import load_device
from umadvise.device_profile import DeviceProfile
from umadvise.planners import io as plan_io
from umadvise.planners.score import score
from umadvise.planning_view import transferred, view_of
from umadvise.simulator.steady import mean_step
from umadvise.simulator.swap import simulate_resident
from umadvise.simulator.unified import simulate_unified
from umadvise.trace import io as trace_io
from umadvise.units import format_bytes

WARM_UP = 4
"""Steps that are not measured: the first makes the optimizer's state, others are recorded and planned."""
GOAL = 0.8
_BLOCK_BYTES = 2 << 20


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One run, measured and predicted."""

    name: str
    link: str | None
    capacity_bytes: int
    step_s: float | None
    predicted_s: float | None
    run: Run


@dataclass(frozen=True)
class Benchmark:
    """The runs of one network.

    Attributes:
        batch: sequences a step.
        length: tokens a sequence.
        steps: that are measured in each run.
    """

    batch: int
    length: int
    steps: int

    def measure(self, kind: Kind, capacity_bytes: int, link: str | None, keep: str | None = None) -> Run:
        """Trains in one kind of memory."""
        capacity_bytes = -(-capacity_bytes // _BLOCK_BYTES) * _BLOCK_BYTES
        return run(
            Specification(
                network="bert_large",
                options={"batch": self.batch, "length": self.length, "attention": "sdpa"},
                kind=kind,
                capacity_bytes=capacity_bytes,
                link=link,
                steps=WARM_UP + self.steps,
                keep=keep,
            )
        )

    def row(
        self, name: str, kind: Kind, capacity_bytes: int, link: str | None, *, resident: str, folder: str | None = None
    ) -> Row:
        """A run, and what the simulator says of it; `resident` is where the unlimited run left its step."""
        measured = self.measure(kind, capacity_bytes, link, folder)
        predicted_s = None
        if link is not None and measured.error is None:
            predicted_s = _predicted_s(kind, resident, folder, capacity_bytes, load_device(link))
        row = Row(
            name=name,
            link=link,
            capacity_bytes=capacity_bytes,
            step_s=_median_s(measured),
            predicted_s=predicted_s,
            run=measured,
        )
        print(_line(row), flush=True)
        return row


def _median_s(measured: Run) -> float | None:
    if measured.error is not None:
        return None
    return statistics.median(measured.step_ns[WARM_UP:]) / 1e9


def _predicted_s(
    kind: Kind, resident: str, folder: str | None, capacity_bytes: int, device: DeviceProfile
) -> float | None:
    trace = trace_io.read(trace_file(resident))
    if kind in ("resident", "checkpointing"):
        return simulate_resident(trace, device, allocator="exact").simulation.step_ns / 1e9
    if kind == "no advice":
        return mean_step(simulate_unified(trace, device, capacity_bytes=capacity_bytes)).step_ns / 1e9
    assert folder is not None
    if not plan_file(folder).exists():
        return None
    plan = plan_io.read(plan_file(folder), trace_io.read(trace_file(folder)))
    view = view_of(trace, budget_bytes=capacity_bytes, chunk_bytes=_BLOCK_BYTES).trace
    step_ns = score(view, device, transferred(plan, view), budget_bytes=plan.budget_bytes).step_ns
    return None if step_ns is None else step_ns / 1e9


def _line(row: Row) -> str:
    words = f"  {row.name:34} {format_bytes(row.capacity_bytes):>10}"
    if row.step_s is None:
        return f"{words}   {(row.run.error or '').splitlines()[0]}"
    predicted = "" if row.predicted_s is None else f", predicted {row.predicted_s:.2f} s"
    words += f"   {row.step_s:6.2f} s a step{predicted}, at most {format_bytes(row.run.peak_bytes)} taken"
    if row.run.rung.startswith("swap"):
        measured, swap = row.run.followed[WARM_UP:], row.run.swap
        words += f"; {sum(measured)} of {len(measured)} steps as planned, {swap['evictions']} evictions in all"
    return words


def removed(unlimited_s: float | None, unadvised_s: float | None, planned_s: float | None) -> float | None:
    """The part of the stalls of unified memory that planned swaps do not have."""
    if unlimited_s is None or unadvised_s is None or planned_s is None or unadvised_s <= unlimited_s:
        return None
    return (unadvised_s - planned_s) / (unadvised_s - unlimited_s)


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{part:.0%}"


def measure(benchmark: Benchmark, parts: list[int], link: str, folder: str) -> Iterator[Row]:
    """All rows, printed as they come."""
    resident = str(Path(folder, "resident"))
    Path(resident).mkdir()
    print(f"BERT-Large {benchmark.batch} x {benchmark.length}, link of {link}")
    unlimited = benchmark.row(
        "unlimited memory", "resident", available_bytes() * 2 // 3, link, resident=resident, folder=resident
    )
    yield unlimited
    needed_bytes = unlimited.run.needed_bytes
    print(f"it needs {format_bytes(needed_bytes)}")
    for speed in (link, None):
        if speed is None:
            print("at memcpy speed")
        for percent in parts:
            size = needed_bytes * percent // 100
            kept = str(Path(folder, f"{speed}-{percent}"))
            Path(kept).mkdir()
            unadvised = benchmark.row(f"{percent} %: unified, no advice", "no advice", size, speed, resident=resident)
            planned = benchmark.row(f"{percent} %: planned swap", "swap", size, speed, resident=resident, folder=kept)
            yield from (unadvised, planned)
            if speed is None:
                _print_ratio(planned, unadvised)
                continue
            measured = removed(unlimited.step_s, unadvised.step_s, planned.step_s)
            predicted = removed(unlimited.predicted_s, unadvised.predicted_s, planned.predicted_s)
            print(
                f"  {percent} %: stall removed {_percent(measured)}, predicted {_percent(predicted)} (goal {GOAL:.0%})"
            )
    yield from _beside_checkpointing(benchmark, link, unlimited.capacity_bytes, folder)


def _print_ratio(one: Row, other: Row) -> None:
    if one.step_s is not None and other.step_s is not None:
        print(f"  {one.name} takes x{one.step_s / other.step_s:.2f} of {other.name} (goal at most 1)")


def _beside_checkpointing(benchmark: Benchmark, link: str, unlimited_bytes: int, folder: str) -> Iterator[Row]:
    own, kept = (str(Path(folder, name)) for name in ("checkpointing", "checkpointing-swap"))
    for each in (own, kept):
        Path(each).mkdir()
    print("beside checkpointing of each layer")
    row = benchmark.row(
        "checkpointing, unlimited memory", "checkpointing", unlimited_bytes, link, resident=own, folder=own
    )
    yield row
    size = row.run.needed_bytes
    planned = benchmark.row(
        "planned swap on what that needs", "swap", size, link, resident=str(Path(folder, "resident")), folder=kept
    )
    yield planned
    _print_ratio(planned, row)


def main() -> int:
    """Prints times and ratios; 3 where losses differ."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=4, help="that are measured in each run")
    parser.add_argument("--parts", default="50,33", help="percent of what training needs")
    parser.add_argument("--link", default="v100-pcie3", help="a device of the catalogue")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows")
    options = parser.parse_args()
    benchmark = Benchmark(options.batch, options.length, options.steps)
    parts = [int(part) for part in options.parts.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        rows = list(measure(benchmark, parts, options.link, folder))
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(rows), indent=1) + b"\n")
    same = len({tuple(row.run.losses_hex) for row in rows if row.run.error is None}) == 1
    print("losses equal to the last bit" if same else "LOSSES DIFFER")
    return 0 if same else 3


if __name__ == "__main__":
    sys.exit(main())
