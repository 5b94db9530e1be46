"""The policy that a user's word stands for: a rung of the ladder, `auto`, a planner, or a rung and a planner."""

from dataclasses import replace

from umadvise.devices.rungs import ADVISE, AUTO, LADDER, RUNGS, SWAP, SWAP_RECOMPUTE, WINDOW, Policy
from umadvise.errors import PolicyError
from umadvise.planners import PLANNERS

_PLANNED_FOR = {"advice": ADVISE, "um-window": WINDOW}
"""The rungs of planners of unified memory. All others plan for chunks."""


def parse_policy(word: str) -> Policy:
    """The policy of a rung's name, "auto", a planner's name, or a rung and a planner as in "swap:window".

    A rung's name is the rung, also where a planner has it too.

    Raises:
        PolicyError: the word is none of these.
    """
    if word in LADDER or word == AUTO.name:
        return LADDER.get(word, AUTO)
    rung, _, planner = word.partition(":")
    pinned = planner or word
    if pinned in PLANNERS:
        own = _PLANNED_FOR.get(pinned, SWAP_RECOMPUTE)
        chosen = LADDER.get(rung) if planner else own
        if chosen is own or (chosen is SWAP and own is SWAP_RECOMPUTE):
            return chosen if own is ADVISE else replace(chosen, planner=pinned)
    raise PolicyError(
        f"unknown policy {word!r}: expected one of {', '.join([*RUNGS, AUTO.name])}, a planner "
        f"({', '.join(PLANNERS)}), or a rung and a planner that plans for it, such as swap:window"
    )
