"""Say in words what two files differ in: two traces, two fault profiles, or two plans.

Of traces it is where the steps part; exits with 0 when they are the same step, with 3 when they differ. Of profiles and
plans it is what a step takes, what moves and what changed most; exits with 3 when a condition of --fail-if holds. A
condition is a quantity's name, < or >, and a number: with a sign or % it is about the change from FILE to OTHER, else
about OTHER. The table that is printed has the names.
"""

import argparse
from typing import TYPE_CHECKING

from umadvise.commands._messages import show
from umadvise.errors import UsageError

if TYPE_CHECKING:
    from umadvise.reports.differences.quantities import Difference

_KINDS = {"umadvise.trace": "trace", "umadvise.fault-profile": "profile", "umadvise.plan": "plan"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Two files, and what must not be."""
    parser.add_argument("here", metavar="FILE", help="a trace, a fault profile or a plan")
    parser.add_argument("there", metavar="OTHER", help="another one of the same kind")
    parser.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar="CONDITION",
        help='of profiles and plans: exit with 3 if this holds, such as "step_ns > +5%%" or "faults > 100"; repeatable',
    )
    parser.add_argument("--trace", metavar="TRACE", help="of plans: the trace that both are of, for tensors' names")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Prints what differs."""
    kind = _kind(arguments.here)
    other = _kind(arguments.there)
    if kind != other:
        raise UsageError(
            f"{arguments.here!r} is a {kind} and {arguments.there!r} is a {other}: expected two files of one kind"
        )
    if arguments.trace is not None and kind != "plan":
        raise UsageError(f"--trace names the tensors of plans, and these are {kind}s")
    if kind == "trace":
        return _traces(arguments)
    from umadvise.reports.reporters import difference as reporter

    found = _difference(kind, arguments)
    show(found, lambda: reporter.render(found), as_json=arguments.json)
    return 3 if any(each.holds for each in found.conditions) else 0


def _kind(path: str) -> str:
    from umadvise.records.files import schema_of

    schema = schema_of(path)
    kind = _KINDS.get(schema.partition("/")[0])
    if kind is None:
        raise UsageError(f"{path!r} has the schema {schema[:64]!r}: expected a trace, a fault profile or a plan")
    return kind


def _traces(arguments: argparse.Namespace) -> int:
    from umadvise.recording.difference import differences
    from umadvise.records import trace_file as io

    if arguments.fail_if:
        raise UsageError("--fail-if is about profiles and plans: two traces that differ exit with 3 as it is")
    found = differences(io.read(arguments.here), io.read(arguments.there))
    listed = {"schema": "umadvise.trace-difference/1", "differences": found}
    show(listed, lambda: "\n".join(found or ["The traces are of the same step."]) + "\n", as_json=arguments.json)
    return 3 if found else 0


def _difference(kind: str, arguments: argparse.Namespace) -> "Difference":
    """Of two profiles or two plans, with the conditions."""
    import msgspec

    from umadvise.records import fault_profile, plan_file, trace_file
    from umadvise.reports.differences import plans, profiles
    from umadvise.reports.differences.conditions import checked, parse_condition

    here, there = names = arguments.here, arguments.there
    kinds = profiles.KINDS if kind == "profile" else plans.KINDS
    conditions = [parse_condition(text, kinds) for text in arguments.fail_if]
    if kind == "profile":
        found = profiles.difference(fault_profile.read(here), fault_profile.read(there), names)
    else:
        trace = None if arguments.trace is None else trace_file.read(arguments.trace)
        found = plans.difference(plan_file.read(here, trace), plan_file.read(there, trace), names, trace)
    return msgspec.structs.replace(found, conditions=checked(conditions, found.quantities))
