"""Rules about the step as a whole: time, order, fit."""

from collections.abc import Iterator

from umadvise.records.counters import PhaseWord
from umadvise.records.fault_profile import Finding, OversizedOp
from umadvise.records.units import BLOCK_BYTES, format_bytes, format_duration_ns
from umadvise.reports.findings.facts import FAULT_THRESHOLD, MATTERS, Facts, call, percent, role_words
from umadvise.reports.findings.outlook import more_room, promised

_MANY_CALLS = 0.25
"""Part of a step that calls of the driver must take to be named: below it, memory that can grow is worth them."""
_CLEAR_DIFFERENCE = 0.1
"""Stall shares of two phases that differ by less are called equal; the paper's figure 11 shows 0.2."""


def events_dropped(facts: Facts) -> Iterator[Finding]:
    """Events were lost, so the tables are too small; the counters are not."""
    dropped = facts.profile.events_dropped
    if dropped:
        yield Finding(
            id="events-dropped",
            severity="warning",
            subject="tables",
            message=f"{dropped:,} events were lost because nobody took them in time: tables and pattern are too low, "
            "the totals are not.",
            advice="Trust the totals.",
            evidence={"events_dropped": dropped},
        )


def fault_stall(facts: Facts) -> Iterator[Finding]:
    """Faults cost more than the threshold, and the data does not fit."""
    share, counters = facts.waits.paging_share, facts.profile.counters
    if share is None or share < FAULT_THRESHOLD or facts.fits:
        return
    service_ns = counters.fault_service_ns or 0
    rows = facts.profile.tables.role.rows if facts.profile.tables else ()
    most = max(rows, key=lambda row: row.service_ns, default=None)
    whose = ""
    if most and most.service_ns:  # tables are of the whole run
        part = percent(most.service_ns / service_ns)
        whose = f" In the whole run {part} of the time of faults was for {role_words(most.role)}."
    yield Finding(
        id="fault-stall",
        severity="warning",
        subject="step",
        message=f"Faults and late prefetches take {percent(share)} of a steady step: "
        f"{format_duration_ns(int(share * facts.waits.step_ns))} of {format_duration_ns(facts.waits.step_ns)}.{whose}",
        advice=more_room(facts),
        evidence={
            "fault_service_ns": service_ns,
            "duration_ns": facts.profile.counted_ns,
            **promised(facts, more_bytes=facts.missing_bytes),
        },
    )


def fits_without_unified(facts: Facts) -> Iterator[Finding]:
    """Everything fits, so that unified memory gains nothing (and cost 2.3 to 12.3 % in Choi and Lee 2021, figure 7)."""
    faults, share = facts.profile.counters.fault_groups or 0, facts.waits.paging_share or 0.0
    if not facts.fits or facts.need_bytes is None or facts.profile.environment.policy == "resident":
        return
    calls_share = facts.waits.guard_share if facts.advised("intermediate", "prefetch") else 0.0
    if faults and share >= MATTERS:
        what = f"Yet faults take {percent(share)} of a steady step. The whole run had {faults:,} fault groups."
    elif calls_share >= _MANY_CALLS:
        calls = "calls of the driver, with which new memory is prefetched,"
        what = f"Yet {calls} take {percent(calls_share)} of a steady step."
    else:
        return
    yield Finding(
        id="fits-without-unified",
        severity="warning" if max(share, calls_share) >= FAULT_THRESHOLD else "info",
        subject="step",
        message=f"Up to {format_bytes(facts.need_bytes)} are live at once and {format_bytes(facts.limit_bytes)} may be "
        f"on the device: it all fits. {what}",
        advice=f"Plain device memory is faster here: {call(facts, 'policy', 'resident')}, or leave "
        "torch.cuda.set_unified() out.",
        evidence={"requested_peak_bytes": facts.need_bytes, "limit_bytes": facts.limit_bytes, "fault_groups": faults},
    )


def oversized_ops(facts: Facts) -> Iterator[Finding]:
    """An op needs more than may be on the device at once, so that it evicts what it is about to use."""
    for op in facts.profile.oversized_ops[:8]:
        where = f" in {op.module}" if op.module else ""
        limit = f"{format_bytes(facts.limit_bytes)} may be on the device"
        if op.bytes <= facts.limit_bytes:
            limit += ", of which plain memory or chunks left unified memory less"
        yield Finding(
            id="oversized-op",
            severity="warning",
            subject=op.op or "an op",
            message=f"{op.op or 'An op'}{where} touches up to {format_bytes(op.bytes)} at once, {limit} "
            f"({op.count} times): it pages out what it is about to use.",
            advice=_smaller_working_set(op, facts),
            evidence={"bytes": op.bytes, "limit_bytes": facts.limit_bytes, "count": op.count},
        )


def _smaller_working_set(op: OversizedOp, facts: Facts) -> str:
    capacity_bytes = facts.profile.environment.capacity_bytes
    name = op.op or ""
    if "_foreach_" in name or "_fused_" in name:
        return (
            "It takes all tensors of the optimizer in one call; foreach=False (and not fused=True) in the optimizer's "
            "constructor, as in torch.optim.AdamW(..., foreach=False), takes them one by one."
        )
    budget_mib = -(-op.bytes // BLOCK_BYTES) * (BLOCK_BYTES >> 20)
    if budget_mib << 20 > capacity_bytes:
        return f"No budget on a device of {format_bytes(capacity_bytes)} holds it: smaller tensors, or a larger device."
    less = "smaller tensors: a smaller batch changes nothing here" if op.phase == "optimizer" else "a smaller batch"
    if op.bytes <= facts.limit_bytes:
        return f"More memory, or {less}."
    return f"A budget of at least its working set, {call(facts, 'budget', f'{budget_mib}MiB')}, or {less}."


def backward_stalls_more(facts: Facts) -> Iterator[Finding]:
    """Backward waits for faults clearly more than forward (Choi and Lee 2021, figure 11)."""
    pattern = facts.profile.pattern
    shares: dict[PhaseWord, float | None] = {"forward": None, "backward": None}
    if pattern is not None:
        shares = {phase: pattern.stall_share(phase) for phase in shares}
    forward, backward = shares["forward"], shares["backward"]
    if pattern is None or forward is None or backward is None:
        return
    if min(backward, facts.waits.paging_share or 0.0) < FAULT_THRESHOLD or backward - forward < _CLEAR_DIFFERENCE:
        return
    fetched = facts.role_in("intermediate", "backward")
    fetched_bytes = (fetched.bytes_h2d.total or 0) if fetched else 0
    saved = f", which fetches {facts.a_step(fetched_bytes)} of intermediates back" if fetched_bytes else ""
    yield Finding(
        id="backward-stalls-more",
        severity="info",
        subject="backward",
        message=f"Faults take {percent(backward)} of backward{saved}, and {percent(forward)} of forward.",
        advice="Backward reads what forward saved. torch.utils.checkpoint.checkpoint(block, x) saves less and computes "
        "it again.",
        evidence={
            "backward_per_mille": round(backward * 1000),
            "forward_per_mille": round(forward * 1000),
            "bytes_h2d": fetched_bytes,
        },
    )


def first_touches_dominate(facts: Facts) -> Iterator[Finding]:
    """After the first step too, most faults find nothing to copy: they only create memory."""
    profile = facts.profile
    if profile.tables is None or not profile.steps:
        return
    first = profile.steps[0].counters
    fault_groups = (profile.counters.fault_groups or 0) - (first.fault_groups or 0)
    # The tables know which faults were first touches, but not in which step; the counters know the step, but also count
    # the first touches of prefetches. So these are at least so many.
    in_all_steps = sum(row.first_touches or 0 for row in profile.tables.role.rows)
    first_touches = in_all_steps - min(first.first_touches or 0, first.fault_groups or 0)
    if first_touches <= 0 or first_touches * 2 < fault_groups or (facts.waits.paging_share or 0.0) < MATTERS:
        return
    if facts.advised("intermediate", "prefetch"):
        call = "The intermediates are prefetched already; what is left is new memory of other roles."
    else:
        call = 'torch.cuda.set_unified("prefetch") makes new intermediates resident in one call instead of by faults.'
    yield Finding(
        id="first-touches-dominate",
        severity="info",
        subject="step",
        message=f"At least {first_touches:,} of {fault_groups:,} fault groups after the first step are first touches: "
        "they zero new memory, nothing crosses the link.",
        advice=call,
        evidence={"first_touches": first_touches, "fault_groups": fault_groups},
    )


def unordered_faults(facts: Facts) -> Iterator[Finding]:
    """Ordered counting still met real faults, whose number may differ from run to run."""
    unordered = facts.profile.counters.unordered_faults
    if not unordered or facts.profile.environment.counting != "ordered":
        return
    fault_groups = facts.profile.counters.fault_groups or 0
    if unordered < MATTERS * fault_groups:
        return
    if facts.profile.oversized_ops:
        why = "ops whose working set does not fit page out what they are still using"
        advice = "Results are not affected. To have counts that repeat, follow the advice on the oversized ops."
    else:
        why = "something touched device memory that no op had announced"
        advice = "Results are not affected. Reading tensors only through torch ops (or .numpy(), .item()) announces it."
    rows = facts.profile.tables.op.rows if facts.profile.tables else ()
    most = max((row for row in rows if row.unordered_faults), key=lambda row: row.unordered_faults, default=None)
    yield Finding(
        id="unordered-faults",
        severity="info",
        subject=(most.op if most else None) or "step",
        message=f"{unordered:,} fault groups came outside of the fixed order, so that their number may differ from run "
        f"to run: {why}.",
        advice=advice,
        evidence={"unordered_faults": unordered, "fault_groups": fault_groups},
    )
