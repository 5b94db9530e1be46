"""Plan what moves when in a step, so that it runs in a budget, and say what that costs.

TRACE is what `umadvise record` or `umadvise run --record` wrote. The plan goes to a file for `umadvise simulate
--plan`; it is of the trace with the durations of the target.
"""

import argparse
import contextlib
import time
from pathlib import Path

from umadvise.commands import _step
from umadvise.commands._messages import COMMAND, show
from umadvise.commands._options import planner_options
from umadvise.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A trace, a device, a budget, and what plans."""
    _step.add_arguments(parser)
    parser.add_argument("--planner", metavar="NAME", required=True, help="an algorithm; a wrong name lists them")
    _step.planner_arguments(parser)
    parser.add_argument(
        "--budget",
        metavar="SIZE",
        help='device memory, such as "8GiB" or "50%%" of the step\'s peak; all that there is',
    )
    parser.add_argument(
        "--begin-with",
        action="append",
        default=[],
        metavar="FILE",
        help="a plan of the same step, than which the one that `best` makes is no slower; repeatable",
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="where the plan goes")
    _step.regret_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print data instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Plans, writes the file, and prints what the plan is worth."""
    from umadvise import planners
    from umadvise.planners.judging.comparison import PlannerComparison, with_regret
    from umadvise.planners.judging.score import score
    from umadvise.records import plan_file as io
    from umadvise.reports.reporters import comparison as reporter

    if arguments.output.exists() and Path(arguments.trace).exists() and arguments.output.samefile(arguments.trace):
        raise UsageError(f"-o {arguments.output} is the trace itself: expected another file")
    options = planner_options(arguments.planner, arguments.option)
    trace, device = _step.read_step(arguments.trace, arguments)
    budget_bytes = device.usable_bytes
    if arguments.budget is not None:
        budget_bytes = _step.parse_budget(arguments.budget, trace, device)
    plans = [io.read(file, trace) for file in arguments.begin_with]
    began_ns = time.perf_counter_ns()
    plan = planners.run(arguments.planner, trace, device, budget_bytes, _step.progress("plan"), plans, **options)
    planning_ns = time.perf_counter_ns() - began_ns
    worth = score(trace, device, plan, planning_ns=planning_ns)
    io.write(plan, arguments.output)
    if not arguments.no_regret:
        with contextlib.suppress(KeyboardInterrupt):  # the plan is there
            worth = with_regret(worth, trace, device)
    comparison = PlannerComparison.of(trace, device, [worth])
    show(comparison, lambda: reporter.render_plan(plan) + reporter.render(comparison), as_json=arguments.json)
    COMMAND.info("plan in %s", arguments.output)
    return 0
