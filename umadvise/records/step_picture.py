"""One step as it went, in time: ops, copies, stalls, tensors and memory, as tables whose sizes have bounds.

Part of the fault profile. What pictures need and sums cannot tell stands here, and nothing else. Rows are lists in the
file, and name things by their index in `names`. Times are nanoseconds since the step began.
"""

from itertools import pairwise
from typing import Annotated, Literal, get_args

import msgspec

from umadvise.records.counters import ROLES, CauseWord, Count, PhaseWord, Record, RoleWord, SwapCauseWord
from umadvise.records.names import Name

MOST_OPS = 20_000
MOST_SPANS = 2_000
"""Spans of one kind."""
MOST_TENSORS = 500
MOST_POINTS = 2_000
MOST_NAMES = 65_536

SpanWord = Literal["fault_group", "wait_copy", "wait_room", "transfer_h2d", "transfer_d2h", "swap_in", "swap_out"]
SPAN_KINDS: tuple[SpanWord, ...] = get_args(SpanWord)
STALLS: tuple[SpanWord, ...] = SPAN_KINDS[:3]
TO_DEVICE: tuple[SpanWord, ...] = ("transfer_h2d", "swap_in")
TO_HOST: tuple[SpanWord, ...] = ("transfer_d2h", "swap_out")


class PicturedOp(Record, frozen=True, array_like=True):
    """One op: when it computed, without what it stood still for before. `name` and `module` are indices of names."""

    start_ns: Count
    duration_ns: Count
    name: Count
    module: Count
    phase: PhaseWord | None


class PicturedSpan(Record, frozen=True, array_like=True):
    """One fault service, wait or copy, or `count` neighbours of one kind, whose durations and bytes are added up.

    `subject` is the tensor and `op` the op that ran, as indices of names, of the longest one. A swap was ordered at
    `ordered_ns`, and its tensor is next used at `used_ns`; None where nobody can tell, or there was no such order.
    """

    kind: SpanWord
    cause: CauseWord | SwapCauseWord
    start_ns: Count
    duration_ns: Count
    bytes: Count
    count: Count
    subject: Count
    op: Count
    ordered_ns: Count | None
    used_ns: Count | None


class PicturedTensor(Record, frozen=True, array_like=True):
    """One storage and how long it lived within the step. `name` is an index of names."""

    start_ns: Count
    end_ns: Count
    bytes: Count
    role: RoleWord
    name: Count


class StepPicture(Record, frozen=True):
    """The step that was seen last, of the steps in which something moved if there are any.

    `ops`, `tensors` and memory are those of the latest recorded step of the same ops, placed between what was measured
    in this one; they are empty where none was recorded. `live_bytes` are bytes of live tensors by role at each of
    `times_ns`, wherever they lay; with the most at any time. Where there are more than MOST_OPS ops, the longest stand
    here, and `ops_left_out` counts the others; `events_left_out` counts moves and stalls for which there was no room.
    """

    step: Count
    duration_ns: Count
    names: Annotated[tuple[Name, ...], msgspec.Meta(min_length=1, max_length=MOST_NAMES)]
    ops: Annotated[tuple[PicturedOp, ...], msgspec.Meta(max_length=MOST_OPS)]
    ops_left_out: Count
    spans: Annotated[tuple[PicturedSpan, ...], msgspec.Meta(max_length=len(SPAN_KINDS) * MOST_SPANS)]
    events_left_out: Count
    tensors: Annotated[tuple[PicturedTensor, ...], msgspec.Meta(max_length=MOST_TENSORS)]
    times_ns: Annotated[tuple[Count, ...], msgspec.Meta(max_length=MOST_POINTS)]
    live_bytes: dict[RoleWord, Annotated[tuple[Count, ...], msgspec.Meta(max_length=MOST_POINTS)]]

    def __post_init__(self) -> None:
        used = [index for op in self.ops for index in (op.name, op.module)]
        used += [index for span in self.spans for index in (span.subject, span.op)]
        used += [tensor.name for tensor in self.tensors]
        if max(used, default=0) >= len(self.names):
            raise ValueError("the picture points to a name that it does not have")
        if self.times_ns and self.live_bytes.keys() != set(ROLES):
            raise ValueError("the picture's memory has not all roles")
        if any(len(column) != len(self.times_ns) for column in self.live_bytes.values()):
            raise ValueError("the picture's columns of memory have not one length")
        if any(left > right for left, right in pairwise(self.times_ns)):
            raise ValueError("the picture's times run backwards")
