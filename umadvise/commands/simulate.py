"""Predict whether a step runs on a device, how fast, and what stands in its way.

TRACE is what `umadvise record` or `umadvise run --record` wrote. Nothing is run: the ops' durations are those of the
device's roofline, memory and paging follow the rules of its allocator and driver.
"""

import argparse
import sys
from typing import TYPE_CHECKING

from umadvise.errors import UsageError

if TYPE_CHECKING:
    from umadvise.device_profile import DeviceProfile
    from umadvise.trace.schema import Trace

_ADVICE = ("parameter", "input", "intermediate")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A trace, a device, and what to try on it."""
    parser.add_argument("trace", metavar="TRACE", help="a trace")
    parser.add_argument("--target", metavar="NAME", help="a device of the catalogue, or a device file; the trace's own")
    parser.add_argument("--budget", metavar="BYTES", help='device memory to use, such as "8GiB"; all that there is')
    parser.add_argument(
        "--step", type=int, metavar="N", help="which step, where the trace holds several; the last whole one"
    )
    for role in _ADVICE:
        parser.add_argument(
            f"--{role}-advice", metavar="ADVICE", help=f"try this unified-memory advice for {role}s too"
        )
    parser.add_argument("--iterations", type=int, default=7, metavar="N", help="of unified memory; 2 are the warm-up")
    parser.add_argument("--json", action="store_true", help="print data instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Prints the prediction."""
    import msgspec

    from umadvise._abi import Role
    from umadvise.advice import parse_advice
    from umadvise.catalogue import load_device
    from umadvise.reporters import prediction as reporter
    from umadvise.simulator.prediction import predict
    from umadvise.trace import cut, io
    from umadvise.units import parse_bytes

    trace = io.read(arguments.trace)
    steps = sorted(set(trace.ops.step.tolist()) - {0})
    if arguments.step is not None or len(steps) > 1:
        chosen = arguments.step if arguments.step is not None else _last_whole_step(trace, steps)
        if chosen not in steps:
            raise UsageError(f"the trace has no step {chosen}: expected one of {steps[0]} to {steps[-1]}")
        trace = cut.step(trace, chosen)
    device = load_device(arguments.target) if arguments.target is not None else _own_device(trace)
    given = {role: getattr(arguments, f"{role}_advice") for role in _ADVICE}
    advice = {Role[role.upper()]: parse_advice(word) for role, word in given.items() if word is not None}
    prediction = predict(
        trace,
        device,
        budget_bytes=parse_bytes(arguments.budget) if arguments.budget is not None else None,
        advice=advice or None,
        iterations=arguments.iterations,
    )
    if arguments.json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(prediction), indent=1) + b"\n")
    else:
        sys.stdout.write(reporter.render(prediction))
    return 0


def _last_whole_step(trace: "Trace", steps: list[int]) -> int:
    """What a run did after its last update is no step: what trains ends with one."""
    from umadvise._abi import Phase

    updated = trace.ops.step[trace.ops.phase == Phase.OPTIMIZER]
    return int(updated.max()) if len(updated) else steps[-1]


def _own_device(trace: "Trace") -> "DeviceProfile":
    from umadvise.catalogue import load_device

    try:
        return load_device(trace.device)
    except UsageError:
        where = f"on {trace.device!r}, which is not in the catalogue" if trace.device else "for no device"
        raise UsageError(
            f"the trace was recorded {where}: name one with --target (`umadvise devices` lists them)"
        ) from None
