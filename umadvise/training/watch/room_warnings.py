"""What a user is warned of, once.

Ops that are larger than the room, addresses that gave way for it, and ops that went on without what they asked for.
"""

import logging

from umadvise import _native
from umadvise._native.edges import exports_ended
from umadvise.records.units import MAX_BYTES, format_bytes
from umadvise.torch_seam.runtime import Runtime

log = logging.getLogger("umadvise")


class RoomWarnings:
    """Warnings in the log about one device."""

    def __init__(self, runtime: Runtime) -> None:
        """Counts from now on."""
        self._runtime = runtime
        self._untold = [self._ended_exports, self._fallbacks]
        self._told_of_oversized_ops = False
        _native.fallbacks()  # those of earlier runs
        self._exports_ended_before = exports_ended(runtime.device)

    def look(self, oversized_ops: int) -> None:
        """Writes the warnings that are new.

        Args:
            oversized_ops: number of ops that have needed more than there is, as the device's counters say.
        """
        if oversized_ops and not self._told_of_oversized_ops:
            self._warn_of_oversized_ops(oversized_ops)
        for warning in tuple(self._untold):
            if warning():
                self._untold.remove(warning)

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

    def _ended_exports(self) -> bool:
        """Warns when tensors whose address was taken were unpinned because memory ran out."""
        count = exports_ended(self._runtime.device) - self._exports_ended_before
        if count:
            log.warning(
                "Unpinned %d tensors whose address was taken (data_ptr(), DLPack), because memory ran out. Their "
                "addresses stay theirs, but must not be used while they are evicted: umadvise.held keeps a tensor in "
                "place",
                count,
            )
        return count > 0

    def _fallbacks(self) -> bool:
        """When ops took another way as they found no room: cuDNN has algorithms that need less, and round otherwise."""
        found = _native.fallbacks()
        if found.count:
            log.warning(
                "%d ops asked for memory to work in, found no room and went on without, as a library does that has "
                "another algorithm: their last digits may differ from those of a run with more room. The largest was "
                "%s, which asked for %s",
                found.count,
                found.op,
                format_bytes(found.most_bytes),
            )
        return found.count > 0
