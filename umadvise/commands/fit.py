"""Say what runs on a card before anything runs: the largest batch, and what a step of each batch costs on each rung.

FACTORY is a function of MODULE with an argument `batch`, as `umadvise record` takes it. A step of each batch is
recorded without running it and simulated on the target. That a larger batch needs more memory is taken for granted.
"""

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from umadvise.commands import _factory, _step
from umadvise.commands._messages import show
from umadvise.commands._options import parse_options
from umadvise.errors import UsageError

if TYPE_CHECKING:
    from umadvise.recording.workload import Workload
    from umadvise.training.plans.fit import Batches

_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MOST_BATCH = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A training, a card, batches and rungs."""
    _factory.add_arguments(parser)
    parser.add_argument("--target", required=True, metavar="NAME", help="a device of the catalogue, or a device file")
    parser.add_argument(
        "--batch",
        default="1..64",
        metavar="BATCHES",
        help='"1..64" is both ends, the powers of two between them, and the largest that runs on each rung, which is '
        'found by bisection; "1,2,8" is these. 1..64',
    )
    parser.add_argument(
        "--budget", metavar="SIZE", help='device memory to use, such as "8GiB"; all that the driver leaves to programs'
    )
    parser.add_argument(
        "--rungs",
        metavar="NAMES",
        help="rungs of the ladder; resident,advise,window,swap. swap+recompute is simulated as if every op might run "
        "again, and takes longer",
    )
    parser.add_argument(
        "--emulated",
        action="store_true",
        help="on umadvise's emulated device of that memory in place of the card: the CPU's kernels in the card's times",
    )
    parser.add_argument("--json", action="store_true", help="print data instead of text")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.svg", help="draw speed and memory against the batch, to a file"
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints what runs."""
    from umadvise.devices.catalogue import load_device
    from umadvise.records.files import write_atomically
    from umadvise.records.units import parse_bytes
    from umadvise.reports.reporters import fit as reporter
    from umadvise.training.plans.device import PlanningDevice
    from umadvise.training.plans.fit import RUNGS, Fitting

    if arguments.plot is not None and arguments.plot.suffix != ".svg":
        raise UsageError(f"--plot {arguments.plot}: expected a name that ends in .svg")
    options = parse_options(arguments.option)
    if "batch" in options:
        raise UsageError("the batch is given by --batch, and not by --option")
    batches = _batches(arguments.batch)
    profile = load_device(arguments.target)
    budget_bytes = profile.usable_bytes if arguments.budget is None else parse_bytes(arguments.budget)
    if (problem := profile.too_large(budget_bytes)) is not None:
        raise UsageError(problem)
    _factory.load(arguments.factory, {"batch": batches.shown[0], **options})  # what is wrong with it is said at once

    def build(batch: int) -> "Workload":
        named: dict[str, Any] = {"batch": batch, **options}
        return _factory.load(arguments.factory, named)()

    device = PlanningDevice(profile, "", synchronous=arguments.emulated)
    rungs = RUNGS if arguments.rungs is None else tuple(word.strip() for word in arguments.rungs.split(","))
    report = Fitting(build, device, budget_bytes, rungs).report(batches, _step.progress("fit"))
    if arguments.plot is not None:
        write_atomically(arguments.plot, reporter.draw(report).encode())
    show(report, lambda: reporter.render(report), as_json=arguments.json)
    return 0


def _batches(text: str) -> "Batches":
    from umadvise.training.plans.fit import Batches

    if (found := _RANGE.fullmatch(text.strip())) is not None:
        least, most = int(found[1]), int(found[2])
        if 1 <= least <= most <= _MOST_BATCH:
            return Batches.between(least, most)
    else:
        words = [word.strip() for word in text.split(",")]
        numbers = {int(word) for word in words if word.isascii() and word.isdecimal()}
        if (
            all(word.isascii() and word.isdecimal() for word in words)
            and 1 <= min(numbers) <= max(numbers) <= _MOST_BATCH
        ):
            return Batches(tuple(sorted(numbers)))
    raise UsageError(f'--batch {text!r}: expected numbers from 1 to {_MOST_BATCH}, such as "1..64" or "1,2,8"')
