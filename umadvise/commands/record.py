"""Record one training step as a trace, without running it: any size, with no memory for its data.

FACTORY is a function of MODULE, which is found from the current directory, that builds a step on torch's default device
and returns it as a umadvise.recording.workload.Workload. The trace goes to a file for `umadvise plan` and `simulate`.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from umadvise.commands import _factory
from umadvise.commands._messages import COMMAND
from umadvise.commands._options import parse_options
from umadvise.errors import UsageError

if TYPE_CHECKING:
    from umadvise.records.device import DeviceProfile
    from umadvise.records.trace import Target, Trace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to record, for what, and where it goes."""
    _factory.add_arguments(parser)
    parser.add_argument("--batch", type=int, metavar="N", help="the factory's argument `batch`")
    parser.add_argument(
        "--target", default="cuda", metavar="NAME", help="a device of the catalogue, or just cpu or cuda (no durations)"
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="where the trace goes")


def run(arguments: argparse.Namespace) -> int:
    """Records, writes the file, and prints a summary."""
    options = parse_options(arguments.option)
    if arguments.batch is not None:
        if arguments.batch < 1:
            raise UsageError(f"--batch {arguments.batch}: expected at least 1")
        if "batch" in options:
            raise UsageError("the batch is given twice, by --batch and by --option: once is enough")
        options["batch"] = arguments.batch
    target, device = _target(arguments.target)
    build = _factory.load(arguments.factory, options)

    from umadvise.recording.dry import recorder as dry
    from umadvise.records import trace_file as io
    from umadvise.reports.reporters import trace_summary

    trace: Trace = dry.record(build, target=target, device=device)
    io.write(trace, arguments.output)
    sys.stdout.write(trace_summary.render(trace))
    COMMAND.info("trace in %s", arguments.output)
    return 0


def _target(name: str) -> "tuple[Target, DeviceProfile | None]":
    plain: dict[str, Target] = {"cpu": "cpu", "cuda": "cuda"}
    if name in plain:
        return plain[name], None
    from umadvise.devices import catalogue

    return "cuda", catalogue.load_device(name)
