"""The plan of a step: actions on storages, each anchored before or after an op of one trace.

A plan is columns, as a trace is: one NumPy array for each field of its actions, in the order of execution. Everything
in the arrays is read-only.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from umadvise.records.columns import Columns, in_words
from umadvise.records.enums import Advice
from umadvise.records.trace import MOST_ROWS, Trace

Option: TypeAlias = bool | int | float | str | None


class ActionKind(IntEnum):
    """um_plan_kind (csrc/include/umadvise.h): what an action does to bytes of a storage."""

    ADVISE = 0  # argument: umadvise.records.enums.Advice
    PREFETCH = 1  # argument: 0 to the device, 1 to the host
    DISCARD = 2  # contents are not needed any more
    SWAP_OUT = 3  # starts a copy to the host; the device memory is free when it has ended
    SWAP_IN = 4  # starts a copy to the device as soon as there is room for it
    WAIT = 5  # the compute queue waits for the storage's last copy
    DROP = 6  # the device memory is free at once; argument 1: the host's copy is still valid
    RECOMPUTE = 7  # the ops that made it run again; argument: the first of them


OF_UNIFIED_MEMORY = (ActionKind.ADVISE, ActionKind.PREFETCH, ActionKind.DISCARD)
"""Actions on any range of a storage, for policies that let the driver page. The others move whole storages."""

_LAST_ARGUMENT = {ActionKind.ADVISE: max(Advice), ActionKind.PREFETCH: 1, ActionKind.DROP: 1}
"""Of kinds whose argument may be more than 0, but for RECOMPUTE, whose argument is an op."""


@dataclass(frozen=True, eq=False)
class Actions(Columns):
    """One row an action, in the order of execution.

    Attributes:
        kind: number of the `ActionKind`.
        op: index of the op of the trace at which the action has its place.
        after: 1 for an action after that op has ended, 0 for one before it begins.
        storage: index of the storage among the trace's storages.
        offset_bytes: first byte of the range, counted within the storage.
        bytes: length of the range in bytes.
        argument: number whose meaning `ActionKind` gives for each kind; 0 where it has none.
    """

    kind: NDArray[np.uint8]
    op: NDArray[np.int32]
    after: NDArray[np.uint8]
    storage: NDArray[np.int32]
    offset_bytes: NDArray[np.int64]
    bytes: NDArray[np.int64]
    argument: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Action:
    """One action, in words. `bytes` of None are all of the storage from the offset on."""

    kind: ActionKind
    op: int
    storage: int
    after: bool = False
    offset_bytes: int = 0
    bytes: int | None = None
    argument: int = 0


@dataclass(frozen=True, eq=False)
class Plan:
    """What moves when, in one step.

    Attributes:
        planner: name of the planner that made it.
        budget_bytes: device memory in bytes that the plan was made for.
        options: the planner's options, by name.
        trace_digest: `Trace.structure_digest` of the trace whose ops and storages the actions name.
        actions: the plan's actions, in the order of execution.
    """

    planner: str
    budget_bytes: int
    options: MappingProxyType[str, Option]
    trace_digest: str
    actions: Actions

    @classmethod
    def from_actions(
        cls,
        trace: Trace,
        actions: Iterable[Action],
        planner: str,
        budget_bytes: int,
        options: Mapping[str, Option] = MappingProxyType({}),
    ) -> "Plan":
        """Makes a plan from actions in any order; actions with the same op and side keep their order.

        Raises:
            ValueError: the actions cannot be executed; see `check`.
        """
        rows = sorted(actions, key=lambda action: (action.op, action.after))
        sizes = trace.storages.bytes

        def size(action: Action) -> int:
            if action.bytes is not None or not 0 <= action.storage < len(sizes):
                return action.bytes or 0
            return int(sizes[action.storage]) - action.offset_bytes

        columns: dict[str, Any] = {
            name: np.array([getattr(action, name) for action in rows]) for name in Actions.DTYPES
        }
        columns["bytes"] = np.array([size(action) for action in rows])
        return cls.of_rows(trace, Actions(**columns), planner, budget_bytes, options)

    @classmethod
    def of_rows(
        cls,
        trace: Trace,
        actions: Actions,
        planner: str,
        budget_bytes: int,
        options: Mapping[str, Option] = MappingProxyType({}),
    ) -> "Plan":
        """Makes a plan of a trace from actions in the order of execution.

        Raises:
            ValueError: the actions cannot be executed; see `check`.
        """
        plan = cls(planner, budget_bytes, MappingProxyType(dict(options)), trace.structure_digest, actions)
        check(plan, trace)
        return plan

    def fitted(self, trace: Trace) -> "Plan":
        """The plan as one of a trace whose ops and storages have the same numbers, but other sizes or lifetimes.

        Swaps and drops are of whole storages there. Actions are left out on storages that take no bytes there, that
        the step does not use, or that are not alive at the action's anchor.

        Args:
            trace: trace of the step that the result is a plan of.

        Raises:
            ValueError: the trace is not of the same ops.
        """
        table = self.actions
        chosen = table.storage < len(trace.storages)
        chosen[chosen] &= (trace.used & (trace.storages.bytes > 0))[table.storage[chosen]]
        rows = Actions(**{name: getattr(table, name)[chosen] for name in Actions.DTYPES})
        lives = _alive(rows, trace) | (rows.op >= len(trace.ops))  # of another step, which is an error
        columns = {name: getattr(rows, name)[lives] for name in Actions.DTYPES}
        whole = ~np.isin(columns["kind"], OF_UNIFIED_MEMORY)
        columns["bytes"] = np.where(whole, trace.storages.bytes[columns["storage"]], columns["bytes"])
        return Plan.of_rows(trace, Actions(**columns), self.planner, self.budget_bytes, self.options)

    def __len__(self) -> int:
        return len(self.actions)

    def __iter__(self) -> Iterator[Action]:
        """The actions as rows, for people and small plans."""
        return (in_words(Action, self.actions, row) for row in range(len(self.actions)))


def check(plan: Plan, trace: Trace) -> None:
    """Checks that a plan can be executed with a trace, as far as can be said without running it.

    Whether every op finds what it needs, and whether there is room, is what the simulator finds out.

    Raises:
        ValueError: it cannot; the message names the first action that breaks the rule.
    """
    if plan.trace_digest != trace.structure_digest:
        raise ValueError("the plan was made for another trace: plan this one")
    check_alone(plan)
    _check_rows(plan.actions, trace)
    _check_lives(plan.actions, trace)


def check_alone(plan: Plan) -> None:
    """Checks what can be said of a plan without its trace.

    Raises:
        ValueError: its budget is none, or its actions are none; the message names the first that is not.
    """
    if not 0 <= plan.budget_bytes < 2**62:
        raise ValueError(f"budget_bytes: expected 0 to 2**62 - 1, found {plan.budget_bytes}")
    table = plan.actions
    lengths = table.lengths()
    if len(set(lengths.values())) != 1 or len(table) > MOST_ROWS:
        raise ValueError(f"actions: expected columns of one length of at most {MOST_ROWS}, found {lengths}")
    _require(table.kind < len(ActionKind), table, "unknown kind")
    _require((table.storage >= 0) & (table.bytes >= 0), table, "expected numbers from 0 on")


def _require(holds: NDArray[np.bool_], table: Actions, rule: str) -> None:
    if holds.all():
        return
    row = int(np.argmin(holds))
    values = ", ".join(f"{name} {getattr(table, name)[row]}" for name in Actions.DTYPES)
    raise ValueError(f"action {row} of the plan: {rule} ({values})")


def _check_rows(table: Actions, trace: Trace) -> None:
    _require(table.after <= 1, table, "after: expected 0 or 1")
    _require((table.op >= 0) & (table.op < len(trace.ops)), table, "the trace has no such op")
    _require((table.storage >= 0) & (table.storage < len(trace.storages)), table, "the trace has no such storage")
    position = table.op.astype(np.int64) * 2 + table.after
    _require(np.diff(position, prepend=0) >= 0, table, "actions are not in the order of their anchors")
    size = trace.storages.bytes[table.storage]
    inside = (table.offset_bytes >= 0) & (table.bytes >= 0) & (table.bytes <= size - table.offset_bytes)
    _require(inside, table, "the range goes beyond its storage")
    paging = np.isin(table.kind, OF_UNIFIED_MEMORY)
    whole = (table.offset_bytes == 0) & (table.bytes == size)
    _require(paging | whole, table, "swaps, drops and recomputations are of whole storages")
    for kind in (kind for kind in ActionKind if kind != ActionKind.RECOMPUTE):
        argument, last = table.argument, _LAST_ARGUMENT.get(kind, 0)
        _require((table.kind != kind) | ((argument >= 0) & (argument <= last)), table, f"argument: at most {last}")


def _alive(table: Actions, trace: Trace) -> NDArray[np.bool_]:
    """Whether the storage of each action is alive at the action's anchor.

    After an op, advice, prefetches and discards come before all that happens outside ops, swaps after it: memory that
    is about to be freed can be discarded, and what has just been allocated can be swapped.
    """
    events = trace.events
    order = events.op.astype(np.int64) * 5 + np.where(events.inside == 1, 1, 3)
    birth = np.zeros(len(trace.storages), np.int64)
    death = np.full(len(trace.storages), 5 * len(trace.ops))
    for kind, column in ((0, birth), (1, death)):
        rows = events.kind == kind
        column[events.storage[rows]] = order[rows]
    paging = np.isin(table.kind, OF_UNIFIED_MEMORY)
    at = table.op.astype(np.int64) * 5 + np.where(table.after == 1, np.where(paging, 2, 4), 0)
    found: NDArray[np.bool_] = (birth[table.storage] < at) & (at < death[table.storage])
    return found


def _check_lives(table: Actions, trace: Trace) -> None:
    """Every storage is alive at its actions' anchors, and what runs again has run."""
    _require(_alive(table, trace), table, "the storage is not alive there")
    again = table.kind == ActionKind.RECOMPUTE
    ran = (table.argument >= 0) & (table.argument < table.op)
    _require(~again | ran, table, "argument: expected an op before the anchor")
    _require(
        ~again | (trace.births[table.storage] >= 0), table, "what was there before the first op cannot be made again"
    )
