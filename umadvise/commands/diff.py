"""Say in words where two traces part.

Exits with 0 when they are the same step, with 3 when they differ.
"""

import argparse

from umadvise.commands._messages import show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Two files."""
    parser.add_argument("here", metavar="FILE", help="a trace")
    parser.add_argument("there", metavar="OTHER", help="another one")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Prints a line a difference."""
    from umadvise.recording.difference import differences
    from umadvise.records import trace_file as io

    found = differences(io.read(arguments.here), io.read(arguments.there))
    listed = {"schema": "umadvise.trace-difference/1", "differences": found}
    show(listed, lambda: "\n".join(found or ["The traces are of the same step."]) + "\n", as_json=arguments.json)
    return 3 if found else 0
