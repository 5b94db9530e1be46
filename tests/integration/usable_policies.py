"""The policies that this version's sessions take: what all tests of "every rung and planner" go through."""

from umadvise.errors import PolicyError
from umadvise.planners import PLANNERS
from umadvise.training.policy.parsing import parse_policy


def usable(name: str) -> bool:
    """Whether a session takes a policy of that name."""
    try:
        parse_policy(name)
    except PolicyError:
        return False
    return True


RUNGS = [name for name in ("swap", "swap+recompute", "window", "auto", "advise", "resident") if usable(name)]
"""The hardest first."""
SESSION_PLANNERS = [name for name in PLANNERS if name not in RUNGS and usable(name)]
