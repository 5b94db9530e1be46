"""What a device that counts in sampled steps alone tells of one of them."""

from typing import NamedTuple

from umadvise.records.counters import Counters, SpentTime


class SampledStep(NamedTuple):
    """What a device that is sampled counted in one step.

    Attributes:
        counters: those of that step alone.
        end_ns: the time when the device had done all of it.
        times: what the step's time went into; None where that could not be told.
    """

    counters: Counters
    end_ns: int
    times: SpentTime | None
