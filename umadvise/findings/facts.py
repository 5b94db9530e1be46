"""The numbers that several rules need, and the sentences that several rules share."""

from functools import cached_property

from umadvise.counters.records import Phase, Role
from umadvise.profile import FaultProfile, RolePhaseRow, RoleRow, Tally
from umadvise.units import format_bytes

BLOCK_BYTES = 2 << 20
"""What faults and evictions move at a time (uvm/uvm_va_block_types.h)."""
HEADROOM = 0.1
"""Part of a budget that is set aside for blocks that are only partly used, when a budget is recommended or judged."""
FAULT_THRESHOLD = 0.05
"""Fault stall above this part of the step is too costly: the session's default `fault_threshold`."""

_ROLE_WORDS: dict[Role | None, str] = {
    "parameter": "parameters",
    "input": "inputs",
    "intermediate": "intermediates",
    "gradient": "gradients",
    "optimizer_state": "optimizer state",
    "workspace": "workspace",
    None: "memory in which nothing lives",
}


def role_words(role: Role | None) -> str:
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

    def role(self, role: Role | None) -> RoleRow | None:
        """The row of a role."""
        rows = self.profile.tables.role.rows if self.profile.tables else ()
        return next((row for row in rows if row.role == role), None)

    def role_in(self, role: Role, phase: Phase) -> RolePhaseRow | None:
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
        """What makes everything fit: a budget, or where none can, less to hold."""
        if self.need_bytes is None:
            return "A larger budget stops this: umadvise.session(..., budget=...)."
        if self.fits:
            return 'All that is live at once would fit: umadvise.session(..., policy="resident").'
        recommended_mib = -(-int(self.need_bytes / (1 - HEADROOM)) // (1 << 20))
        if recommended_mib << 20 <= self.profile.environment.capacity_bytes:
            return (
                f"Up to {format_bytes(self.need_bytes)} are live at once, {format_bytes(self.limit_bytes)} may be on "
                f'the device: umadvise.session(..., budget="{recommended_mib}MiB") stops this.'
            )
        return (
            f"Up to {format_bytes(self.need_bytes)} are live at once, too much for a device of "
            f"{format_bytes(self.profile.environment.capacity_bytes)}: a smaller batch or "
            "torch.utils.checkpoint.checkpoint makes it less."
        )
