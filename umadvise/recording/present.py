"""The order in which a trace of one step lists what was there before it."""

import dataclasses

import numpy as np

from umadvise.recording.tables import rows
from umadvise.records.trace import EventKind, Trace, event_positions


def in_order_of_use(trace: Trace) -> Trace:
    """Sorts a trace's first allocations into the order in which the step first touches or frees them.

    What it does not touch comes last, as it was. So two traces of one step are alike however each recorder found out
    what was there.
    """
    events = trace.events
    present = np.flatnonzero((events.op == -1) & (events.kind == EventKind.ALLOCATE))
    others = np.setdiff1d(np.arange(len(events)), present)
    never = 2**62
    first = np.full(len(trace.storages), never, np.int64)
    order = event_positions(trace)[others] * len(events) + np.arange(len(others))
    np.minimum.at(first, events.storage[others], order)
    access_rows = np.arange(len(trace.accesses))
    touched = trace.accesses.op.astype(np.int64) * 3 * max(len(events), 1)
    # Within one op, whose accesses come before its events, the row decides.
    first_row = np.full(len(trace.storages), never, np.int64)
    np.minimum.at(first, trace.accesses.storage, touched)
    np.minimum.at(first_row, trace.accesses.storage, access_rows)
    storage = events.storage[present]
    chosen = present[np.lexsort((np.arange(len(present)), first_row[storage], first[storage]))]
    rank = np.concatenate([chosen, others])
    return dataclasses.replace(trace, events=rows(events, rank))
