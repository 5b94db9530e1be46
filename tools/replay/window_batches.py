"""The largest batches that the window planner trains."""

import functools

import harness

from replay.recording import trace
from replay.window_runs import GIB, largest_plan
from umadvise.devices.catalogue import load_device
from umadvise.simulator.swap import AllocatorModel


@functools.cache
def largest(network: str, device: str, allocator: AllocatorModel, least: int) -> int:
    """The largest batch for which a budget of whole GiB is found, within 5 %; `least` is one that trains.

    Between two batches of which the smaller trains and the larger does not there may be others of both kinds, as an
    allocator's luck has it.
    """

    def trains(batch: int) -> bool:
        step = trace(network, batch, device)
        return largest_plan(step, load_device(device), allocator, step_bytes=GIB) is not None

    return harness.largest(trains, least, part=20)
