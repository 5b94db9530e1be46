"""Say what this machine can and cannot do, and for each thing what to do about it.

Nothing is changed, but the extension against the installed torch is compiled where that was not done yet.
"""

import argparse

from umadvise.commands._messages import show, terminal_width


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How to show it."""
    parser.add_argument("--json", action="store_true", help="print data instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Looks at everything; what is missing is no failure."""
    from umadvise.doctor.examine import examine
    from umadvise.reports.reporters import doctor
    from umadvise.reports.reporters.printing import DEFAULT_WIDTH

    diagnosis = examine()
    show(diagnosis, lambda: doctor.render(diagnosis, terminal_width(DEFAULT_WIDTH)), as_json=arguments.json)
    return 0
