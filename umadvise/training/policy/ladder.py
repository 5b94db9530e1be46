"""Roles, and the policy that gives each role its memory and advice when the user says nothing.

Source of the three roles and of the recommended advice: Choi and Lee 2021, section 3 and table 1 (parameters stay on
the GPU, inputs are read and replaced, intermediates are too large to stay), and section 5.1 for what was fastest.
"""

from dataclasses import dataclass, field, replace

from umadvise._native.abi import Advice, Memory, Placement, Role
from umadvise.errors import PolicyError
from umadvise.planners import PLANNERS

ARENA_ROLES = (Role.PARAMETER, Role.INPUT, Role.INTERMEDIATE)
_NO_ADVICE = dict.fromkeys(ARENA_ROLES, Advice.NONE)
_RECOMMENDED = {
    Role.PARAMETER: Advice.PREFERRED_LOCATION,
    Role.INPUT: Advice.READ_MOSTLY,
    Role.INTERMEDIATE: Advice.PREFETCH,
}


@dataclass(frozen=True)
class Policy:
    """Memory and advice for new allocations, by role.

    Attributes:
        name: the rung of the ladder.
        memory: managed, plain device memory, or chunks.
        advice: for each of the three roles that choose an arena.
    """

    name: str
    memory: Memory = Memory.MANAGED
    advice: dict[Role, Advice] = field(default_factory=lambda: dict(_NO_ADVICE))

    def placement(self, role: Role, explicit: Advice | None = None) -> Placement:
        """Where a tensor of that role goes; advice that the user gave wins, and asks for managed memory."""
        memory = Memory.MANAGED if explicit is not None else self.memory
        return Placement(memory, role, self.advice[role] if explicit is None else explicit)

    def with_advice(self, role: Role, advice: Advice) -> "Policy":
        """The same policy with other advice for one role, in managed memory."""
        return replace(self, memory=Memory.MANAGED, advice={**self.advice, role: advice})


UNADVISED = Policy("noadvise")
"""Unified memory and nothing else: what `patch()` starts with."""

RESIDENT = Policy("resident", Memory.DEVICE)
"""Plain device memory: everything must fit."""

ADVISE = Policy("advise", advice=_RECOMMENDED)
"""Unified memory with the paper's best advice for what does not fit."""

WINDOW = replace(ADVISE, name="window")
"""Likewise until a plan is there, whose advice by role it then has."""

SWAP = Policy("swap", Memory.CHUNKED)
"""Chunks of device memory under stable addresses, swapped explicitly."""

SWAP_RECOMPUTE = replace(SWAP, name="swap+recompute")
"""Likewise, and what is cheap to make again is dropped instead."""

LADDER = {policy.name: policy for policy in (RESIDENT, ADVISE, WINDOW, SWAP, SWAP_RECOMPUTE)}
"""The rungs, from what costs least to what holds most."""
RUNGS = tuple(LADDER)
AUTO = "auto"
_PLANNER_OF = {"window": "um-window", "swap": "best", "swap+recompute": "best"}
_RUNG_OF = {"advice": "advise", "um-window": "window"}


@dataclass(frozen=True)
class Course:
    """What a policy's name stands for.

    Attributes:
        rung: of the ladder; None for `auto`, whose rung the governor chooses.
        planner: that plans its steps; None where nothing is planned.
        recomputes: plans may have tensors made again.
    """

    rung: str | None
    planner: str | None
    recomputes: bool = False


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
        if not planner:
            return Course(own, None if own == ADVISE.name else pinned, recomputes=own == SWAP_RECOMPUTE.name)
        if rung == own or (rung == SWAP.name and own == SWAP_RECOMPUTE.name):
            return Course(rung, None if own == ADVISE.name else pinned, recomputes=rung == SWAP_RECOMPUTE.name)
    raise PolicyError(
        f"unknown policy {name!r}: expected one of {', '.join([*RUNGS, AUTO])}, a planner "
        f"({', '.join(PLANNERS)}), or a rung and a planner that plans for it, such as swap:window"
    )


def check_policy(name: str) -> str:
    """Returns the name if a session can use it.

    Raises:
        PolicyError: it is no policy.
    """
    course_of(name)
    return name
