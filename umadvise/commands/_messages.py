"""What commands say beside their results: on stderr, as much of it as -v and -q ask for.

`umadvise.command` tells what a command did, such as where a file is, unless it is to be quiet; `umadvise` is the
package's own logger: warnings, with -v what sessions decide and why, with -vv each step.
"""

import argparse
import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PACKAGE, COMMAND = logging.getLogger("umadvise"), logging.getLogger("umadvise.command")
_LEVELS = {-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO, 2: logging.DEBUG}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """-v, -vv and -q."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "-v",
        "--verbose",
        dest="verbosity",
        action="count",
        default=0,
        help="say what is decided and why, on stderr; -vv: each step too",
    )
    group.add_argument(
        "-q", "--quiet", dest="verbosity", action="store_const", const=-1, help="say nothing but errors on stderr"
    )


@contextmanager
def shown(verbosity: int) -> Iterator[None]:
    """Shows messages while a command runs.

    Args:
        verbosity: -1 errors alone, 0 warnings, 1 what is decided, 2 or more everything.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Line())
    handler.addFilter(_unseen)
    before = PACKAGE.level, COMMAND.level
    PACKAGE.setLevel(_LEVELS[min(verbosity, max(_LEVELS))])
    COMMAND.setLevel(logging.ERROR if verbosity < 0 else logging.INFO)
    PACKAGE.addHandler(handler)
    try:
        yield
    finally:
        PACKAGE.removeHandler(handler)
        PACKAGE.setLevel(before[0])
        COMMAND.setLevel(before[1])


def show(data: object, text: Callable[[], str], *, as_json: bool) -> None:
    """Prints what a command found.

    Args:
        data: the record that the command found.
        text: function that puts the record into words for people.
        as_json: whether to print the record as JSON in place of the words.
    """
    import msgspec

    if as_json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(data), indent=1) + b"\n")
    else:
        sys.stdout.write(text())


def terminal_width(otherwise: int) -> int:
    """Columns of the terminal that is written to; where it is none, another number."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else otherwise


class _Line(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        return f"umadvise: {level}{super().format(record)}"


def _unseen(record: logging.LogRecord) -> bool:
    """Whether nobody else shows a record on the terminal: a script that `umadvise run` runs may log there itself."""
    return not any(
        isinstance(handler, logging.StreamHandler)
        and handler.stream in (sys.stdout, sys.stderr)
        and record.levelno >= handler.level
        for handler in logging.getLogger().handlers
    )
