"""Rules about the tensors of one role."""

from collections.abc import Iterator

from umadvise.records.counters import PHASES, RoleWord
from umadvise.records.fault_profile import Finding
from umadvise.records.units import BLOCK_BYTES, format_bytes
from umadvise.reports.findings.facts import FAULT_THRESHOLD, MATTERS, Facts, role_words
from umadvise.reports.findings.outlook import after, more_room, predicted, promised, saved_ns


def parameters_fault_every_step(facts: Facts) -> Iterator[Finding]:
    """Parameters come back over the link in each step. Preferred location does not prevent that (uvm/uvm_pmm_gpu.c)."""
    row, step_count = facts.role("parameter"), facts.profile.counted_steps
    if row is None or step_count < 2 or row.faulted_steps < step_count:
        return
    fetched = facts.fetched(row)
    if fetched < BLOCK_BYTES * step_count or not facts.matters(row):
        return
    if facts.advised("parameter", "preferred_location"):
        call = "They have preferred_location already: it says where they belong and protects nothing from eviction."
    else:
        call = (
            'model.to("cuda:preferredlocation") may lower the number of faults (the best published setting for '
            "BERT-Large used it), but it protects nothing from eviction."
        )
    yield Finding(
        id="parameters-fault-every-step",
        severity="warning",
        subject="parameter",
        message=f"Parameters fault in every step, {facts.a_step(fetched)} a step come to the device: each step "
        "evicts them again, because eviction takes what was serviced longest ago, not what is used least.",
        advice=f"{more_room(facts)} {call}",
        evidence={
            "fault_groups": row.fault_groups,
            "faulted_steps": row.faulted_steps,
            "fetched_bytes": fetched,
            "paged_out_bytes": facts.paged_out(row),
            "explained_ns": facts.part_of_waits_ns(row),
            **promised(facts, more_bytes=facts.missing_bytes),
        },
    )


_INSTEAD_OF_READ_MOSTLY: dict[RoleWord | None, str] = {
    "parameter": "Do not use readmostly for parameters that are trained: "
    'model.to("cuda:preferredlocation") or model.to("cuda:noadvise").',
    "input": 'These inputs are written after they arrive: x.to("cuda:noadvise").',
    "intermediate": 'Readmostly suits what is only read: torch.cuda.set_unified("noadvise").',
}


def read_mostly_collapses(facts: Facts) -> Iterator[Finding]:
    """Read-mostly tensors are written in every step, and each write throws their duplicates away."""
    for row in facts.profile.tables.role.rows if facts.profile.tables else ():
        if row.collapses is None or row.collapses < facts.steps or row.role is None or not facts.matters(row):
            continue
        collapses = {phase: facts.role_in(row.role, phase) for phase in PHASES if phase}
        worst = max(collapses.values(), key=lambda part: (part.collapses or 0) if part else 0)
        where = f" in {worst.phase}" if worst and worst.collapses else ""
        yield Finding(
            id="read-mostly-collapses",
            severity="warning",
            subject=row.role,
            message=f"Writes{where} ended {row.collapses:,} read-mostly duplicates of {role_words(row.role)} "
            f"({row.collapses // facts.steps:,} a step): each costs a fault, and the next read makes the copy again.",
            advice=_INSTEAD_OF_READ_MOSTLY.get(row.role, "Readmostly suits what is only read: use no advice here."),
            evidence={"collapses": row.collapses, "steps": facts.profile.counted_steps},
        )


def optimizer_state_round_trip(facts: Facts) -> Iterator[Finding]:
    """The optimizer's state comes in and goes out once a step."""
    memory, row = facts.profile.memory, facts.role("optimizer_state")
    if memory is None or row is None:
        return
    state_bytes = memory.requested_peak_by_role.optimizer_state
    fetched, paged_out = facts.fetched(row), facts.paged_out(row)
    # Half of it: in the first step it is made, not fetched, and in the last it may stay.
    if min(fetched, paged_out) < max(state_bytes // 2, BLOCK_BYTES) * facts.steps or not facts.matters(row):
        return
    saved = saved_ns(facts, "stateless")
    explained_ns = facts.part_of_waits_ns(row) if saved is None else saved
    if not facts.is_worth_a_line(explained_ns):
        return
    yield Finding(
        id="optimizer-state-round-trip",
        severity="warning",
        subject="optimizer_state",
        message=f"The optimizer's state ({format_bytes(state_bytes)}) comes in and goes out once a step: "
        f"{facts.a_step(fetched)} to the device and {facts.a_step(paged_out)} back. It is used once, and everything "
        "else passes through in between.",
        advice=f"{more_room(facts)} No advice keeps it on the device. An optimizer without state, "
        "torch.optim.SGD(model.parameters(), ...), moves none, but trains otherwise"
        f"{after(facts, 'stateless')}; one with less (Adafactor) moves less.",
        evidence={
            "fetched_bytes": fetched,
            "paged_out_bytes": paged_out,
            "state_bytes": state_bytes,
            "explained_ns": explained_ns,
            **promised(facts, change="stateless"),
        },
    )


def dead_intermediates_copied(facts: Facts) -> Iterator[Finding]:
    """Intermediates that nothing reads again are copied to the host: nobody can know that they are dead."""
    if facts.profile.tables is None:
        return
    rows = [row for row in facts.profile.tables.tensor.rows if row.role == "intermediate"]
    copied = sum(facts.paged_out(row) for row in rows)
    unread = sum(max(facts.paged_out(row) - facts.fetched(row), 0) for row in rows)
    freed = predicted(facts, change="freed_sooner")
    # Where the memory of dead ones is used again at once it comes back too, with bytes that nobody reads.
    suspect = copied if freed is not None else unread
    if suspect < max(BLOCK_BYTES * facts.steps, copied / 4) or not facts.much_paged_out(suspect):
        return
    if freed is not None:
        explained_ns, made = saved_ns(facts, "freed_sooner") or 0, freed.about
        dead = "much of what takes the room was dead by then"
    elif facts.profile.predictions:
        return  # nothing is held longer than it is used
    else:
        explained_ns, made = facts.waits.ns * unread // max(_moved_bytes(facts), 1), None
        dead = f"{facts.a_step(unread)} of that never came back: they were dead or about to be"
    if not facts.is_worth_a_line(explained_ns):
        return
    yield Finding(
        id="dead-intermediates-copied",
        severity="warning" if explained_ns >= FAULT_THRESHOLD * facts.waits.step_ns else "info",
        subject="intermediate",
        message=f"To make room, each step copied {facts.a_step(copied)} of intermediates to the host, and {dead}"
        f"{f', most of it made by {made}' if made else ''}. What leaves is copied, as nobody knows that it is dead.",
        advice=f"Free what nobody reads again sooner (del, no list that keeps it){after(facts, 'freed_sooner')}. Or "
        "have less (inplace=True, optimizer.zero_grad(set_to_none=True), torch.utils.checkpoint.checkpoint).",
        evidence={
            "paged_out_bytes": copied,
            "unread_bytes": unread,
            "explained_ns": explained_ns,
            **promised(facts, change="freed_sooner"),
        },
    )


def _moved_bytes(facts: Facts) -> int:
    rows = facts.profile.tables.role.rows if facts.profile.tables else ()
    return sum(facts.fetched(row) + facts.paged_out(row) for row in rows)


def exported_memory(facts: Facts) -> Iterator[Finding]:
    """Addresses of tensors are held outside of torch, so that they cannot leave, and others do in their place."""
    exported = facts.profile.exported
    held_bytes = sum(each.bytes for each in exported)
    if held_bytes < max(BLOCK_BYTES, MATTERS * facts.limit_bytes) or facts.waits.share < FAULT_THRESHOLD:
        return
    explained_ns = saved_ns(facts, "unpinned")
    if explained_ns is None or not facts.is_worth_a_line(explained_ns):
        return
    most = max(exported, key=lambda each: each.bytes)
    what = most.name or f"made by {most.birth_op}" if most.name or most.birth_op else role_words(most.role)
    yield Finding(
        id="exported-memory",
        severity="warning",
        subject=most.role,
        message=f"{format_bytes(held_bytes)} cannot leave the device, as addresses of tensors are held outside of "
        f"torch (numpy(), data_ptr(), DLPack): most of it is {what} ({format_bytes(most.bytes)}). Others leave in "
        "their place.",
        advice=f"Give away a copy, tensor.cpu().numpy(){after(facts, 'unpinned')}. Or drop the array when it is used.",
        evidence={"held_bytes": held_bytes, "explained_ns": explained_ns, **promised(facts, change="unpinned")},
    )


def inputs_copied_back(facts: Facts) -> Iterator[Finding]:
    """Inputs, which nobody writes, are copied back when they are evicted; read-mostly ones need not be."""
    row = facts.role("input")
    if row is None or facts.advised("input", "read_mostly"):
        return
    copied = facts.paged_out(row)
    if copied < BLOCK_BYTES * facts.steps or not facts.much_paged_out(copied):
        return
    yield Finding(
        id="inputs-copied-back",
        severity="info",
        subject="input",
        message=f"To make room, each step copied {facts.a_step(copied)} of inputs to the host, although they do not "
        "change.",
        advice='x.to("cuda:readmostly"): a duplicate whose host copy is still valid is dropped without a copy.',
        evidence={"paged_out_bytes": copied},
    )


def remote_maps(facts: Facts) -> Iterator[Finding]:
    """Tensors were mapped remotely: no fault and no copy, but each access crosses the link."""
    for row in facts.profile.tables.role.rows if facts.profile.tables else ():
        if row.remote_maps < facts.steps:
            continue
        yield Finding(
            id="remote-maps",
            severity="info",
            subject=row.role or "memory",
            message=f"{row.remote_maps:,} blocks of {role_words(row.role)} were mapped remotely: every access to them "
            "crosses the link, and they do not move to the device.",
            advice="Right for what is read once. What is used more often in a step does better where it may move: "
            '"cuda:preferredlocation" instead of "cuda:accessby".',
            evidence={"remote_maps": row.remote_maps},
        )
