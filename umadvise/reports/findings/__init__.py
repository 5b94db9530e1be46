"""What a fault profile means: rules that say what happened, where and why, and which call would help.

A rule is a pure function from the facts of a profile to findings. It claims only what the counters show and what the
driver's rules (csrc/um/model.h) imply; where a call may help and may not, it says so.
"""

from collections.abc import Callable, Iterable

from umadvise.records.fault_profile import MOST_FINDINGS, FaultProfile, Finding
from umadvise.reports.findings import by_role, swapping, whole_step
from umadvise.reports.findings.facts import FAULT_THRESHOLD, Facts

_RULES: tuple[Callable[[Facts], Iterable[Finding]], ...] = (
    whole_step.events_dropped,
    whole_step.fault_stall,
    swapping.swap_stall,
    swapping.steps_without_plans,
    whole_step.fits_without_unified,
    whole_step.oversized_ops,
    by_role.parameters_fault_every_step,
    by_role.read_mostly_collapses,
    by_role.optimizer_state_round_trip,
    by_role.dead_intermediates_copied,
    by_role.inputs_copied_back,
    by_role.remote_maps,
    whole_step.backward_stalls_more,
    whole_step.first_touches_dominate,
    whole_step.unordered_faults,
)


def stands_still(profile: FaultProfile) -> bool:
    """Whether faults or swaps take so much of the steps that other rungs are worth a look."""
    facts = Facts(profile)
    return max(facts.stall_share or 0.0, facts.swap_stall_share or 0.0) >= FAULT_THRESHOLD and not facts.fits


def examine(profile: FaultProfile) -> tuple[Finding, ...]:
    """All findings of a profile, warnings first; those that the profile holds already are not looked at."""
    facts = Facts(profile)
    found = [finding for rule in _RULES for finding in rule(facts)]
    return tuple(sorted(found, key=lambda finding: finding.severity != "warning")[:MOST_FINDINGS])
