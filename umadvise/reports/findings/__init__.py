"""What a fault profile means: rules that say what happened, where and why, and which call would help.

A rule is a pure function from the facts of a profile to findings. It claims only what the counters show and what the
driver's rules (csrc/um/model.h) imply; where a call may help and may not, it says so.
"""

from collections.abc import Callable, Iterable, Iterator

import msgspec

from umadvise.records.fault_profile import MOST_FINDINGS, FaultProfile, Finding
from umadvise.reports.findings import by_role, swapping, whole_step
from umadvise.reports.findings.facts import FAULT_THRESHOLD, Facts
from umadvise.reports.findings.outlook import more_room

_RULES: tuple[Callable[[Facts], Iterable[Finding]], ...] = (
    whole_step.events_dropped,
    whole_step.fault_stall,
    swapping.swap_stall,
    swapping.steps_without_plans,
    whole_step.fits_without_unified,
    whole_step.oversized_ops,
    by_role.exported_memory,
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


_MOST = 0.5
"""Part of the waits that a cause must explain to be named before what only says that there are waits."""


def stands_still(profile: FaultProfile) -> bool:
    """Whether faults or swaps take so much of the steps that other rungs are worth a look."""
    facts = Facts(profile)
    return max(facts.waits.paging_share or 0.0, facts.waits.swap_share or 0.0) >= FAULT_THRESHOLD and not facts.fits


def budget_that_fits(profile: FaultProfile) -> int | None:
    """Budget in bytes, headroom included, with which nothing would have to leave; None where that is unknown."""
    return Facts(profile).enough_bytes


def examine(profile: FaultProfile) -> tuple[Finding, ...]:
    """All findings of a profile, those that the profile holds already are not looked at.

    Warnings come first. Among them causes do that explain most of what steps wait for, the largest part first; then
    what only says that they wait, and then all other causes. What makes room is said once, by the first that names it.
    """
    facts = Facts(profile)

    def order(finding: Finding) -> tuple[bool, int, int]:
        explained_ns = finding.evidence.get("explained_ns")
        group = 1 if explained_ns is None else 0 if explained_ns >= _MOST * facts.waits.ns else 2
        return finding.severity != "warning", group, -(explained_ns or 0)

    found = [finding for rule in _RULES for finding in rule(facts)]
    return tuple(_said_once(sorted(found, key=order)[:MOST_FINDINGS], more_room(facts)))


def _said_once(findings: Iterable[Finding], room: str) -> Iterator[Finding]:
    """The findings, of which only the first that has `room` in its advice says it: the others name that one."""
    first: str | None = None
    for finding in findings:
        if first is not None and room in finding.advice:
            advice = finding.advice.replace(room, f"What is said of {first} helps here too.")
            finding = msgspec.structs.replace(finding, advice=advice)
        elif room in finding.advice:
            first = finding.id
        yield finding
