"""How large a batch of ResNet-50 trains on the emulated device: without umadvise, at 7.5 times that, and at most.

    python tools/benchmark_batch.py [--capacity 640MiB] [--image 64] [--json FILE]

7.5 is the factor of Hayakawa and Narihira 2020 (section 5.1: batch 1440 where 190 fits). Without umadvise a batch fits
if its tensors do, to the byte, as no allocator is better than that; with it tensors are swapped by plan. A batch trains
if three steps end, of which the third is planned. The largest batch is found within 5 %. Unified memory, which lets an
op use more than there is, is limited by the host's memory alone, and is not looked at.
"""

import sys
from pathlib import Path

import msgspec
from harness import command_line, largest
from swap_run import Kind, TraineeRun, run, task, unlimited_bytes

from umadvise.records.units import format_bytes, parse_bytes

FACTOR = 7.5
STEPS = 3
_PART = 20
"""A largest batch is found to this part of it."""


class BatchTrial(msgspec.Struct, frozen=True, kw_only=True):
    """A batch, and what came of it."""

    batch: int
    kind: Kind
    run: TraineeRun


class BatchTrials:
    """Trains batches, prints what comes of each, and keeps it.

    Attributes:
        done: what came of each batch, in order.
    """

    def __init__(self, capacity_bytes: int, image: int) -> None:
        self._capacity_bytes, self._image = capacity_bytes, image
        self.done: list[BatchTrial] = []

    def fits(self, batch: int) -> bool:
        """Whether all tensors of a step with this batch fit at once."""
        needed_bytes = self._run(batch, "resident", unlimited_bytes()).needed_bytes
        print(f"  batch {batch:5} needs {format_bytes(needed_bytes)}", flush=True)
        return needed_bytes <= self._capacity_bytes

    def trains(self, batch: int) -> bool:
        """Whether a batch trains by planned swaps."""
        found = self._run(batch, "swap", self._capacity_bytes)
        times = " ".join(f"{seconds:.1f}" for seconds in found.durations_s())
        print(f"  batch {batch:5} by swaps: {(found.error or f'{times} s').splitlines()[0]}", flush=True)
        return found.error is None

    def _run(self, batch: int, kind: Kind, capacity_bytes: int) -> TraineeRun:
        found = run(task("resnet50", {"batch": batch, "image": self._image}, kind, capacity_bytes), STEPS)
        self.done.append(BatchTrial(batch=batch, kind=kind, run=found))
        return found


def main() -> int:
    """Prints the three batches; 1 where 7.5 times the first does not train."""
    parser = command_line(__doc__)
    parser.add_argument("--capacity", default="640MiB", help="of the emulated device")
    parser.add_argument("--image", type=int, default=64, help="its side in pixels")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what came of each batch")
    options = parser.parse_args()
    capacity_bytes = parse_bytes(options.capacity)
    trials = BatchTrials(capacity_bytes, options.image)
    print(f"ResNet-50, {options.image} x {options.image}, SGD with momentum, in {format_bytes(capacity_bytes)}")
    if not trials.fits(2):
        raise SystemExit("not two images fit: give more --capacity")
    fits = largest(trials.fits, 2)
    target = int(FACTOR * fits)
    reached = trials.trains(target)
    most = largest(trials.trains, target if reached else fits, part=_PART)
    print(f"fits without umadvise: {fits}")
    print(f"{FACTOR} times that: {target} {'trains' if reached else 'DOES NOT TRAIN'}")
    print(f"the largest that trains by swaps: {most}, {most / fits:.1f} times")
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(trials.done), indent=1) + b"\n")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
