"""The numbers that several rules need, and the sentences that several rules share."""

from functools import cached_property
from statistics import median_low

from umadvise.records.counters import PhaseWord, RoleWord
from umadvise.records.fault_profile import FaultProfile, RolePhaseRow, RoleRow, Tally
from umadvise.records.units import format_bytes, format_duration_ns

HEADROOM = 0.1
"""Part of a budget that is set aside for blocks that are only partly used, when a budget is recommended or judged."""
FAULT_THRESHOLD = 0.05
"""Fault stall above this part of the step is too costly: the session's default `fault_threshold`."""
MATTERS = 0.02
"""What takes less than this part of the step, or of what it is a part of, is not worth a line."""

_MOST_OF_IT = 0.5
"""Part of the waits that more memory must remove to be worth a line."""
_AT_LEAST_WRONG = 0.02
"""Part by which a prediction is uncertain even where the simulator was right about this run's steps."""

_COMPARED = ("advise", "window", "swap")

_ROLE_WORDS: dict[RoleWord | None, str] = {
    "parameter": "parameters",
    "input": "inputs",
    "intermediate": "intermediates",
    "gradient": "gradients",
    "optimizer_state": "optimizer state",
    "workspace": "workspace",
    None: "memory in which nothing lives",
}


def role_words(role: RoleWord | None) -> str:
    """A role as a sentence names its tensors."""
    return _ROLE_WORDS[role]


def percent(share: float) -> str:
    """A share as a sentence shows it: "42%"."""
    return f"{share:.0%}"


class Facts:
    """A profile with its answers to the questions that rules ask."""

    def __init__(self, profile: FaultProfile) -> None:
        self.profile = profile
        self.steps = max(profile.counted_steps, 1)
        capacity_bytes, budget_bytes = profile.environment.capacity_bytes, profile.environment.budget_bytes
        self.limit_bytes = capacity_bytes if budget_bytes is None else min(capacity_bytes, budget_bytes)

    @cached_property
    def need_bytes(self) -> int | None:
        """Most bytes that were live at once."""
        return self.profile.memory.requested_peak_bytes if self.profile.memory else None

    @cached_property
    def fits(self) -> bool | None:
        """Whether all that was live at once could have stayed on the device; None when unknown."""
        return None if self.need_bytes is None else self.need_bytes <= self.limit_bytes * (1 - HEADROOM)

    @cached_property
    def stall_share(self) -> float | None:
        """Part of the steps' time that fault services took; None when unknown."""
        service_ns = self.profile.counters.fault_service_ns
        if service_ns is None or self.profile.counted_ns == 0:
            return None
        return service_ns / self.profile.counted_ns

    @cached_property
    def swap_stall_share(self) -> float | None:
        """Part of the steps' time for which ops waited for swaps; None where nothing was swapped."""
        swaps = self.profile.swaps
        if swaps is None or self.profile.duration_ns == 0:
            return None
        return (swaps.wait_copy_ns + swaps.wait_room_ns) / self.profile.duration_ns

    def matters(self, row: Tally) -> bool:
        """Whether the fault services of a row took enough of the step."""
        return self.profile.counted_ns > 0 and row.service_ns >= MATTERS * self.profile.counted_ns

    def much_paged_out(self, bytes_: int) -> bool:
        """Whether so many bytes are enough of what left the device, and faults enough of the step, to matter."""
        counters = self.profile.counters
        all_bytes = (counters.bytes_d2h.total or 0) if counters.bytes_d2h else 0
        return (self.stall_share or 0.0) >= MATTERS and bytes_ >= 0.1 * all_bytes

    def advised(self, role: RoleWord, advice: str) -> bool:
        """Whether tensors of a role were placed with this advice, most of them."""
        rows = [each for each in self.profile.placed if each.role == role]
        return 2 * sum(each.bytes for each in rows if each.advice == advice) > sum(each.bytes for each in rows)

    def role(self, role: RoleWord | None) -> RoleRow | None:
        """The row of a role."""
        rows = self.profile.tables.role.rows if self.profile.tables else ()
        return next((row for row in rows if row.role == role), None)

    def role_in(self, role: RoleWord, phase: PhaseWord) -> RolePhaseRow | None:
        """The row of a role in a phase."""
        rows = self.profile.tables.role_phase.rows if self.profile.tables else ()
        return next((row for row in rows if row.role == role and row.phase == phase), None)

    def fetched(self, row: Tally) -> int:
        """Bytes of a row that came to the device."""
        return row.bytes_h2d.total or 0

    def paged_out(self, row: Tally) -> int:
        """Bytes of a row that left the device to make room: by eviction, or by the guard that keeps a budget."""
        keeps_budget = self.limit_bytes < self.profile.environment.capacity_bytes
        return (row.bytes_d2h.eviction or 0) + ((row.bytes_d2h.user or 0) if keeps_budget else 0)

    def a_step(self, total: int) -> str:
        """Bytes over all steps as those of one: "1.50 GiB"."""
        return format_bytes(total // self.steps)

    def more_room(self) -> str:
        """What makes everything fit, or makes up for it: a budget, less to hold, or another rung of the ladder."""
        if self.need_bytes is None:
            return f"A larger budget stops this: umadvise.session(..., budget=...). {self.other_rungs()}".rstrip()
        if self.fits:
            return 'All that is live at once would fit: umadvise.session(..., policy="resident").'
        recommended_mib = -(-int(self.need_bytes / (1 - HEADROOM)) // (1 << 20))
        live, capacity_bytes = format_bytes(self.need_bytes), self.profile.environment.capacity_bytes
        if recommended_mib << 20 <= capacity_bytes:
            enough = (
                f"Up to {live} are live at once, {format_bytes(self.limit_bytes)} may be on the device: "
                f'umadvise.session(..., budget="{recommended_mib}MiB") stops this.'
            )
            return f"{enough} {self.other_rungs()}".rstrip() if self.profile.predictions else enough
        too_much = (
            f"Up to {live} are live at once, too much for a device of {format_bytes(capacity_bytes)}{self._less()}"
        )
        return f"{too_much} {self.other_rungs()}".rstrip()

    def _less(self) -> str:
        """What makes less live at once, where that can be enough; a batch changes nothing about parameters."""
        memory = self.profile.memory
        assert memory is not None
        assert self.need_bytes is not None
        peaks = memory.requested_peak_by_role
        missing_bytes = self.need_bytes - int(self.limit_bytes * (1 - HEADROOM))
        if peaks.intermediate + peaks.input < missing_bytes:
            sizes = {"parameters": peaks.parameter, "gradients": peaks.gradient, "state": peaks.optimizer_state}
            *first, last = [word for word, size in sizes.items() if size] or ["what stays"]
            words = f"{', '.join(first)} and {last}" if first else last
            return (
                f": {words} alone take {format_bytes(sum(sizes.values()))}, and a smaller batch needs as much of that."
            )
        if peaks.gradient == 0:
            return ": a smaller batch makes it less."
        return ": a smaller batch or torch.utils.checkpoint.checkpoint makes it less."

    def other_rungs(self) -> str:
        """What the simulator says would make the step shorter: another rung, or a part of the memory that it lacks.

        Nothing where it was asked and knows nothing.
        """
        predicted = {each.rung: each.step_ns for each in self.profile.predictions if each.more_bytes == 0}
        present = self.profile.rungs[-1].rung if self.profile.rungs else self.profile.environment.policy
        if not predicted:
            rungs = " or ".join(f'"{rung}"' for rung in _COMPARED if rung != present)
            return f"Whether policy={rungs} is faster say `umadvise run --record FILE` and `umadvise compare FILE`."
        if present not in predicted:
            return ""
        now_ns = predicted[present]
        rung = min(predicted, key=lambda each: predicted[each])
        said = []
        if predicted[rung] <= now_ns * (1 - FAULT_THRESHOLD):
            said.append(f'umadvise.session(..., policy="{rung}"): {self._instead(predicted[rung], now_ns)}.')
        more = [each for each in self.profile.predictions if each.rung == present and each.more_bytes]
        enough = [each for each in more if now_ns - each.step_ns >= _MOST_OF_IT * self._waits_ns]
        if enough and self._waits_ns:
            least = min(enough, key=lambda each: each.more_bytes)
            part = percent(min((now_ns - least.step_ns) / self._waits_ns, 1.0))
            instead = self._instead(least.step_ns, now_ns)
            said.append(f"{format_bytes(least.more_bytes)} more removes {part} of the waits: {instead}.")
        return " ".join(said)

    @cached_property
    def usual_ns(self) -> int:
        """Duration of a steady step: the median of the latest half of those that the profile holds."""
        durations = [each.duration_ns for each in self.profile.steps]
        return int(median_low(durations[len(durations) // 2 :])) if durations else 0

    @cached_property
    def _waits_ns(self) -> int:
        """How long a mean step stood still."""
        service_ns = self.profile.counters.fault_service_ns or 0
        swaps = self.profile.swaps
        waited_ns = swaps.wait_copy_ns + swaps.wait_room_ns if swaps is not None else 0
        return service_ns // self.steps + waited_ns // max(self.profile.step_count, 1)

    def _instead(self, predicted_ns: int, now_ns: int) -> str:
        """What a step would take: as much more or less as the simulator is wrong about the steps that there were."""
        measured_ns = self.usual_ns or now_ns
        wrong = max(abs(now_ns / measured_ns - 1), _AT_LEAST_WRONG)
        least, most = (format_duration_ns(round(predicted_ns * (1 + sign * wrong))) for sign in (-1, 1))
        return f"{least} to {most} a step by simulation, instead of {format_duration_ns(measured_ns)}"
