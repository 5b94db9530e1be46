"""When in the step fault services ran: the data behind figures 10 and 11 of Choi and Lee (2021), section 5.2."""

from collections.abc import Iterable
from typing import TypeAlias

from umadvise.counters.records import Phase
from umadvise.profile import BIN_COUNT, Pattern

Service: TypeAlias = tuple[int, int, Phase | None]
"""One fault service: start_ns, duration_ns, phase of the op that faulted."""


class PatternSum:
    """A Pattern under construction."""

    def __init__(self) -> None:
        self._step_count = 0
        self._duration_ns = 0
        self._fault_groups = [0] * BIN_COUNT
        self._service_ns = [0] * BIN_COUNT
        self._phase_ns: list[dict[Phase | None, int]] = [{} for _ in range(BIN_COUNT)]

    def add_step(self, start_ns: int, duration_ns: int, services: Iterable[Service]) -> None:
        """Adds one step. A service that crosses bins is shared out between them; what is outside the step is cut."""
        self._step_count += 1
        self._duration_ns += duration_ns
        for service_start_ns, service_ns, phase in services:
            begin = min(max(service_start_ns - start_ns, 0), duration_ns)
            end = min(service_start_ns + service_ns - start_ns, duration_ns)
            first = min(begin * BIN_COUNT // max(duration_ns, 1), BIN_COUNT - 1)
            self._fault_groups[first] += 1
            # One more than its time: a service too short for the clock still says which phase this is.
            phase_ns = self._phase_ns[first]
            phase_ns[phase] = phase_ns.get(phase, 0) + 1
            self._share_out(begin, end, duration_ns, phase)

    def _share_out(self, begin: int, end: int, duration_ns: int, phase: Phase | None) -> None:
        while begin < end:
            index = begin * BIN_COUNT // duration_ns
            part = min(end, -(-(index + 1) * duration_ns // BIN_COUNT)) - begin
            self._service_ns[index] += part
            self._phase_ns[index][phase] = self._phase_ns[index].get(phase, 0) + part
            begin += part

    def pattern(self) -> Pattern | None:
        """The pattern so far; None before the first step."""
        if self._step_count == 0:
            return None
        seen = [max(phase_ns, key=lambda phase: phase_ns[phase]) if phase_ns else None for phase_ns in self._phase_ns]
        return Pattern(
            step_count=self._step_count,
            duration_ns=self._duration_ns,
            fault_groups=tuple(self._fault_groups),
            service_ns=tuple(self._service_ns),
            phases=tuple(_bridged(seen)),
        )


def _bridged(phases: list[Phase | None]) -> list[Phase | None]:
    """Fills the gaps that have the same phase on both sides: nothing faulted there, but the phase did not change."""
    bridged = list(phases)
    last: int | None = None
    for index, phase in enumerate(phases):
        if phase is None:
            continue
        if last is not None and phases[last] == phase:
            bridged[last:index] = [phase] * (index - last)
        last = index
    return bridged
