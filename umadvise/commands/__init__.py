"""One module a subcommand: `umadvise plan` lives in plan.py.

A command module has a docstring (its first line is the help text), `add_arguments(parser)` and `run(arguments)`, which
returns the exit code. Modules here import torch and the native core only inside `run`, so that `umadvise --help` stays
instant.
"""

import argparse
import importlib
import pkgutil
from typing import Protocol, cast


class Command(Protocol):
    """What a module of this package looks like."""

    __doc__: str | None

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the command's arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Does the work; errors leave as UmadviseError."""


def commands() -> dict[str, Command]:
    """The command modules by name, in alphabetical order; files that start with an underscore are their helpers."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))
    return {name: cast(Command, importlib.import_module(f"{__name__}.{name}")) for name in names}
