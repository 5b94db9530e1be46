"""The largest batches that the window planner trains."""

import functools

from replay.recording import trace
from replay.window_runs import largest_plan
from umadvise.catalogue import load_device
from umadvise.simulator.swap import AllocatorModel


@functools.cache
def largest(network: str, device: str, allocator: AllocatorModel, least: int) -> int:
    """The largest batch for which a budget is found, within 5 %; `least` is one that trains.

    Between two batches of which the smaller trains and the larger does not there may be others of both kinds, as an
    allocator's luck has it.
    """

    def trains(batch: int) -> bool:
        return largest_plan(trace(network, batch, device), load_device(device), allocator) is not None

    low, high = least, 2 * least
    while trains(high):
        low, high = high, 2 * high
    while high - low > max(1, low // 20):
        middle = (low + high) // 2
        low, high = (middle, high) if trains(middle) else (low, middle)
    return low
