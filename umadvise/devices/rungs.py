"""Policies: the memory and advice that each role gets when the user says nothing, and the planner of the steps.

Source of the three roles and of the recommended advice: Choi and Lee 2021, section 3 and table 1 (parameters stay on
the GPU, inputs are read and replaced, intermediates are too large to stay), and section 5.1 for what was fastest.
"""

from dataclasses import dataclass, field, replace

from umadvise._native.abi import Memory, Placement
from umadvise.records.enums import Advice, Role

ARENA_ROLES = (Role.PARAMETER, Role.INPUT, Role.INTERMEDIATE)
_NO_ADVICE = dict.fromkeys(ARENA_ROLES, Advice.NONE)
_RECOMMENDED = {
    Role.PARAMETER: Advice.PREFERRED_LOCATION,
    Role.INPUT: Advice.READ_MOSTLY,
    Role.INTERMEDIATE: Advice.PREFETCH,
}


@dataclass(frozen=True)
class Policy:
    """A rung of the ladder: memory and advice for new allocations, by role, and the planner of its steps.

    Attributes:
        name: the rung's name on the ladder.
        memory: the kind of memory: managed, plain device memory, or chunks.
        advice: advice for each of the roles in `ARENA_ROLES`: parameter, input and intermediate.
        planner: name of the planner of the steps; None: nothing is planned.
        recomputes: whether plans may have tensors recomputed.
        keeps_budget: whether an op that does not fit the budget is refused; otherwise it gets what the device has.
    """

    name: str
    memory: Memory = Memory.MANAGED
    advice: dict[Role, Advice] = field(default_factory=lambda: dict(_NO_ADVICE))
    planner: str | None = None
    recomputes: bool = False
    keeps_budget: bool = True

    def placement(self, role: Role, explicit: Advice | None = None) -> Placement:
        """The placement of a tensor of that role; advice that the user gave wins, and asks for managed memory."""
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

WINDOW = replace(ADVISE, name="window", planner="um-window")
"""Unified memory with the paper's advice until a plan is there, whose advice by role it then has."""

SWAP = Policy("swap", Memory.CHUNKED, planner="best")
"""Device memory in chunks, in and out of which tensors are moved explicitly."""

SWAP_RECOMPUTE = replace(SWAP, name="swap+recompute", recomputes=True)
"""Chunks that are swapped, and what is cheap to make again is dropped instead."""

LADDER = {policy.name: policy for policy in (RESIDENT, ADVISE, WINDOW, SWAP, SWAP_RECOMPUTE)}
"""The rungs, from what costs least to what holds most."""
RUNGS = tuple(LADDER)

AUTO = Policy("auto")
"""No rung: the governor chooses one of the ladder (`umadvise/training/policy/governor.py`)."""
