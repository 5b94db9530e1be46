"""Random plans that are valid: swaps, waits and drops anywhere in the life of any storage.

They are good for nothing but for what they may do: they can be slow, never wrong.
"""

import random
from collections.abc import Iterator

from umadvise.errors import UsageError
from umadvise.records.device import DeviceProfile
from umadvise.records.plan import Action, ActionKind, Plan
from umadvise.records.trace import Trace

_CHOSEN = (ActionKind.SWAP_OUT, ActionKind.SWAP_OUT, ActionKind.SWAP_IN, ActionKind.WAIT)


def random_plan(trace: Trace, _device: DeviceProfile, budget_bytes: int, *, seed: int = 0, share: float = 0.5) -> Plan:
    """A planner that is wrong on purpose.

    Args:
        trace: the step that is planned.
        budget_bytes: only written down.
        seed: the seed of all choices.
        share: the part of the storages that have actions, 0 to 1.

    Raises:
        UsageError: a share that is none.
    """
    if not 0 <= share <= 1:
        raise UsageError(f"share {share}: expected 0 to 1")
    choose = random.Random(seed)
    actions = [
        action
        for storage in range(len(trace.storages))
        if choose.random() < share and trace.storages.bytes[storage] > 0
        for action in _actions_of(trace, storage, choose)
    ]
    return Plan.from_actions(trace, actions, planner="random", budget_bytes=budget_bytes, options={"seed": seed})


def _actions_of(trace: Trace, storage: int, choose: random.Random) -> Iterator[Action]:
    """Actions strictly between a storage's first op and its last one."""
    first, last = int(trace.births[storage]) + 1, int(trace.deaths[storage]) - 1
    if first > last:
        return
    for _ in range(choose.randrange(1, 7)):
        yield Action(choose.choice(_CHOSEN), choose.randint(first, last), storage, after=choose.random() < 0.5)
