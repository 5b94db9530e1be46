"""Two plans: how much each action moves, and which storages move more in one of them."""

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from umadvise.records.plan import ActionKind, Plan
from umadvise.records.trace import Trace
from umadvise.records.units import format_bytes
from umadvise.reports.differences.quantities import (
    ChangedSubject,
    Difference,
    QuantityKind,
    Unit,
    most_changed,
    parted,
    quantities,
)

Kind = QuantityKind[Plan]
_COPIES = (ActionKind.PREFETCH, ActionKind.SWAP_OUT, ActionKind.SWAP_IN)
_WORDS = {
    ActionKind.ADVISE: "advice",
    ActionKind.PREFETCH: "prefetched",
    ActionKind.DISCARD: "discarded",
    ActionKind.SWAP_OUT: "swapped out",
    ActionKind.SWAP_IN: "swapped in",
    ActionKind.WAIT: "waits",
    ActionKind.DROP: "dropped without a copy",
    ActionKind.RECOMPUTE: "made again",
}


def _of_kind(kind: ActionKind) -> Iterator[Kind]:
    name = kind.name.lower()

    def value(plan: Plan, unit: Unit) -> int:
        rows = plan.actions.kind == kind
        return int(rows.sum()) if unit == "count" else int(plan.actions.bytes[rows].sum())

    yield Kind(f"{name}_actions", "count", f"{_WORDS[kind]}, actions", lambda plan: value(plan, "count"))
    if kind != ActionKind.WAIT:
        yield Kind(f"{name}_bytes", "bytes", _WORDS[kind], lambda plan: value(plan, "bytes"))


KINDS: tuple[Kind, ...] = (
    Kind("budget_bytes", "bytes", "budget", lambda plan: plan.budget_bytes),
    Kind("actions", "count", "actions", len),
    *(each for kind in ActionKind for each in _of_kind(kind)),
)
"""What two plans are compared by, and what conditions may be about."""


_CIRCUMSTANCES: tuple[tuple[str, Callable[[Plan], str | None]], ...] = (
    ("Step", lambda plan: f"that of structure {plan.trace_digest[:12]}"),
    ("Planner", lambda plan: plan.planner),
    ("Options", lambda plan: " ".join(f"{name}={value}" for name, value in plan.options.items()) or None),
)


def difference(here: Plan, there: Plan, names: tuple[str, str], trace: Trace | None = None) -> Difference:
    """Two plans side by side.

    Args:
        here: the first plan.
        there: the second plan.
        names: names of their files.
        trace: trace that both are of, for the names of storages; None calls these by their numbers.
    """
    same_step = here.trace_digest == there.trace_digest  # else a storage of one has nothing to do with the other's
    return Difference(
        kind="plan",
        here=names[0],
        there=names[1],
        circumstances=parted(_CIRCUMSTANCES, here, there),
        quantities=quantities(KINDS, here, there),
        subjects=most_changed(list(_storages(here, there, trace))) if same_step else (),
    )


def _storages(here: Plan, there: Plan, trace: Trace | None) -> Iterator[ChangedSubject]:
    ours, theirs = _moved_bytes(here), _moved_bytes(there)
    for index in sorted(ours | theirs):
        if ours[index] != theirs[index]:
            yield ChangedSubject(
                kind="tensor", name=_name(trace, index), here_bytes=ours[index], there_bytes=theirs[index]
            )


def _moved_bytes(plan: Plan) -> Counter[int]:
    """Bytes of all copies of each storage that has any."""
    rows = np.isin(plan.actions.kind, _COPIES)
    moved: Counter[int] = Counter()
    for storage, size in zip(plan.actions.storage[rows].tolist(), plan.actions.bytes[rows].tolist(), strict=True):
        moved[storage] += size
    return moved


def _name(trace: Trace | None, index: int) -> str:
    if trace is None:
        return f"storage {index}"
    storage = trace.storage(index)
    what = storage.role.name.lower().replace("_", " ")
    named = storage.name or f"storage {index}"
    return f"{named} ({what}, {format_bytes(storage.bytes)})"
