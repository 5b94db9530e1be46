"""The numbers that several rules need."""

from functools import cached_property

from umadvise.records.counters import PhaseWord, RoleWord
from umadvise.records.fault_profile import FaultProfile, RolePhaseRow, RoleRow, Tally
from umadvise.records.units import format_bytes
from umadvise.reports.findings.waits import Waits

HEADROOM = 0.1
"""Part of a budget that is set aside for blocks that are only partly used, when a budget is recommended or judged."""
FAULT_THRESHOLD = 0.05
"""Fault stall above this part of the step is too costly: the session's default `fault_threshold`."""
MATTERS = 0.02
"""What takes less than this part of the step, or of what it is a part of, is not worth a line."""

_MUCH = 0.1
"""What is less than this part of what left the device changes too little of it."""

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
    """A profile with its answers to the questions that rules ask.

    Attributes:
        profile: profile that is examined.
        waits: what its steps wait for.
        steps: number of steps that its counters are about, 1 at least.
        limit_bytes: bytes that tensors may take on the device.
    """

    def __init__(self, profile: FaultProfile) -> None:
        self.profile = profile
        self.waits = Waits(profile)
        self.steps = max(profile.counted_steps, 1)
        capacity_bytes, budget_bytes = profile.environment.capacity_bytes, profile.environment.budget_bytes
        self.limit_bytes = capacity_bytes if budget_bytes is None else min(capacity_bytes, budget_bytes)

    @cached_property
    def need_bytes(self) -> int | None:
        """Most bytes that were live at once."""
        return self.profile.memory.requested_peak_bytes if self.profile.memory else None

    @cached_property
    def enough_bytes(self) -> int | None:
        """Budget in whole MiB with which everything fits, headroom included; None when unknown.

        Where the simulator was asked: the largest budget that it was asked about, with which nothing leaves (or which
        is twice what should do, or all that the device has).
        """
        if self.need_bytes is None:
            return None
        asked = [each.more_bytes for each in self.profile.predictions if (each.rung, each.change) == (self.rung, None)]
        enough_bytes = -(-int(self.need_bytes / (1 - HEADROOM)) // (1 << 20)) * (1 << 20)
        return max(enough_bytes, self.limit_bytes + max(asked, default=0))

    @property
    def missing_bytes(self) -> int:
        """Bytes of budget that are missing until everything fits; 0 when unknown."""
        return max((self.enough_bytes or 0) - self.limit_bytes, 0)

    @cached_property
    def fits(self) -> bool | None:
        """Whether all that was live at once could have stayed on the device; None when unknown."""
        return None if self.need_bytes is None else self.need_bytes <= self.limit_bytes * (1 - HEADROOM)

    @cached_property
    def rung(self) -> str | None:
        """The rung that the run was on last; None where nobody says."""
        return self.profile.rungs[-1].rung if self.profile.rungs else self.profile.environment.policy

    def matters(self, row: Tally) -> bool:
        """Whether what waited for the memory of a row took enough of the step."""
        served_ns, waited_ns = row.service_ns, row.wait_copy_ns + row.wait_room_ns
        share = served_ns / max(self.profile.counted_ns, 1) + waited_ns / max(self.profile.duration_ns, 1)
        return share >= MATTERS

    def much_paged_out(self, bytes_: int) -> bool:
        """Whether so many bytes are enough of what left the device, and waits enough of the step, to matter."""
        counters, swaps = self.profile.counters, self.profile.swaps
        all_bytes = (counters.bytes_d2h.total or 0) if counters.bytes_d2h else 0
        all_bytes += swaps.swap_out_bytes if swaps is not None else 0
        return self.waits.share >= MATTERS and bytes_ >= _MUCH * all_bytes

    def is_worth_a_line(self, explained_ns: int) -> bool:
        """Whether what a cause explains of a step is not too little."""
        return explained_ns >= MATTERS * self.waits.step_ns

    def part_of_waits_ns(self, row: Tally) -> int:
        """Nanoseconds of a step's waits that the memory of a row explains."""
        rows = self.profile.tables.role.rows if self.profile.tables else ()
        all_ns = sum(each.service_ns + each.wait_copy_ns + each.wait_room_ns for each in rows)
        return self.waits.ns * (row.service_ns + row.wait_copy_ns + row.wait_room_ns) // max(all_ns, 1)

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
        return (row.bytes_h2d.total or 0) + row.swap_in_bytes

    def paged_out(self, row: Tally) -> int:
        """Bytes of a row that left the device to make room: by eviction, the guard that keeps a budget, or a swap."""
        keeps_budget = self.limit_bytes < self.profile.environment.capacity_bytes
        by_guard = (row.bytes_d2h.user or 0) if keeps_budget else 0
        return (row.bytes_d2h.eviction or 0) + by_guard + row.swap_out_bytes

    def a_step(self, total: int) -> str:
        """Bytes over all steps as those of one: "1.50 GiB"."""
        return format_bytes(total // self.steps)


def call(facts: Facts, setting: str, value: str) -> str:
    """How the same run is made with another policy or budget, the way that this one was made."""
    if facts.profile.environment.script is not None:
        return f"umadvise run --{setting} {value}"
    return f'umadvise.session(..., {setting}="{value}")'
