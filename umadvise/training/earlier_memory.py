"""Memory that a process has taken before a session opens in it: in a script under `umadvise run`, or after `patch()`.

Unified memory is the one kind that any later budget can evict. So plain memory and chunks of earlier code are converted
to it when such a session opens, and again when it closes. The session then converts it to the memory of its own rung.
"""

import logging

from umadvise._native.abi import Memory
from umadvise.devices.rungs import ADVISE, Policy
from umadvise.errors import BudgetError, NativeError
from umadvise.records.units import format_bytes
from umadvise.torch_seam.out_of_memory import out_of_memory
from umadvise.torch_seam.runtime import Runtime
from umadvise.training.loop.loop import Loop
from umadvise.training.memory_split import LEAST_MANAGED_BYTES, MemorySplit

log = logging.getLogger("umadvise")


def take_budget(state: Runtime, policy: Policy, *, unified: bool) -> bool:
    """Has a device keep a session's budget; returns whether memory of earlier code was converted to unified memory.

    Args:
        state: patched state of the process.
        policy: policy of the session's first steps. A session in chunks takes over those of earlier code.
        unified: whether the device keeps a budget of unified memory.

    Raises:
        BudgetError: the budget does not hold the plain memory that could not be converted.
        NativeError: the driver fails.
    """
    state.remember_owners()
    paged = unified and _page(state, policy)
    if Loop.shared is not None:
        (Loop.shared.split_around or Loop.shared.split).release()
    if unified:
        state.device.set_budget(state.limit_bytes or 0)
    if paged:
        _check_plain(state)
    return paged


def _page(state: Runtime, policy: Policy) -> bool:
    kinds = {each.memory for each in state.device.allocations()}
    if Loop.shared is not None and policy.memory == Memory.DEVICE and kinds == {Memory.MANAGED}:
        return True  # a script's tensors are the session's too
    if kinds <= {Memory.MANAGED, policy.memory} - {Memory.DEVICE}:
        return False
    before = state.policy
    state.set_policy(ADVISE)
    state.convert(before)
    return True


def _check_plain(state: Runtime) -> None:
    staying_bytes = _live_bytes(state, Memory.DEVICE)
    least_bytes = staying_bytes + LEAST_MANAGED_BYTES
    if staying_bytes and state.limit_bytes is not None and least_bytes > state.limit_bytes:
        raise BudgetError(
            f"the session's budget is {format_bytes(state.limit_bytes)}, and earlier code keeps "
            f"{format_bytes(staying_bytes)} on the device that cannot be evicted, mostly tensors whose address was "
            f"handed out: give the session at least {format_bytes(least_bytes)}, or delete these tensors first"
        )


def move_earlier(state: Runtime, split: MemorySplit, policy: Policy, *, limited: bool) -> None:
    """Converts what `take_budget` has paged to the memory of the session's rung.

    Args:
        state: patched state of the process.
        split: division of the memory by the session.
        policy: policy of the session's first steps.
        limited: whether plain device memory keeps the budget.

    Raises:
        NativeError: the driver fails.
        torch.OutOfMemoryError: the rung is resident, and the budget does not hold it.
    """
    split.change(policy, ADVISE, limited=limited)
    live_bytes = _live_bytes(state, *Memory)
    if limited and policy.memory == Memory.DEVICE and live_bytes > split.room_bytes:
        raise out_of_memory(
            f"earlier code and the session's model take {format_bytes(live_bytes)} of the budget of "
            f"{format_bytes(split.room_bytes)}, and policy resident evicts nothing: use another policy or a larger "
            "budget"
        )


def page_left(state: Runtime) -> None:
    """Converts what a session has left on the device to unified memory, which the budget after it can evict."""
    try:
        _page(state, ADVISE)
    except NativeError as error:
        log.warning("tensors that outlive the session stay in the memory that they have: %s", error)


def _live_bytes(state: Runtime, *kinds: Memory) -> int:
    return sum(each.reserved_bytes for each in state.device.allocations() if each.memory in kinds)
