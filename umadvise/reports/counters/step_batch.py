"""Steps in a row in which no event was recorded, as a profile takes them."""

from collections.abc import Sequence
from dataclasses import dataclass

from umadvise.records.counters import Counters, MemoryStats, ResidencyPeak, SpentTime, Swaps
from umadvise.records.fault_profile import MOST_STEPS, MeasuredStep

FIRST_STEPS = 16
"""Of the steps kept in a profile so many are the first ones; the others are the latest."""
LATEST_STEPS = MOST_STEPS - FIRST_STEPS


@dataclass(frozen=True)
class StepBatch:
    """What such steps cost together.

    Attributes:
        steps: the first `FIRST_STEPS` and the last `LATEST_STEPS` of them, in order.
        count: number of all of them.
        start_ns: begin of the last of them, by the events' clock.
        duration_ns: length of all of them.
        counters: what the device counted in them.
        swaps: what explicit swapping did in them.
        times: what time went into; None where that is not known.
        memory: the memory when the last of them ended, with the peaks of all.
        residency: peaks of all by role, tensor and op; each of the steps has peaks of the same ones.
    """

    steps: Sequence[MeasuredStep]
    count: int
    start_ns: int
    duration_ns: int
    counters: Counters
    swaps: Swaps
    times: SpentTime | None
    memory: MemoryStats
    residency: Sequence[ResidencyPeak]
