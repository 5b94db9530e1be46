"""Say what this machine can and cannot do, and for each thing what to do about it.

Nothing is changed, but the extension against the installed torch is compiled where that was not done yet.
"""

import argparse
import shutil
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How to show it."""
    parser.add_argument("--json", action="store_true", help="print data instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Looks at everything; what is missing is no failure."""
    from umadvise.doctor.examine import examine
    from umadvise.reports.reporters import doctor
    from umadvise.reports.reporters.printing import DEFAULT_WIDTH

    diagnosis = examine()
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else DEFAULT_WIDTH
    sys.stdout.write(doctor.json(diagnosis) if arguments.json else doctor.render(diagnosis, width))
    return 0
