"""The timeline of a simulated run: what every track did when, as columns.

One row a span. Executors of every kind (unified memory, swapping) give the same record, so that one reader serves all.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from umadvise.records.columns import Columns, in_words
from umadvise.records.enums import Cause


class Track(IntEnum):
    """um_track: the lanes of a timeline, which run beside each other: computing, copies each way, and the host."""

    COMPUTE = 0
    H2D = 1
    D2H = 2
    HOST = 3


class SpanKind(IntEnum):
    """um_span_kind. FAULT, WAIT_COPY, WAIT_ROOM and REMOTE are stalls: the compute track stands still."""

    OP = 0
    COPY = 1
    FAULT = 2
    WAIT_COPY = 3
    WAIT_ROOM = 4
    REMOTE = 5
    CALL = 6
    RECOMPUTE = 7


STALLS = (SpanKind.FAULT, SpanKind.WAIT_COPY, SpanKind.WAIT_ROOM, SpanKind.REMOTE)


@dataclass(frozen=True, slots=True)
class Span:
    """One row, in words."""

    start_ns: int
    duration_ns: int
    bytes: int
    op: int | None
    storage: int | None
    track: Track
    kind: SpanKind
    cause: Cause
    engine: int
    step: int


@dataclass(frozen=True, eq=False)
class Timeline(Columns):
    """Spans of a simulated run, in no order across tracks; those of one track and engine do not overlap.

    The columns are those of um_span (csrc/include/umadvise.h).

    Attributes:
        start_ns: beginning of the span, in nanoseconds since the simulation began.
        duration_ns: length of the span in nanoseconds.
        bytes: number of bytes that were moved or worked on; 0 where that has no meaning.
        op: index of the op in the trace; -1 for none.
        storage: index of the storage in the trace; -1 for none.
        track: number of the `Track`: compute, copies in either direction, or the host.
        kind: number of the `SpanKind`.
        cause: number of the `umadvise.records.enums.Cause` for which bytes moved or the op stood still; meaningless for
            ops.
        engine: number of the copy engine, among those of the track's direction.
        step: iteration of the simulation: 1, 2, ...
        peak_bytes: the most device memory, in bytes, that was in use at once.
    """

    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    bytes: NDArray[np.int64]
    op: NDArray[np.int32]
    storage: NDArray[np.int32]
    track: NDArray[np.uint8]
    kind: NDArray[np.uint8]
    cause: NDArray[np.uint8]
    engine: NDArray[np.uint8]
    step: NDArray[np.uint32]
    peak_bytes: int

    @classmethod
    def from_spans(cls, spans: NDArray[np.void], peak_bytes: int) -> "Timeline":
        """The columns of an array of um_span."""
        return cls(**{name: spans[name] for name in cls.DTYPES}, peak_bytes=peak_bytes)

    def __iter__(self) -> Iterator[Span]:
        """The spans as rows, in order of their begin; for people and small timelines."""
        return (in_words(Span, self, row) for row in np.argsort(self.start_ns, kind="stable"))

    @property
    def end_ns(self) -> int:
        """End of the last span, in nanoseconds since the simulation began."""
        return int((self.start_ns + self.duration_ns).max(initial=0))

    def busy_ns(self, track: Track, kind: SpanKind | None = None, cause: Cause | None = None) -> int:
        """Sum of the lengths of a track's spans, of one kind and cause if given."""
        return int(self.duration_ns[self._chosen(track, kind, cause)].sum())

    def moved_bytes(self, track: Track, cause: Cause | None = None) -> int:
        """Bytes that a copy direction moved, for one cause if given."""
        return int(self.bytes[self._chosen(track, SpanKind.COPY, cause)].sum())

    def _chosen(self, track: Track, kind: SpanKind | None, cause: Cause | None) -> NDArray[np.bool_]:
        chosen: NDArray[np.bool_] = self.track == track
        if kind is not None:
            chosen = chosen & (self.kind == kind)
        if cause is not None:
            chosen = chosen & (self.cause == cause)
        return chosen

    def stall_shares(self) -> dict[SpanKind, float]:
        """Each kind of stall's share of the compute track's busy time, 0 to 1; what never happened is left out."""
        whole = self.busy_ns(Track.COMPUTE)
        stalls = {kind: self.busy_ns(Track.COMPUTE, kind) for kind in STALLS}
        return {kind: stall_ns / whole for kind, stall_ns in stalls.items() if stall_ns > 0}
