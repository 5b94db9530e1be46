"""MODULE:FACTORY of the commands that record dry: a function that builds a step."""

import argparse
import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from umadvise.errors import UsageError

if TYPE_CHECKING:
    from umadvise.recording.workload import Workload


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The factory and its options."""
    parser.add_argument("factory", metavar="MODULE:FACTORY", help='such as "networks.resnet:resnet50"')
    parser.add_argument(
        "--option", action="append", default=[], metavar="KEY=VALUE", help="another argument of the factory; repeatable"
    )


def load(name: str, options: dict[str, Any]) -> "Callable[[], Workload]":
    """Imports a factory, from the current directory too.

    Args:
        name: module and function, with a colon between them.
        options: arguments that it is to be called with, by name.

    Returns:
        A function that calls it with them.

    Raises:
        UsageError: there is no such factory, or it does not take these arguments.
    """
    factory = _function(name)
    _check(factory, name, options)
    return functools.partial(factory, **options)


def _function(name: str) -> Callable[..., Any]:
    module_name, colon, factory_name = name.partition(":")
    if not (colon and module_name and factory_name):
        raise UsageError(f"{name!r} names no factory: expected MODULE:FACTORY, such as networks.resnet:resnet50")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise UsageError(f"module {module_name!r} cannot be imported: {error}. Install what it needs") from error
        raise UsageError(
            f"no module {module_name!r} here or among what is installed: expected a Python module that can be imported "
            f"from {here}"
        ) from error
    except Exception as error:
        raise UsageError(f"module {module_name!r} cannot be imported: {type(error).__name__}: {error}") from error
    factory: Callable[..., Any] | None = getattr(module, factory_name, None)
    if not callable(factory):
        known = sorted(
            each for each, value in vars(module).items() if inspect.isfunction(value) and not each.startswith("_")
        )
        raise UsageError(
            f"module {module_name!r} has no function {factory_name!r}: it has {', '.join(known) or 'none at all'}"
        )
    return factory


def _check(factory: Callable[..., Any], name: str, options: dict[str, Any]) -> None:
    try:
        inspect.signature(factory).bind(**options)
    except ValueError:  # some callables cannot tell
        return
    except TypeError as error:
        raise UsageError(
            f"{name} does not take these arguments: {error}; its own are {inspect.signature(factory)}"
        ) from error
