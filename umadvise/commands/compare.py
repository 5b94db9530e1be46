"""Run planners on one step in several budgets, and compare what their plans would do.

TRACE is what `umadvise record` or `umadvise run --record` wrote. A planner that cannot has an "x", and its reason.
Ctrl-C ends it early and prints what is ready.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from umadvise.commands import _step
from umadvise.commands._messages import show
from umadvise.commands._options import parse_competitors
from umadvise.errors import UsageError

if TYPE_CHECKING:
    from umadvise.records.device import DeviceProfile
    from umadvise.records.trace import Trace

_PERCENTS = (90, 80, 70, 60, 50, 40)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A trace, a device, budgets and planners."""
    _step.add_arguments(parser)
    parser.add_argument(
        "--budget",
        metavar="SIZES",
        help='device memory, such as "8GiB,6GiB" or "75%%,50%%" of the step\'s peak; by default 90%% to 40%% of '
        "it, or of the device's memory where that is less",
    )
    parser.add_argument(
        "--planner",
        metavar="NAMES",
        help='planners, their options, and files of `umadvise plan`, such as "window,lms:sync_mode=3,mine.plan"; '
        "all planners",
    )
    _step.regret_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print data instead of text")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.svg", help="draw overhead against memory, and memory over time, to a file"
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the comparison; 1 where it was interrupted."""
    from umadvise import planners
    from umadvise.planners.judging.comparison import compare
    from umadvise.records.files import write_atomically
    from umadvise.reports.reporters import comparison as reporter

    if arguments.plot is not None and arguments.plot.suffix != ".svg":
        raise UsageError(f"--plot {arguments.plot}: expected a name that ends in .svg")
    competitors = parse_competitors(",".join(planners.PLANNERS) if arguments.planner is None else arguments.planner)
    trace, device = _step.read_step(arguments.trace, arguments)
    budgets = _budgets(arguments.budget, trace, device)
    comparison = compare(
        trace,
        device,
        competitors,
        budgets,
        curves=arguments.plot is not None,
        regrets=not arguments.no_regret,
        progress=_step.progress("compare"),
    )
    if arguments.plot is not None:
        write_atomically(arguments.plot, reporter.draw(comparison).encode())
    show(comparison, lambda: reporter.render(comparison), as_json=arguments.json)
    if comparison.missing:
        newline = "\n" if sys.stderr.isatty() else ""
        print(f"{newline}umadvise compare: interrupted, {comparison.missing} not ready", file=sys.stderr)
    return 1 if comparison.missing else 0


def _budgets(words: str | None, trace: "Trace", device: "DeviceProfile") -> list[int]:
    if words is not None:
        sizes = [_step.parse_size(word, trace) for word in _words(words)]
        problems = [device.too_large(size) for size in sizes]
        if problems[0] is not None and None not in problems:  # a single one that fits is worth a comparison
            raise UsageError(problems[0])
        return sizes
    most_bytes = min(trace.peak_bytes, device.usable_bytes)
    return [most_bytes * percent // 100 for percent in _PERCENTS]


def _words(text: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise UsageError(f"--budget {text!r}: expected sizes with commas between them")
    return words
