"""Planners: each decides which tensors move when in a training step, so that the step runs in a budget of memory.

`PLANNERS` names them; `run` runs one. A planner is a function `(trace, device, budget_bytes, **options) -> Plan` whose
keyword arguments, named as in its paper, are its options. Some planners know nothing of time and plan in bytes alone;
how long a step with their plan lasts is for the simulator to say.
"""

import importlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from umadvise.errors import PolicyError, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from umadvise.planners.capacity import Capacity
    from umadvise.records.device import DeviceProfile
    from umadvise.records.plan import Option, Plan
    from umadvise.records.trace import Trace

PLANNERS = {
    "advice": "paging.advice:advice",
    "belady": "papers.on_demand:belady",
    "best": "best:best",
    "dqn": "papers.dqn:dqn",
    "lms": "papers.lms:lms",
    "lru": "papers.on_demand:lru",
    "sqrt-recompute": "papers.sqrt_recompute:sqrt_recompute",
    "superneurons": "papers.superneurons:superneurons",
    "um-window": "paging.um_window:um_window",
    "vdnn-all": "papers.vdnn:vdnn_all",
    "vdnn-conv": "papers.vdnn:vdnn_conv",
    "vdnn-dyn": "papers.vdnn:vdnn_dyn",
    "window": "papers.window:window",
}
"""Module (below `umadvise.planners`) and function of each planner, by name."""
Progress: TypeAlias = Callable[[int, int], None]
"""A callback that gets the number of tasks that are done, and the number of all of them."""
_NO_OPTIONS = ("plans", "progress", "repeatable")
"""What a planner that searches takes besides its options."""


class Planner(Protocol):
    """A planner: a function that makes a plan for one step.

    Raises:
        BudgetError: no plan of this kind keeps the budget.
        UsageError: an option is wrong.
    """

    def __call__(self, trace: "Trace", device: "DeviceProfile", budget_bytes: int, /, **options: Any) -> "Plan":
        """Plans one step."""


def planner(name: str) -> Planner:
    """The planner of a name.

    Raises:
        PolicyError: there is none.
    """
    if name not in PLANNERS:
        raise PolicyError(f"unknown planner {name!r}: expected one of {', '.join(PLANNERS)}")
    module, function = PLANNERS[name].split(":")
    found: Planner = getattr(importlib.import_module(f"{__name__}.{module}"), function)
    return found


def run(
    name: str,
    trace: "Trace",
    device: "DeviceProfile",
    capacity: "int | Capacity",
    progress: Progress | None = None,
    plans: "Sequence[Plan]" = (),
    repeatable: "NDArray[np.bool_] | None" = None,
    /,
    **options: "Option",
) -> "Plan":
    """Plans one step of training.

    Args:
        name: planner to run, one of `PLANNERS`.
        trace: trace of one training step.
        device: profile of the device that the plan is for.
        capacity: bytes that tensors may take on the device at once; or a `Capacity`, which also says what each takes.
        progress: callback for the progress of a planner that searches; None for no reports.
        plans: plans of the same trace to improve on, for a planner that takes some (`begins_with_plans`).
        repeatable: whether each op may run again, for a planner that asks (`best`); None: all may.
        options: the planner's own options, by name.

    Raises:
        PolicyError: no such planner.
        UsageError: no such option, or it is wrong, or the planner begins with no plan.
        BudgetError: the budget does not hold what has to be on the device at once.
    """
    from umadvise.planners.capacity import Capacity

    known_options(name, options)
    chosen = planner(name)
    if plans and not begins_with_plans(name):
        raise UsageError(f"planner {name!r} begins with no other plan: expected one that does, such as best")
    besides: dict[str, Any] = {"plans": plans} if plans else {}
    if repeatable is not None:
        besides["repeatable"] = repeatable
    if progress is not None and "progress" in inspect.signature(chosen).parameters:
        besides["progress"] = progress
    if isinstance(capacity, Capacity):
        return capacity.planned(chosen, trace, device, **besides, **options)
    return chosen(trace, device, capacity, **besides, **options)


def begins_with_plans(name: str) -> bool:
    """Whether a planner begins with plans that others made, and so is never slower than they are.

    Raises:
        PolicyError: no such planner.
    """
    return "plans" in inspect.signature(planner(name)).parameters


def known_options(name: str, given: Iterable[str]) -> dict[str, inspect.Parameter]:
    """The options of a planner; refuses names among those that are given which it does not have.

    Raises:
        PolicyError: no such planner.
        UsageError: the planner does not have one of the options.
    """
    parameters = list(inspect.signature(planner(name)).parameters.items())[3:]
    known = {name: parameter for name, parameter in parameters if name not in _NO_OPTIONS}
    odd = sorted(set(given) - set(known))
    if odd:
        raise UsageError(f"planner {name!r} has no option {odd[0]!r}: expected {', '.join(known) or 'none at all'}")
    return known


def check_range(name: str, value: float | None, low: float, high: float | None = None) -> None:
    """Refuses an option of a planner that is out of its range; None, an option that was not given, passes.

    Raises:
        UsageError: it is not; the message says what was expected.
    """
    if value is not None and not low <= value <= (value if high is None else high):
        expected = f"at least {low}" if high is None else f"{low} to {high}"
        raise UsageError(f"{name}: expected {expected}, found {value}")
