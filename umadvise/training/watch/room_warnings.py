"""What a user is warned of, once.

Ops that are larger than the room, addresses that gave way for it, and ops that went on without what they asked for.
"""

import logging

from umadvise import _native
from umadvise.records.units import MAX_BYTES, format_bytes
from umadvise.torch_seam.runtime import Runtime

log = logging.getLogger("umadvise")


class RoomWarnings:
    """Warnings in the log about one device."""

    def __init__(self, runtime: Runtime) -> None:
        """Counts from now on."""
        self._runtime = runtime
        self._told_of_oversized_ops = self._told_of_fallbacks = False
        _native.fallbacks()  # those of earlier runs
        self._exports_ended = runtime.device.memory_history().exports_ended
        self._told_of_exports = False

    def look(self, oversized_ops: int, exports_ended: int) -> None:
        """Writes the warnings that are new.

        Args:
            oversized_ops: number of ops that have needed more than there is, as the device's counters say.
            exports_ended: number of exports that have ended because memory ran out, as the device's history says.
        """
        if oversized_ops and not self._told_of_oversized_ops:
            self._warn_of_oversized_ops(oversized_ops)
        if exports_ended != self._exports_ended and not self._told_of_exports:
            self._warn_of_ended_exports(exports_ended - self._exports_ended)
        if not self._told_of_fallbacks:
            self._look_for_fallbacks()

    def _warn_of_oversized_ops(self, count: int) -> None:
        """Each of them pages against itself, and takes many times as long."""
        self._told_of_oversized_ops = True
        room_bytes = min(self._runtime.device.info().total_bytes, self._runtime.limit_bytes or MAX_BYTES)
        log.warning(
            "%d ops worked on more memory than unified memory may keep on the device, of %s in all: each of them "
            "pages what it has just brought, and takes many times as long. Give more, or make the batch smaller; "
            "the report names the ops",
            count,
            format_bytes(room_bytes),
        )

    def _warn_of_ended_exports(self, count: int) -> None:
        self._told_of_exports = True
        log.warning(
            "Unpinned %d tensors whose address was taken (data_ptr(), DLPack), because memory ran out. Their "
            "addresses stay theirs, but must not be used while they are evicted: umadvise.held keeps a tensor in "
            "place",
            count,
        )

    def _look_for_fallbacks(self) -> None:
        """Warns of ops that allocated no workspace: cuDNN then takes another algorithm, which may round otherwise."""
        found = _native.fallbacks()
        if found is None:
            return
        self._told_of_fallbacks = True
        log.warning(
            "%d ops could not allocate a workspace and fell back to another algorithm (the largest: %s, %s). Results "
            "may differ in the last bits from a run with more memory",
            found.count,
            found.op,
            format_bytes(found.most_bytes),
        )
