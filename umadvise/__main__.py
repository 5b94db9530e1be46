"""The command line: data on stdout, everything else on stderr; exit codes 0 ok, 1 failed, 2 usage, 3 failed check."""

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from umadvise._version import __version__
from umadvise.commands import _messages, commands
from umadvise.devices.ranks import ranks
from umadvise.errors import UmadviseError


def parser() -> argparse.ArgumentParser:
    """The whole command line's parser; each subcommand's `run` is its default `run`."""
    top = argparse.ArgumentParser(
        prog="umadvise", description="Train PyTorch models under a byte budget, and see which tensors faulted and why."
    )
    top.add_argument("--version", action="version", version=f"umadvise {__version__}")
    subparsers = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in commands().items():
        description = command.__doc__ or ""
        subparser = subparsers.add_parser(name, help=description.partition("\n")[0], description=description)
        _messages.add_arguments(subparser)
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    return top


def main(words: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; argparse itself exits with 2 on bad usage."""
    arguments = parser().parse_args(words)
    if sys.stdout is None:  # closed by who started this
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115  # until the end
    try:
        with _messages.shown(arguments.verbosity if ranks().speaks else -1):
            code: int = arguments.run(arguments)
        sys.stdout.flush()
    except UmadviseError as error:
        print(f"umadvise {arguments.command}: {error}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        print(
            f"umadvise {arguments.command}: this needs PyTorch, which {sys.executable} has not: install torch 2.9 or "
            "later there. Planning, simulating and reporting work without it",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        if arguments.command == "run":  # the script's to handle
            raise
        newline = "\n" if sys.stderr.isatty() else ""  # after what the terminal shows of the key
        print(f"{newline}umadvise {arguments.command}: interrupted", file=sys.stderr)
        return 1
    except OSError as error:
        ours = arguments.command != "run" and error.errno in (errno.EPIPE, errno.ENOSPC)
        if not ours:  # but a script's, or a factory's
            raise
        # What is still to be written would fail once more when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # whoever reads has seen enough
            print(f"umadvise {arguments.command}: cannot write the result: {error.strerror}", file=sys.stderr)
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
