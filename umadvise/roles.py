"""Roles, and the policy that gives each role its memory and advice when the user says nothing.

Source of the three roles and of the recommended advice: Choi and Lee 2021, section 3 and table 1 (parameters stay on
the GPU, inputs are read and replaced, intermediates are too large to stay), and section 5.1 for what was fastest.
"""

from dataclasses import dataclass, field, replace

from umadvise._abi import Advice, Memory, Placement, Role
from umadvise.errors import PolicyError

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
        memory: managed, or plain device memory.
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

POLICIES = {policy.name: policy for policy in (RESIDENT, ADVISE)}
AUTO = "auto"
LATER = ("window", "swap", "swap+recompute")


def check_policy(name: str) -> str:
    """Returns the name if a session can use it.

    Raises:
        PolicyError: it is no policy, or one of a later version.
    """
    usable = ", ".join([*POLICIES, AUTO])
    if name in LATER:
        raise PolicyError(f"policy {name!r} is not in this version of umadvise: expected one of {usable}")
    if name != AUTO and name not in POLICIES:
        raise PolicyError(f"unknown policy {name!r}: expected one of {usable}")
    return name
