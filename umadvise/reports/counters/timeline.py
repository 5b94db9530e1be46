"""When in a step fault services ran: the data behind figure 11 of Choi and Lee (2021), section 5.2."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from umadvise.records.counters import PhaseWord
from umadvise.records.fault_profile import BIN_COUNT, Pattern

Service: TypeAlias = tuple[int, int, PhaseWord | None]
"""One fault service: start_ns, duration_ns, phase of the op that faulted."""


def pattern_of(step: int, start_ns: int, duration_ns: int, services: Iterable[Service]) -> Pattern:
    """The pattern of one step. A service that crosses bins is shared out between them; what is outside is cut off."""
    fault_groups = [0] * BIN_COUNT
    service_ns = [0] * BIN_COUNT
    phase_ns: list[dict[PhaseWord | None, int]] = [{} for _ in range(BIN_COUNT)]
    for service_start_ns, length_ns, phase in services:
        begin = min(max(service_start_ns - start_ns, 0), duration_ns)
        end = min(service_start_ns + length_ns - start_ns, duration_ns)
        first = min(begin * BIN_COUNT // max(duration_ns, 1), BIN_COUNT - 1)
        fault_groups[first] += 1
        # One more than its time: a service too short for the clock still says which phase this is.
        phase_ns[first][phase] = phase_ns[first].get(phase, 0) + 1
        while begin < end:
            index = begin * BIN_COUNT // duration_ns
            part = min(end, -(-(index + 1) * duration_ns // BIN_COUNT)) - begin
            service_ns[index] += part
            phase_ns[index][phase] = phase_ns[index].get(phase, 0) + part
            begin += part
    return Pattern(
        step=step,
        duration_ns=duration_ns,
        fault_groups=tuple(fault_groups),
        service_ns=tuple(service_ns),
        phases=tuple(_bridged([max(seen, key=lambda phase: seen[phase], default=None) for seen in phase_ns])),
    )


def _bridged(phases: Sequence[PhaseWord | None]) -> list[PhaseWord | None]:
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
