"""The order in which a trace of one step lists what was there before it."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from umadvise.recording.tables import rows
from umadvise.records.trace import EventKind, Trace

NEVER = 2**62


def in_order_of_use(trace: Trace) -> Trace:
    """Sorts a trace's first allocations into the order in which the step first touches or frees them.

    What it does not touch comes last, as it was. So two traces of one step are alike however each recorder found out
    what was there.
    """
    present = _is_present(trace)
    first = np.where(present, first_uses(trace)[trace.events.storage], 0)
    return dataclasses.replace(trace, events=rows(trace.events, np.lexsort((first, ~present))))


def first_uses(trace: Trace) -> NDArray[np.int64]:
    """For each storage the place of its first use among all uses; `NEVER` for what the step does not use.

    Uses are accesses and events, but for the first allocations. Accesses of an op come before its events.
    """
    first = np.full(len(trace.storages), NEVER, np.int64)
    used = np.flatnonzero(~_is_present(trace))
    place = np.concatenate([trace.accesses.op * 2, trace.events.op[used] * 2 + 1]).astype(np.int64)
    storage = np.concatenate([trace.accesses.storage, trace.events.storage[used]])
    order = np.argsort(place, kind="stable")
    np.minimum.at(first, storage[order], np.arange(len(order)))
    return first


def _is_present(trace: Trace) -> NDArray[np.bool_]:
    present: NDArray[np.bool_] = (trace.events.op == -1) & (trace.events.kind == EventKind.ALLOCATE)
    return present
