"""The command line: data on stdout, everything else on stderr; exit codes 0 ok, 1 failed, 2 usage, 3 failed check."""

import argparse
import sys
from collections.abc import Sequence

from umadvise import __version__
from umadvise.commands import commands
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
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    return top


def main(words: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; argparse itself exits with 2 on bad usage."""
    arguments = parser().parse_args(words)
    try:
        code: int = arguments.run(arguments)
    except UmadviseError as error:
        print(f"umadvise {arguments.command}: {error}", file=sys.stderr)
        return error.exit_code
    return code


if __name__ == "__main__":
    sys.exit(main())
