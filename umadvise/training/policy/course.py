"""What the name of a policy stands for: a rung of the ladder, `auto`, a planner, or a rung and a planner."""

from dataclasses import dataclass

from umadvise.devices.rungs import ADVISE, LADDER, RUNGS, SWAP, SWAP_RECOMPUTE
from umadvise.errors import PolicyError
from umadvise.planners import PLANNERS

AUTO = "auto"
_PLANNER_OF = {"window": "um-window", "swap": "best", "swap+recompute": "best"}
_RUNG_OF = {"advice": "advise", "um-window": "window"}


@dataclass(frozen=True)
class Course:
    """What a policy's name stands for.

    Attributes:
        rung: rung of the ladder; None for `auto`, whose rung the governor chooses.
        planner: name of the planner of its steps; None where nothing is planned.
        recomputes: whether plans may have tensors made again.
        keeps_budget: whether what finds no room within the budget is refused, and not given what the device has.
    """

    rung: str | None
    planner: str | None
    recomputes: bool = False
    keeps_budget: bool = True


def course_of_rung(rung: str) -> Course:
    """What runs on a rung."""
    return Course(rung, _PLANNER_OF.get(rung), recomputes=rung == SWAP_RECOMPUTE.name)


def course_of(name: str) -> Course:
    """What a policy is: a rung, "auto", a planner, or a rung and a planner as in "swap:window".

    A rung's name is the rung, also where a planner has it too. Planners of unified memory run in unified memory, all
    others in chunks.

    Raises:
        PolicyError: it is none of these.
    """
    if name == AUTO:
        return Course(None, None)
    if name in LADDER:
        return course_of_rung(name)
    rung, _, planner = name.partition(":")
    pinned = planner or name
    if pinned in PLANNERS:
        own = _RUNG_OF.get(pinned, SWAP_RECOMPUTE.name)
        rung = rung if planner else own
        if rung == own or (rung == SWAP.name and own == SWAP_RECOMPUTE.name):
            return Course(rung, None if own == ADVISE.name else pinned, recomputes=rung == SWAP_RECOMPUTE.name)
    raise PolicyError(
        f"unknown policy {name!r}: expected one of {', '.join([*RUNGS, AUTO])}, a planner "
        f"({', '.join(PLANNERS)}), or a rung and a planner that plans for it, such as swap:window"
    )
