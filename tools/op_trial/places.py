"""Where cases run: plain torch, or an emulated device that everything is made to leave between their parts."""

import ctypes
import re
from collections.abc import Iterable
from typing import Any, Self

import torch

import umadvise
from op_trial.bits import strided_parts
from umadvise import _native
from umadvise._native.abi import Allocation, Memory
from umadvise.errors import NativeError
from umadvise.records.counters import SwapCounters
from umadvise.records.enums import Role
from umadvise.torch_seam import runtime

MIB = 1 << 20
_CHUNK_BYTES = 2 * MIB
_POISON = 0xA5
_POISONED_BYTES = 1 << 16
"""Of each chunk, from its beginning on: where tensors are."""
_M_PERTURB = -6  # malloc.h
_SMALL_BYTES = 1 << 16
"""Torch's own code keeps addresses of integer tensors below this size, so the hooks never move those (accesses.h)."""
_CANNOT_LEAVE = re.compile(r"\((\d+) bytes\) beside it cannot leave")


class NotAwayError(Exception):
    """Something stayed on the device that should have left: what is compared then proves nothing."""


class Plain:
    """Torch alone. What nobody has written yet holds a byte that differs from one `fill` to another."""

    def __init__(self, fill: int) -> None:
        self._fill = fill

    def __enter__(self) -> Self:
        """Memory that malloc gives, and that it gets back, is filled from here on."""
        ctypes.CDLL(None).mallopt(_M_PERTURB, self._fill)
        return self

    def __exit__(self, *_: object) -> None:
        """It is no longer filled."""
        ctypes.CDLL(None).mallopt(_M_PERTURB, 0)

    def take_in(self, tensors: Iterable[torch.Tensor]) -> None:
        """It is there."""

    def send_away(self) -> None:
        """There is nowhere else."""

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy."""
        return tensor.detach().clone()


class Leaving:
    """A session in chunks in which tensors of any size leave.

    Attributes:
        departures: how often everything left.
        moved: tensors that were in ordinary memory when they should have left, and were moved.
        elsewhere: those that could not be moved, and never left.
    """

    def __init__(self, budget_bytes: int, small: str = "leave") -> None:
        """Opens nothing yet.

        Args:
            budget_bytes: device memory, for all that one op needs at once.
            small: "leave" or "stay": what small tensors do (`umadvise.EmulatedDevice`).
        """
        device = umadvise.EmulatedDevice(budget_bytes, small=small)
        self._session = umadvise.session(torch.nn.Linear(1, 1), device=device, policy="swap")
        self._budget_bytes = budget_bytes
        self.departures = self.moved = self.elsewhere = 0

    def __enter__(self) -> Self:
        """Opens the session."""
        self._session.__enter__()
        with self._session.step():  # whoever marks steps has none looked for, in which a refusal would be put off
            pass
        return self

    def __exit__(self, *raised: Any) -> None:
        """Closes it."""
        self._session.__exit__(*raised)

    def take_in(self, tensors: Iterable[torch.Tensor]) -> None:
        """Moves what is in ordinary memory, as torch made it from a list or an array, as far as it can be moved."""
        for part in _with_bytes(tensors):
            if _native.owns(_address(part)):
                continue
            self.moved += 1
            try:
                runtime.current().take_in(part.untyped_storage(), Role.INPUT)
            except NativeError:
                self.elsewhere += 1

    def send_away(self) -> None:
        """Takes every chunk that can be had and writes garbage to it.

        Small integers stay, as torch's own code keeps addresses of such; so does what is exported.

        Raises:
            NotAwayError: other tensors have chunks still.
        """
        allocations = runtime.current().device.allocations()
        held = sum(each.reserved_bytes for each in allocations if each.exports > 0)
        _check_owners(allocations)
        try:
            everything = self._fill(self._budget_bytes - held)
        except torch.OutOfMemoryError as error:
            found = _CANNOT_LEAVE.search(str(error))
            if found is None:
                raise
            everything = self._fill(self._budget_bytes - int(found[1]))
        used = self.counters().used_bytes
        if used != self._budget_bytes or self.counters().pinned_bytes > 0:
            raise NotAwayError(f"of {self._budget_bytes} bytes {used} were to be had, and small tensors share chunks")
        del everything
        self.departures += 1

    @staticmethod
    def _fill(size_bytes: int) -> torch.Tensor:
        everything = torch.empty(size_bytes, dtype=torch.uint8)
        everything.view(-1, _CHUNK_BYTES)[:, :_POISONED_BYTES].fill_(_POISON)
        return everything

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy through the host."""
        if umadvise.on_device(tensor):
            return tensor.detach().cpu()
        with runtime.routed(runtime.HOST):
            return tensor.detach().clone()

    def counters(self) -> SwapCounters:
        """What was swapped."""
        return self._session.swap_counters()


def _check_owners(allocations: Iterable[Allocation]) -> None:
    """Checks that every allocation can be evicted, also one that an op made and kept, but for small integers."""
    for each in allocations:
        may_stay = each.owned or each.exports > 0 or each.memory != Memory.CHUNKED
        if not may_stay and not (each.seen and each.bytes < _SMALL_BYTES):
            raise NotAwayError(f"no storage is known that shows the {each.bytes} bytes that {each.birth_op} made")


Place = Plain | Leaving
"""Where a subject's cases run."""


def _with_bytes(tensors: Iterable[torch.Tensor]) -> Iterable[torch.Tensor]:
    """All but hollow ones, such as zeros that nobody has asked for yet."""
    return (part for each in tensors for part in strided_parts(each) if _address(part) != 0)


def _address(tensor: torch.Tensor) -> int:
    return runtime.storage_address(tensor.untyped_storage())
