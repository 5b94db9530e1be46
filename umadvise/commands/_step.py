"""What the commands that plan and simulate read: one step, a device, and budgets of its memory."""

import argparse
import logging
import sys
from typing import TYPE_CHECKING

from umadvise.commands._messages import COMMAND
from umadvise.errors import UsageError

if TYPE_CHECKING:
    from umadvise.planners import Progress
    from umadvise.records.device import DeviceProfile
    from umadvise.records.trace import Trace

MOST_RANKS = 64


def add_arguments(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """A step of a trace, or of several, and a device."""
    if several:
        parser.add_argument("trace", metavar="TRACE", nargs="+", help="traces")
    else:
        parser.add_argument("trace", metavar="TRACE", help="a trace")
    parser.add_argument("--target", metavar="NAME", help="a device of the catalogue, or a device file; the trace's own")
    parser.add_argument(
        "--ranks", type=int, default=1, metavar="N", help="devices of a host that train at once and share its link; 1"
    )
    parser.add_argument(
        "--step", type=int, metavar="N", help="which step, where the trace holds several; the last whole one"
    )


def planner_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments that a planner is given."""
    parser.add_argument(
        "--option", action="append", default=[], metavar="KEY=VALUE", help="of the planner, as its paper names it"
    )


def regret_arguments(parser: argparse.ArgumentParser) -> None:
    """Whether plans are compared with the lower bound."""
    parser.add_argument(
        "--no-regret",
        action="store_true",
        help="do not look for the lower bound, which takes seconds for large steps",
    )


def read_step(path: str, arguments: argparse.Namespace) -> "tuple[Trace, DeviceProfile]":
    """Reads a trace: its step with the durations of the device, and the device.

    Raises:
        UsageError: no such step or device.
        FormatError: a file is none of its kind.
    """
    from umadvise.devices.catalogue import load_device
    from umadvise.recording import cut
    from umadvise.recording.dry.roofline import retimed
    from umadvise.records import trace_file as io

    trace = io.read(path)
    steps = sorted(set(trace.ops.step.tolist()) - {0})
    if arguments.step is not None or len(steps) > 1:
        chosen = arguments.step if arguments.step is not None else _last_whole_step(trace, steps)
        if chosen not in steps:
            raise UsageError(f"the trace has no step {chosen}: expected one of {steps[0]} to {steps[-1]}")
        trace = cut.step(trace, chosen)
    device = load_device(arguments.target) if arguments.target is not None else _own_device(trace)
    if not 1 <= arguments.ranks <= MOST_RANKS:
        raise UsageError(f"--ranks {arguments.ranks}: expected 1 to {MOST_RANKS} devices of one host")
    return (trace if trace.device == device.name else retimed(trace, device)), device.among(arguments.ranks)


def parse_budget(word: str, trace: "Trace", device: "DeviceProfile") -> int:
    """A byte size, or a percentage of the step's peak.

    Raises:
        UsageError: neither, or more than the device leaves to programs.
    """
    budget_bytes = parse_size(word, trace)
    if (problem := device.too_large(budget_bytes)) is not None:
        raise UsageError(problem)
    return budget_bytes


def parse_size(word: str, trace: "Trace") -> int:
    """Reads a byte size, or a percentage of the step's peak, however large it is.

    Raises:
        UsageError: neither.
    """
    from umadvise.records.units import parse_bytes

    share = word.strip().removesuffix("%")
    if share == word.strip():
        budget_bytes = parse_bytes(word)
    elif share.isascii() and share.isdecimal() and 0 < int(share) <= 1000:
        budget_bytes = trace.peak_bytes * int(share) // 100
    else:
        raise UsageError(
            f'cannot read {word!r} as a budget: expected a size such as "8GiB", or 1% to 1000% of the peak'
        )
    return budget_bytes


def _last_whole_step(trace: "Trace", steps: list[int]) -> int:
    """What a run did after its last update is no step: what trains ends with one."""
    from umadvise.records.enums import Phase

    updated = trace.ops.step[trace.ops.phase == Phase.OPTIMIZER]
    return int(updated.max()) if len(updated) else steps[-1]


def _own_device(trace: "Trace") -> "DeviceProfile":
    from umadvise.devices.catalogue import load_device

    try:
        return load_device(trace.device)
    except UsageError:
        where = f"on {trace.device!r}, which is not in the catalogue" if trace.device else "for no device"
        raise UsageError(
            f"the trace was recorded {where}: name one with --target (`umadvise devices` lists them)"
        ) from None


def progress(command: str) -> "Progress":
    """Says on a terminal how far a command is."""

    def say(done: int, all_: int) -> None:
        if sys.stderr.isatty() and COMMAND.isEnabledFor(logging.INFO):
            end = "\n" if done == all_ else ""
            print(f"\rumadvise {command}: {done} of {all_}", end=end, file=sys.stderr, flush=True)

    return say
