"""Predict whether a step runs on a device, how fast, and what stands in its way.

TRACE is what `umadvise record` or `umadvise run --record` wrote. Nothing is run: the ops' durations are those of the
device's roofline, memory and paging follow the rules of its allocator and driver.
"""

import argparse

from umadvise.commands import _step
from umadvise.commands._messages import show

_ADVICE = ("parameter", "input", "intermediate")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A trace, a device, and what to try on it."""
    _step.add_arguments(parser)
    parser.add_argument(
        "--budget", metavar="SIZE", help='device memory to use, such as "8GiB"; the plan\'s, else all that there is'
    )
    for role in _ADVICE:
        parser.add_argument(
            f"--{role}-advice", metavar="ADVICE", help=f"try this unified-memory advice for {role}s too"
        )
    parser.add_argument(
        "--plan", metavar="FILE", help="try this plan too; it is of the same step and target (`umadvise plan`)"
    )
    parser.add_argument("--iterations", type=int, default=7, metavar="N", help="of unified memory; 2 are the warm-up")
    parser.add_argument("--json", action="store_true", help="print data instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Prints the prediction."""
    from umadvise.planners.judging.prediction import predict
    from umadvise.records import plan_file as io
    from umadvise.records.advice import parse_advice
    from umadvise.records.enums import Role
    from umadvise.records.units import parse_bytes
    from umadvise.reports.reporters import prediction as reporter

    trace, device = _step.read_step(arguments.trace, arguments)
    given = {role: getattr(arguments, f"{role}_advice") for role in _ADVICE}
    advice = {Role[role.upper()]: parse_advice(word) for role, word in given.items() if word is not None}
    prediction = predict(
        trace,
        device,
        budget_bytes=parse_bytes(arguments.budget) if arguments.budget is not None else None,
        advice=advice or None,
        plan=io.read(arguments.plan, trace) if arguments.plan is not None else None,
        iterations=arguments.iterations,
    )
    show(prediction, lambda: reporter.render(prediction), as_json=arguments.json)
    return 0
