"""Record one training step as a trace, without running it: any size, with no memory for its data.

FACTORY is a function of MODULE, which is found from the current directory, that builds a step on torch's default device
and returns it as a umadvise.recording.workload.Workload. The trace goes to a file for `umadvise plan` and `simulate`.
"""

import argparse
import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from umadvise.commands._messages import COMMAND
from umadvise.commands._options import parse_options
from umadvise.errors import UsageError

if TYPE_CHECKING:
    from umadvise.recording.workload import Workload
    from umadvise.records.device import DeviceProfile
    from umadvise.records.trace import Target, Trace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to record, for what, and where it goes."""
    parser.add_argument("factory", metavar="MODULE:FACTORY", help='such as "networks.resnet:resnet50"')
    parser.add_argument("--batch", type=int, metavar="N", help="the factory's argument `batch`")
    parser.add_argument(
        "--option", action="append", default=[], metavar="KEY=VALUE", help="another argument of the factory; repeatable"
    )
    parser.add_argument(
        "--target", default="cuda", metavar="NAME", help="a device of the catalogue, or just cpu or cuda (no durations)"
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="where the trace goes")


def run(arguments: argparse.Namespace) -> int:
    """Records, writes the file, and prints a summary."""
    options = parse_options(arguments.option)
    if arguments.batch is not None:
        if arguments.batch < 1:
            raise UsageError(f"--batch {arguments.batch}: expected at least 1")
        if "batch" in options:
            raise UsageError("the batch is given twice, by --batch and by --option: once is enough")
        options["batch"] = arguments.batch
    target, device = _target(arguments.target)
    factory = _factory(arguments.factory)
    _check_options(factory, arguments.factory, options)

    from umadvise.recording.dry import recorder as dry
    from umadvise.records import trace_file as io
    from umadvise.reports.reporters import trace_summary

    def build() -> "Workload":
        workload: Workload = factory(**options)
        return workload

    trace: Trace = dry.record(build, target=target, device=device)
    io.write(trace, arguments.output)
    sys.stdout.write(trace_summary.render(trace))
    COMMAND.info("trace in %s", arguments.output)
    return 0


def _target(name: str) -> "tuple[Target, DeviceProfile | None]":
    plain: dict[str, Target] = {"cpu": "cpu", "cuda": "cuda"}
    if name in plain:
        return plain[name], None
    from umadvise.devices import catalogue

    return "cuda", catalogue.load_device(name)


def _factory(name: str) -> Callable[..., Any]:
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


def _check_options(factory: Callable[..., Any], name: str, options: dict[str, Any]) -> None:
    try:
        inspect.signature(factory).bind(**options)
    except ValueError:  # some callables cannot tell
        return
    except TypeError as error:
        raise UsageError(
            f"{name} does not take these arguments: {error}; its own are {inspect.signature(factory)}"
        ) from error
