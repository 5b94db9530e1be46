"""The planner `advice`: static advice by role under unified memory (Choi and Lee 2021).

Source: "Efficient Use of GPU Memory for Large-Scale Deep Learning Model Training", Applied Sciences 11(21), sections 3
and 5.

Every tensor gets the advice of its role when it is made, and nothing is scheduled: the driver pages. As in the paper's
`set_unified`, "prefetch" is one prefetch when memory is made; what is there before the step begins had it then.

A plan's first anchor is after the op that makes a storage, and so after its first touch. What gives memory out can be
told earlier: `score` simulates the advice as `by_role` says it, the same bytes with fewer faults.
"""

from collections.abc import Iterator
from itertools import product

import numpy as np

from umadvise.devices.rungs import ADVISE, ARENA_ROLES
from umadvise.records.advice import PAPER_WORDS, parse_advice
from umadvise.records.device import DeviceProfile
from umadvise.records.enums import Advice, Role
from umadvise.records.plan import Action, ActionKind, Plan
from umadvise.records.trace import EventKind, Trace
from umadvise.simulator.unified import arenas

_WORDS = {advice: word for word, advice in PAPER_WORDS.items()}


def advice(
    trace: Trace,
    device: DeviceProfile,
    budget_bytes: int,
    *,
    parameter: str = _WORDS[ADVISE.advice[Role.PARAMETER]],
    input: str = _WORDS[ADVISE.advice[Role.INPUT]],  # noqa: A002  # the paper's word
    intermediate: str = _WORDS[ADVISE.advice[Role.INTERMEDIATE]],
) -> Plan:
    """A plan of advice for the three kinds of data; by default the paper's recommendation (its section 5.1).

    An op's scratch, and what lives no longer than one op, is gone before anything could be said about it.

    Args:
        trace: trace of one training step.
        device: profile of the device, which has to page unified memory.
        budget_bytes: bytes of device memory, beyond which the driver evicts; the plan does not depend on it.
        parameter: advice, in the paper's words, for parameters and for optimizer state that is there before the step.
        input: advice, in the paper's words, for input data.
        intermediate: advice, in the paper's words, for all other data.

    Raises:
        PolicyError: the device cannot page unified memory.
        InvalidAdviceError: no such advice.
    """
    device.require_unified_memory()
    words = {Role.PARAMETER: parameter, Role.INPUT: input, Role.INTERMEDIATE: intermediate}
    chosen = {role: parse_advice(word) for role, word in words.items()}
    arena, births, count = arenas(trace), trace.births, len(trace.ops)
    made = (trace.events.kind == EventKind.ALLOCATE) & (trace.events.inside == 1)
    inside = np.zeros(len(trace.storages), bool)
    inside[trace.events.storage[made]] = True
    # Alive at the first anchor that there is: after the op that makes it, or before the next one.
    lasts = (trace.deaths > births) & (trace.storages.bytes > 0) & (inside | (births + 1 < count))
    actions = []
    for storage in np.flatnonzero(lasts).tolist():
        wanted, birth = chosen[Role(int(arena[storage]))], int(births[storage])
        if wanted is Advice.NONE or (wanted is Advice.PREFETCH and birth < 0):
            continue
        kind = ActionKind.PREFETCH if wanted is Advice.PREFETCH else ActionKind.ADVISE
        argument = 0 if wanted is Advice.PREFETCH else wanted
        after = bool(inside[storage])
        actions.append(Action(kind, birth if after else birth + 1, storage, after=after, argument=argument))
    options = {role.name.lower(): _WORDS[chosen[role]] for role in ARENA_ROLES}
    return Plan.from_actions(trace, actions, planner="advice", budget_bytes=budget_bytes, options={**options})


def by_role(plan: Plan) -> dict[Role, Advice]:
    """The advice that a plan of `advice` gives.

    Raises:
        InvalidAdviceError: its options are not those of `advice`.
    """
    given = {role: plan.options.get(role.name.lower()) for role in ARENA_ROLES}
    return {role: parse_advice(word if isinstance(word, str) else str(word)) for role, word in given.items()}


def all_combinations() -> Iterator[dict[str, str]]:
    """Options for each of the 125 combinations of the five advises for the three roles (the paper's section 5)."""
    names = [role.name.lower() for role in ARENA_ROLES]
    for words in product(PAPER_WORDS, repeat=len(names)):
        yield dict(zip(names, words, strict=True))
