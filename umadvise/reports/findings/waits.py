"""How long steady steps of a run take, and how long they stand still."""

from functools import cached_property
from statistics import median_low

from umadvise.records.fault_profile import FaultProfile, MeasuredStep

_WARM_UP = 3
"""Steps that a run takes before plans can drive: one makes the optimizer's state, one is recorded, and one to spare."""


def _paging_ns(step: MeasuredStep) -> int | None:
    """How long a step stood still for faults and for prefetches that were late."""
    service_ns = step.counters.fault_service_ns
    return None if service_ns is None else service_ns + (step.times.prefetch_ns if step.times is not None else 0)


class Waits:
    """What the steady steps of a profile wait for; of a profile that holds no steps, what all of them do."""

    def __init__(self, profile: FaultProfile) -> None:
        self._profile = profile

    @cached_property
    def steady(self) -> tuple[MeasuredStep, ...]:
        """The latest half of the steps on the last rung: no plan drives the first ones, and state is made there."""
        since = self._profile.rungs[-1].step if self._profile.rungs else 0
        steps = [each for each in self._profile.steps if each.index >= since]
        return tuple(steps[len(steps) // 2 :])

    @cached_property
    def paging_share(self) -> float | None:
        """Part of the time of steady steps that faults and late prefetches took; None when unknown."""
        known = [(each, ns) for each in self.steady if (ns := _paging_ns(each)) is not None]
        if known:
            return sum(ns for _, ns in known) / max(sum(each.duration_ns for each, _ in known), 1)
        service_ns = self._profile.counters.fault_service_ns
        if service_ns is None or self._profile.counted_ns == 0:
            return None
        return service_ns / self._profile.counted_ns

    @cached_property
    def swap_share(self) -> float | None:
        """Part of the time of steady steps for which ops waited for swaps; None where nothing was swapped."""
        known = [(each, each.swaps) for each in self.steady if each.swaps is not None]
        if known:
            waited_ns = sum(swaps.wait_copy_ns + swaps.wait_room_ns for _, swaps in known)
            return waited_ns / max(sum(each.duration_ns for each, _ in known), 1)
        swaps = self._profile.swaps
        if swaps is None or self._profile.duration_ns == 0:
            return None
        return (swaps.wait_copy_ns + swaps.wait_room_ns) / self._profile.duration_ns

    @property
    def share(self) -> float:
        """Part of the time of steady steps for which they stood still, for faults and for swaps."""
        return (self.paging_share or 0.0) + (self.swap_share or 0.0)

    @cached_property
    def ns(self) -> int:
        """How long a steady step stands still, as the counters say."""
        return int(self.share * self.step_ns)

    @cached_property
    def step_ns(self) -> int:
        """What every sentence calls the duration of a step: the usual one, or the mean where the profile holds none."""
        return self.usual_ns or self._profile.duration_ns // max(self._profile.step_count, 1)

    @cached_property
    def usual_ns(self) -> int:
        """Duration of a steady step, the median; 0 where the profile holds no steps."""
        return median_low([each.duration_ns for each in self.steady]) if self.steady else 0

    @cached_property
    def spread(self) -> float:
        """How many times longer or shorter than the usual one steady steps are, but for a quarter at either end."""
        durations = sorted(each.duration_ns for each in self.steady)
        if not durations:
            return 1.0
        shortest, longest = durations[len(durations) // 4], durations[-1 - len(durations) // 4]
        return max(longest / max(self.usual_ns, 1), self.usual_ns / max(shortest, 1), 1.0)

    @cached_property
    def ops_ns(self) -> int:
        """For how long ops of a steady step ran, the median; 0 where nobody knows."""
        return self._usual("compute_ns")

    @cached_property
    def host_ns(self) -> int:
        """What a steady step spent between ops, in the script and on plans and readings; 0 where nobody knows."""
        return self._usual("script_ns", "planning_ns", "observing_ns")

    @cached_property
    def guard_share(self) -> float:
        """Part of a steady step that the guard takes, with the driver calls that it makes; 0 where nobody knows."""
        return self._usual("guard_ns") / max(self.usual_ns, 1)

    def _usual(self, *kinds: str) -> int:
        times = [each.times for each in self.steady if each.times is not None]
        return median_low([sum(getattr(each, kind) for kind in kinds) for each in times]) if times else 0

    @cached_property
    def mostly_undriven(self) -> bool:
        """Whether most steps of a rung that has plans were not driven by one, warm-up apart."""
        planned = self._profile.planned
        if planned is None:
            return False
        undriven = sum(each.last - each.first + 1 for each in planned.undriven)
        return undriven > max(_WARM_UP, (planned.driven + undriven) / 2)
