"""Show which tensors faulted in a run, why, and what would help.

FILE is the fault profile that `umadvise run` or `um.report(path)` wrote.
"""

import argparse
import os
import shutil
import sys

from umadvise.records import fault_profile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A file, and how to show it."""
    parser.add_argument("file", metavar="FILE", help="a fault profile")
    parser.add_argument("--json", action="store_true", help="print the profile as JSON instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Prints the report of a profile; colours and the terminal's width only on a terminal."""
    from umadvise.reports.reporters import text

    profile = fault_profile.read(arguments.file)
    if arguments.json:
        report = fault_profile.encode(profile).decode()
    elif sys.stdout.isatty():
        report = text.render(profile, shutil.get_terminal_size().columns, color=not os.environ.get("NO_COLOR"))
    else:
        report = text.render(profile)
    # A terminal that cannot show the blocks shows question marks: better than no report.
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(report.encode(encoding, "replace").decode(encoding))
    return 0
