"""Show how large a budget a device's memory holds with each allocator, as memory that is taken is not all live.

TRACE is what `umadvise record` or `umadvise run --record` wrote, or several of them. Each budget is planned, and each
plan executed by the simulator of swaps with a model of each allocator.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from umadvise.commands import _step
from umadvise.commands._messages import show
from umadvise.commands._options import planner_options
from umadvise.errors import UsageError

if TYPE_CHECKING:
    from umadvise.records.device import DeviceProfile
    from umadvise.records.trace import Trace
    from umadvise.simulator.swap import AllocatorModel

_ALLOCATORS = "best_fit,va_chunks,caching"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Traces, a device, its memory, budgets, allocators and what plans."""
    _step.add_arguments(parser, several=True)
    parser.add_argument("--memory", metavar="SIZE", help="device memory that allocators may take; all that there is")
    parser.add_argument(
        "--budget", metavar="SIZES", help='that plans are made for, such as "8GiB,6GiB"; every 32nd part of the memory'
    )
    parser.add_argument(
        "--allocator",
        metavar="NAMES",
        default=_ALLOCATORS,
        help=f"models of allocation; {_ALLOCATORS} (a wrong name lists them)",
    )
    parser.add_argument("--chunk-bytes", metavar="SIZE", help="physical chunk of va_chunks; 20MiB")
    parser.add_argument("--planner", metavar="NAME", default="window", help="an algorithm that swaps; window")
    _step.planner_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print data instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Prints what budgets take."""
    from umadvise.planners.judging.fragmentation import STEPS_OF_MEMORY, fragmentation
    from umadvise.records.units import parse_bytes
    from umadvise.reports.reporters import fragmentation as reporter
    from umadvise.simulator.swap import CHUNK_BYTES

    options = planner_options(arguments.planner, arguments.option)
    allocators = _allocators(arguments.allocator)
    traces, device = _traces(arguments)
    memory_bytes = device.usable_bytes if arguments.memory is None else parse_bytes(arguments.memory)
    budgets = [memory_bytes * part // STEPS_OF_MEMORY for part in range(1, STEPS_OF_MEMORY + 1)]
    if arguments.budget is not None:
        budgets = [parse_bytes(word) for word in arguments.budget.split(",")]
    found = fragmentation(
        traces,
        device,
        budgets,
        memory_bytes=memory_bytes,
        planner=arguments.planner,
        options=options,
        allocators=allocators,
        chunk_bytes=CHUNK_BYTES if arguments.chunk_bytes is None else parse_bytes(arguments.chunk_bytes),
        progress=_step.progress("fragmentation"),
    )
    show(found, lambda: reporter.render(found), as_json=arguments.json)
    return 0


def _traces(arguments: argparse.Namespace) -> "tuple[dict[str, Trace], DeviceProfile]":
    traces, device = {}, None
    for path in arguments.trace:
        trace, own = _step.read_step(path, arguments)
        if device is not None and own.name != device.name:
            raise UsageError(f"the traces are for {device.name} and {own.name}: name one device with --target")
        name, device = Path(path).name, own
        if name in traces:
            raise UsageError(f"two traces are called {name}: expected different names")
        traces[name] = trace
    assert device is not None  # argparse wants at least one
    return traces, device


def _allocators(text: str) -> "list[AllocatorModel]":
    from umadvise.simulator.swap import ALLOCATOR_MODELS

    words = dict.fromkeys(word.strip() for word in text.split(","))
    for word in words:
        if word not in ALLOCATOR_MODELS:
            raise UsageError(f"unknown allocator {word!r}: expected one of {', '.join(ALLOCATOR_MODELS)}")
    return list(words)  # type: ignore[arg-type]  # each one is known
