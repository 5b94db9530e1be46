"""Show which tensors faulted in a run, why, and what would help.

FILE is the fault profile that `umadvise run` or `um.report(path)` wrote.
"""

import argparse
import os
import shutil
import sys
from pathlib import Path

from umadvise.commands._messages import COMMAND
from umadvise.errors import UsageError
from umadvise.records import fault_profile
from umadvise.records.fault_profile import FaultProfile
from umadvise.records.files import write_atomically


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A file, and how to show it."""
    parser.add_argument("file", metavar="FILE", help="a fault profile")
    parser.add_argument("--json", action="store_true", help="print the profile as JSON instead of text")
    parser.add_argument("--html", type=Path, metavar="OUT", help="write the report, with pictures, as one HTML file")
    parser.add_argument("--against", type=Path, metavar="OTHER", help="with --html: compare with this profile's run")
    parser.add_argument(
        "--trace", type=Path, metavar="OUT", help="write one step as a trace that Perfetto (ui.perfetto.dev) opens"
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the report of a profile; colours and the terminal's width only on a terminal."""
    if arguments.against is not None and arguments.html is None:
        raise UsageError("--against compares two runs on a page: expected --html OUT too")
    _check_places(Path(arguments.file), arguments.against, arguments.html, arguments.trace)
    profile = fault_profile.read(arguments.file)
    if arguments.html is None and arguments.trace is None:
        _print(profile, as_json=arguments.json)
    elif arguments.json:
        raise UsageError("--json prints, --html and --trace write: expected one of them")
    if arguments.html is not None:
        from umadvise.reports.html import page

        against = None if arguments.against is None else fault_profile.read(arguments.against)
        _write(arguments.html, page.render(profile, against).encode())
    if arguments.trace is not None:
        from umadvise.reports.reporters import chrome_trace

        _write(arguments.trace, chrome_trace.render(profile))
    return 0


def _check_places(file: Path, against: Path | None, *outputs: Path | None) -> None:
    """Nothing that is written replaces what is read, or another output."""
    taken = {each.resolve() for each in (file, against) if each is not None}
    for output in filter(None, outputs):
        if output.resolve() in taken:
            raise UsageError(f"{str(output)!r} is named twice: expected a file of its own for each output")
        taken.add(output.resolve())


def _print(profile: FaultProfile, *, as_json: bool) -> None:
    from umadvise.reports.reporters import text

    if as_json:
        report = fault_profile.encode(profile).decode()
    elif sys.stdout.isatty():
        report = text.render(profile, shutil.get_terminal_size().columns, color=not os.environ.get("NO_COLOR"))
    else:
        report = text.render(profile)
    # A terminal that cannot show the blocks shows question marks: better than no report.
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(report.encode(encoding, "replace").decode(encoding))


def _write(path: Path, document: bytes) -> None:
    write_atomically(path, document)
    COMMAND.info("written: %s (%s bytes)", path, f"{len(document):,}")
