"""How a session's device memory is divided between what the driver pages and chunks, and what new tensors get.

Where a session goes over from one kind to the other, both have a share of the budget: what new tensors do not get has
what its live tensors take, at most half of the budget, and the other one the rest. Live tensors are moved then, and the
shares become those of what could not move (`umadvise/torch_seam/runtime.py`). They change at no other time: neither
kind can then take from the other what that one was promised. Plain device memory that is in use counts for both.
"""

import logging
from dataclasses import replace

from umadvise import _native
from umadvise._native.abi import ChunkOptions, Memory
from umadvise.devices.rungs import ADVISE, Policy
from umadvise.errors import NativeError
from umadvise.records.units import BLOCK_BYTES, format_bytes
from umadvise.torch_seam import split_updates
from umadvise.torch_seam.replacements import Replacements
from umadvise.torch_seam.runtime import Runtime
from umadvise.training.plans.plan_memory import PlanMemory, chunk_bytes_of, spare_bytes

log = logging.getLogger("umadvise")

FITS = 0.9
"""A step that needs up to this share of the budget fits in plain memory; the rest is for what varies, and is paged."""
LEAST_MANAGED_BYTES = 2 * BLOCK_BYTES
"""The smallest budget of unified memory (um_budget_set)."""
_MOST_MANAGED = 0.5


class MemorySplit:
    """The device memory of one session, divided between managed memory and chunks.

    Attributes:
        room_bytes: device memory in bytes that the session may use, for everything.
        chunk_bytes: size of a chunk in bytes.
    """

    def __init__(self, state: Runtime) -> None:
        """Nothing is set yet.

        Args:
            state: patched state of the process, with the budget that holds.
        """
        self._state = state
        capacity = state.device.info().total_bytes
        self.room_bytes = min(capacity, state.limit_bytes or capacity)
        present = state.device.swap_counters()  # an earlier session's chunks stay, and its tensors in them
        self.chunk_bytes = present.chunk_bytes or chunk_bytes_of(self.room_bytes)
        self._chunk_budget_bytes = present.budget_bytes
        self._in_chunks = False  # new tensors
        self._plain_bytes = 0  # most that plain memory may take, where what is too much for it is paged
        self._ops_before: int | None = 0  # when they went there
        self._managed_is_limited = False  # by us
        self._unit_bytes = 0  # of what ops on lists are divided by; 0: they are whole
        self._replaced = Replacements()

    def use(self, policy: Policy, *, limited: bool = True) -> None:
        """Gives new tensors the memory of a policy from now on.

        Args:
            policy: policy of the new tensors.
            limited: whether plain device memory keeps the budget.

        Raises:
            NativeError: there is no memory for it.
        """
        before, self._in_chunks = self._in_chunks, policy.memory == Memory.CHUNKED
        if self._in_chunks != before:
            self._ops_before = self._state.device.counters().op_count
            try:
                self.divide()
            except NativeError:
                self._in_chunks = before
                raise
        elif policy.memory == Memory.MANAGED and not self._unit_bytes:
            shared = self._chunk_budget_bytes or (self._state.limit_bytes and self._live_bytes(Memory.DEVICE))
            self.divide() if shared else self._divide_whole_model_ops(self.room_bytes, 1)
        # Of `auto` resident is a wish, for a step that fits: what is too much for it is paged.
        beside_bytes = LEAST_MANAGED_BYTES
        if self._chunk_budget_bytes:
            beside_bytes += max(self._state.device.swap_counters().pinned_bytes, self.chunk_bytes)
        wished_bytes = max(min(int(FITS * self.room_bytes), self.room_bytes - beside_bytes), BLOCK_BYTES)
        self._plain_bytes = wished_bytes if policy.memory == Memory.PREFER_DEVICE else 0
        if limited and policy.memory == Memory.DEVICE:
            self._share_plain(_MOST_MANAGED)
        else:
            self._state.device.limit_plain(self._plain_bytes)
        self._state.set_policy(policy)

    def change(self, policy: Policy, before: Policy, *, limited: bool = True) -> None:
        """Gives new tensors the memory of a policy from now on, and converts those that live to it.

        Args:
            policy: policy of the new tensors.
            before: policy that held until now.
            limited: whether plain device memory keeps the budget.

        Raises:
            NativeError: there is no memory for it.
        """
        if (before.memory, policy.memory) == (Memory.PREFER_DEVICE, Memory.CHUNKED):
            self.change(ADVISE, before)  # plain memory leaves no room for chunks, unified memory needs none
            before = ADVISE
        self.use(policy, limited=limited)
        if policy.memory == before.memory:
            return
        if limited and policy.memory == Memory.DEVICE:
            self._share_plain(0)
        if policy.memory == Memory.PREFER_DEVICE:
            self.divide()  # what plain memory may take has left unified memory before plain memory takes it
        converted = self._state.convert(before)
        if {Memory.CHUNKED, Memory.PREFER_DEVICE} & {policy.memory, before.memory}:
            self.divide()
            if converted.stayed:  # what one kind has given is room for the rest
                converted = self._state.convert(before)
                self.divide()
        if limited and policy.memory == Memory.DEVICE:
            self._share_plain(_MOST_MANAGED)
        if converted.stayed:
            stayed = format_bytes(converted.stayed_bytes)
            log.info("%d tensors (%s) stay in the memory that they have", converted.stayed, stayed)

    def resume(self, policy: Policy) -> None:
        """Divides the memory again after another split of the same device has been released.

        Args:
            policy: policy of the new tensors.

        Raises:
            NativeError: there is no memory for it.
        """
        self._replaced.undo()
        self._chunk_budget_bytes, self._in_chunks, self._unit_bytes = 0, False, 0
        self.use(policy)

    def divide(self) -> None:
        """Gives both kinds of memory their shares, after what is live now.

        Raises:
            NativeError: there is no memory for it.
        """
        device = self._state.device
        managed_bytes, chunk_bytes = self.shares() if self._in_chunks else self._shares_of_managed()
        if managed_bytes and chunk_bytes:
            log.info(
                "of %s, %s are for tensors in unified memory, and %s are chunks",
                format_bytes(self.room_bytes),
                format_bytes(managed_bytes),
                format_bytes(chunk_bytes),
            )
        if chunk_bytes < self._chunk_budget_bytes:  # what one gives comes before what the other takes
            device.set_chunks(self._chunks(chunk_bytes))
            in_use_bytes = device.swap_counters().used_bytes  # by the op that runs, for one: such chunks stay
            if managed_bytes and in_use_bytes > chunk_bytes:
                managed_bytes = max(managed_bytes - (in_use_bytes - chunk_bytes), LEAST_MANAGED_BYTES)
        if managed_bytes or self._managed_is_limited:
            device.set_budget(managed_bytes or self._state.limit_bytes or 0)
            self._managed_is_limited = True
        if chunk_bytes > self._chunk_budget_bytes:
            device.set_chunks(self._chunks(chunk_bytes))
        self._chunk_budget_bytes = chunk_bytes
        if self._in_chunks:
            self._divide_whole_model_ops(chunk_bytes - spare_bytes(chunk_bytes, self.chunk_bytes), self.chunk_bytes)
        else:
            self._divide_whole_model_ops(self.room_bytes if self._plain_bytes else managed_bytes, 1)

    def _chunks(self, budget_bytes: int) -> ChunkOptions:
        device = self._state.device
        return ChunkOptions(
            budget_bytes=budget_bytes,
            chunk_bytes=self.chunk_bytes,
            small=device.small,
            session_bytes=self.room_bytes,
        )

    def _divide_whole_model_ops(self, room_bytes: int, unit_bytes: int) -> None:
        """Foreach and fused steps of an optimizer take every tensor at once: from now on as many as there is room for.

        What they make on their way is as large as one of their lists, so they are given half of the room. Memory is
        taken in units of a chunk, or, where the driver pages it, of a byte: small tensors leave there too.
        """
        _native.set_split(max(room_bytes // 2, unit_bytes), unit_bytes)
        if unit_bytes != self._unit_bytes:
            self._replaced.undo()
            split_updates.install(self._replaced, lambda: _native.split_limit(self._state.device), unit_bytes)
            self._unit_bytes = unit_bytes

    def _share_plain(self, most_managed: float) -> None:
        """Divides the budget between plain memory and the unified memory that earlier code or the user has placed."""
        device, managed_bytes = self._state.device, self._live_bytes(Memory.MANAGED)
        if not managed_bytes or self._state.limit_bytes is None:
            device.limit_plain(self.room_bytes)
            return
        most_bytes = int((self.room_bytes - self._live_bytes(Memory.DEVICE)) * most_managed)
        share_bytes = max(min(-(-managed_bytes // BLOCK_BYTES) * BLOCK_BYTES, most_bytes), LEAST_MANAGED_BYTES)
        device.set_budget(share_bytes)
        device.limit_plain(self.room_bytes - share_bytes)

    def divide_further(self) -> bool:
        """Makes the parts of whole-model ops smaller where small tensors leave less room; returns whether it did."""
        if not self._in_chunks:
            return False
        limit_bytes = _native.split_limit(self._state.device)
        room_bytes = self._chunk_budget_bytes - self._state.device.swap_counters().pinned_peak_bytes
        if limit_bytes is None or max(room_bytes // 2, self.chunk_bytes) >= limit_bytes:
            return False
        self._divide_whole_model_ops(room_bytes, self.chunk_bytes)
        return True

    def shares(self) -> tuple[int, int]:
        """Bytes for managed memory and for chunks, where new tensors are in chunks from now on."""
        left = self.room_bytes - self._live_bytes(Memory.DEVICE)
        managed = self._live_bytes(Memory.MANAGED, Memory.PREFER_DEVICE)
        if managed:
            blocks_bytes = -(-managed // BLOCK_BYTES) * BLOCK_BYTES
            managed = max(min(blocks_bytes, int(left * _MOST_MANAGED)), LEAST_MANAGED_BYTES)
        return managed, max(left - managed, 0)

    def _shares_of_managed(self) -> tuple[int, int]:
        """The same, where they are in managed memory from now on."""
        counters = self._state.device.swap_counters()
        left = self.room_bytes - max(self._live_bytes(Memory.DEVICE), self._plain_bytes)
        if not self._chunk_budget_bytes:
            return max(left, LEAST_MANAGED_BYTES), 0
        live_bytes = self._live_bytes(Memory.CHUNKED) + counters.pinned_bytes
        wanted = max(min(live_bytes, int(left * _MOST_MANAGED)), counters.pinned_bytes, self.chunk_bytes)
        chunk_bytes = -(-wanted // self.chunk_bytes) * self.chunk_bytes
        return max(left - chunk_bytes, LEAST_MANAGED_BYTES), chunk_bytes

    def _live_bytes(self, *kinds: Memory) -> int:
        return sum(each.reserved_bytes for each in self._state.device.allocations() if each.memory in kinds)

    def for_plans(self, memory: Memory) -> PlanMemory:
        """What a plan may use, in chunks or in unified memory, if new tensors are there."""
        device = self._state.device
        if memory != Memory.CHUNKED:
            capacity_bytes = device.info().total_bytes
            return PlanMemory(self.room_bytes, device_bytes=capacity_bytes if self.room_bytes < capacity_bytes else 0)
        if not self._in_chunks:  # what lives goes there then
            return PlanMemory(self.room_bytes, self.chunk_bytes)
        elsewhere = frozenset(each.serial for each in device.allocations() if each.memory != Memory.CHUNKED)
        counters = device.swap_counters()
        seen = device.counters().op_count != self._ops_before  # what small tensors of a step take there
        staying_bytes = counters.pinned_peak_bytes if seen else 0
        return PlanMemory(self._chunk_budget_bytes, counters.chunk_bytes, staying_bytes, elsewhere)

    def release(self) -> None:
        """Ends the splitting of ops on lists, and returns chunks that no live tensor needs to device and host."""
        self._replaced.undo()
        _native.set_split(None)
        self._state.device.limit_plain(0)
        if not self._chunk_budget_bytes:
            return
        device = self._state.device
        left = [each for each in device.allocations() if each.memory == Memory.CHUNKED]
        counters = device.swap_counters()
        needed_bytes = max(sum(each.reserved_bytes for each in left) + counters.pinned_bytes, counters.chunk_bytes)
        budget_bytes = min(needed_bytes, self._chunk_budget_bytes)
        device.set_chunks(replace(self._chunks(budget_bytes), host_budget_bytes=needed_bytes))
        self._chunk_budget_bytes = 0
