"""What tensors may take on the device: a number of bytes, or "auto" for what a card that is shared has to spare.

The rule of "auto" on a GPU: what is free now, and what tensors of umadvise have there already, less a reserve of a
sixteenth of the card, at least 256 MiB. Free is what CUDA says (cuMemGetInfo), or NVML where that is less. The reserve
is for what is never paged (workspaces of libraries, kernels that are loaded later) and for neighbours that grow. It is
looked at once, when the device or the session is opened: a neighbour that comes later takes its memory from the
reserve, and then the driver evicts for it. The emulated device is nobody's neighbour: there "auto" is its capacity.
"""

from typing import Literal, TypeAlias

from umadvise import _native
from umadvise.devices import nvml
from umadvise.devices.cuda_attributes import pci_address
from umadvise.errors import BudgetError, InvalidSizeError, NvmlUnavailableError
from umadvise.records.units import BLOCK_BYTES, format_bytes, parse_bytes

Budget: TypeAlias = int | Literal["auto"] | None
"""None: only the device's capacity limits it."""

_RESERVE_PART = 16
_LEAST_RESERVE_BYTES = 256 << 20
_LEAST_BYTES = 64 << 20


def parse_budget(budget: int | str | None) -> Budget:
    """Reads a budget as users give it.

    Args:
        budget: bytes, text such as "8GiB", "auto", or None.

    Raises:
        InvalidSizeError: it is none of these, or 0.
    """
    if budget is None:
        return None
    if isinstance(budget, str) and budget.strip().lower() == "auto":
        return "auto"
    budget_bytes = parse_bytes(budget)
    if budget_bytes == 0:  # to the core: no limit
        raise InvalidSizeError(f"a budget of 0 bytes holds no tensor: give at least {format_bytes(2 * BLOCK_BYTES)}")
    return budget_bytes


def budget_on(device: _native.Device, budget: Budget) -> int | None:
    """A budget in bytes, on a device that is open.

    Raises:
        BudgetError: "auto", and others leave less than 64 MiB; the message says who has how much.
    """
    return budget if budget != "auto" else _auto(device)


def reserve_bytes(total_bytes: int) -> int:
    """What "auto" leaves to others on a card of that size."""
    return max(total_bytes // _RESERVE_PART, _LEAST_RESERVE_BYTES)


def _auto(device: _native.Device) -> int | None:
    info = device.info()
    if info.provider != "cuda":
        return None
    card_free_bytes, others = _on_the_card(info.ordinal)
    free_bytes = info.free_bytes if card_free_bytes is None else min(info.free_bytes, card_free_bytes)
    held_bytes = min(device.memory().resident_bytes or 0, info.total_bytes - free_bytes)
    budget_bytes = free_bytes + held_bytes - reserve_bytes(info.total_bytes)
    if budget_bytes < _LEAST_BYTES:
        raise BudgetError(
            f'budget="auto": {info.name} has {format_bytes(free_bytes)} of {format_bytes(info.total_bytes)} free'
            f"{others}, and {format_bytes(reserve_bytes(info.total_bytes))} are left to others: expected at least "
            f"{format_bytes(_LEAST_BYTES)} to be left. End another process, or give a budget in bytes"
        )
    return budget_bytes // BLOCK_BYTES * BLOCK_BYTES


def _on_the_card(ordinal: int) -> tuple[int | None, str]:
    """Free bytes as NVML sees them, None where it does not, and in words who holds memory."""
    address = pci_address(ordinal)
    if address is None:
        return None, ""
    try:
        with nvml.opened() as opened:
            card = opened.card_at(address)
            memory = None if card is None else card.memory()
            processes = [] if card is None else card.processes() or []
    except NvmlUnavailableError:
        return None, ""
    holders = [f"process {each.process_id} {format_bytes(each.used_bytes)}" for each in processes[:4]]
    return None if memory is None else memory.free_bytes, f" ({', '.join(holders)})" if holders else ""
