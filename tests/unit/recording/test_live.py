"""From what a device recorded to a trace, where another thread does something while an op runs."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from umadvise import _native
from umadvise.recording import live
from umadvise.records.trace import EventKind


def test_what_is_made_after_another_thread_freed_something_is_not_made_inside_the_op(
    device: _native.Device, route: Callable[..., None]
) -> None:
    """Autograd has a thread for each GPU: one frees between its ops while the other's op is about to allocate."""
    route()
    _native.interpose(device)
    theirs, ours = torch.ones(1000), torch.ones(2000)
    device.record(True)
    made = ours.clone()
    del theirs
    device.record(False)
    recording = device.recorded()
    events = recording.events
    (allocated,) = np.flatnonzero((events["kind"] == EventKind.ALLOCATE) & (events["inside"] == 1))
    (freed,) = np.flatnonzero(events["kind"] == EventKind.FREE)
    order = [*range(allocated), freed, *range(allocated, freed), *range(freed + 1, len(events))]
    trace = live.trace_of(replace(recording, events=events[order]), target="cpu", device="", workload="")
    (row,) = np.flatnonzero(trace.storages.bytes == made.nbytes)[1:]
    assert trace.births[row] == 0
    assert (trace.accesses.storage != row).all()
