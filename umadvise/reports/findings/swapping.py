"""Rules about explicit swaps and the plans that drive them."""

from collections.abc import Iterator

from umadvise.records.fault_profile import Finding
from umadvise.records.units import format_duration_ns
from umadvise.reports.findings.facts import FAULT_THRESHOLD, Facts, call, percent, role_words
from umadvise.reports.findings.outlook import after, more_room, promised


def steps_without_plans(facts: Facts) -> Iterator[Finding]:
    """Most steps were not driven by the plans that the rung is there for."""
    planned = facts.profile.planned
    if planned is None or not facts.waits.mostly_undriven or facts.waits.share < FAULT_THRESHOLD:
        return
    latest, count = planned.undriven[-1], planned.driven + sum(each.last - each.first + 1 for each in planned.undriven)
    yield Finding(
        id="steps-without-plans",
        severity="warning",
        subject="step",
        message=f"Plans drove {planned.driven:,} of {count:,} steps: in the others what an op needs comes when the op "
        f"begins. The latest, step {latest.last}: {latest.reason}.",
        advice="Plans are for steps that repeat: the same ops in the same order, on tensors of the same sizes, as "
        f"batches padded to one length have{after(facts)}. For steps that never repeat, "
        f"{call(facts, 'policy', 'advise')} needs no plans.",
        evidence={"driven": planned.driven, "steps": count, "explained_ns": facts.waits.ns, **promised(facts)},
    )


def swap_stall(facts: Facts) -> Iterator[Finding]:
    """Ops waited for copies or for room longer than the threshold."""
    share, swaps, profile = facts.waits.swap_share, facts.profile.swaps, facts.profile
    if share is None or swaps is None or share < FAULT_THRESHOLD:
        return
    waited_ns = swaps.wait_copy_ns + swaps.wait_room_ns
    rows = profile.tables.role.rows if profile.tables else ()
    most = max(rows, key=lambda row: row.wait_copy_ns + row.wait_room_ns, default=None)
    demanded_ns = sum(row.on_demand_wait_ns for row in rows)
    whole_run = ""  # tables are of it, and the first steps, which no plan drives, wait for other things
    if most and most.wait_copy_ns + most.wait_room_ns:
        whole_run = f" In the whole run most of these waits were for {role_words(most.role)}"
        if demanded_ns:
            whole_run += f", and {percent(demanded_ns / waited_ns)} for copies that no plan had asked for in time"
        whole_run += "."
    yield Finding(
        id="swap-stall",
        severity="warning",
        subject="step",
        message=f"Ops stand still for swaps for {percent(share)} of a steady step, "
        f"{format_duration_ns(int(share * facts.waits.step_ns))} of {format_duration_ns(facts.waits.step_ns)}."
        f"{whole_run}",
        advice=more_room(facts),
        evidence={
            "wait_copy_ns": swaps.wait_copy_ns,
            "wait_room_ns": swaps.wait_room_ns,
            "on_demand_wait_ns": demanded_ns,
            "duration_ns": profile.duration_ns,
            **promised(facts, more_bytes=facts.missing_bytes),
        },
    )
