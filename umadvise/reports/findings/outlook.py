"""What a step would take after a change, as the simulator says, in the sentences that rules share."""

from math import sqrt

from umadvise.records.fault_profile import RungPrediction
from umadvise.records.units import format_bytes, format_duration_ns
from umadvise.reports.findings.facts import FAULT_THRESHOLD, HEADROOM, Facts, call, percent

_MOST_OF_IT = 0.5
"""Part of the waits that more memory must remove to be worth a line."""
_OPS_UNCERTAIN = 0.15
"""Part by which the time of ops is uncertain: with little room the guard and the driver run ops of their own."""
_WAITS_LESS = {"advise": 0.35, "window": 0.35, "swap": 0.45}
_WAITS_MORE = {"advise": 0.25, "window": 0.25, "swap": 0.15}
"""Parts by which what a step waits may be less and more than predicted, even where the simulator is right about this
run's steps. In virtual time it was at most that far off for seventeen programs on half of what they need, but where a
budget just does: where paging settles depends on what was where before, and a search finds better plans of swaps while
a run goes on than those that are made at once."""
_FAR = 1.5
"""A simulator that is wrong by so many times about the steps that there were knows too little of them."""
_COMPARED = ("advise", "window", "swap")
_RECOMPUTES = "swap+recompute"


def more_room(facts: Facts) -> str:
    """What makes everything fit, or makes up for it: a budget, less to hold, or another rung of the ladder."""
    if facts.need_bytes is None or facts.enough_bytes is None:
        return f"A larger budget has room for more, budget=... or --budget. {other_rungs(facts)}".rstrip()
    if facts.fits:
        return f"All that is live at once would fit: {call(facts, 'policy', 'resident')}."
    live, capacity_bytes = format_bytes(facts.need_bytes), facts.profile.environment.capacity_bytes
    if facts.enough_bytes <= capacity_bytes:
        room = call(facts, "budget", f"{facts.enough_bytes >> 20}MiB")
        fitting = predicted(facts, more_bytes=facts.missing_bytes)
        enough = f"Up to {live} are live at once, {format_bytes(facts.limit_bytes)} may be on the device"
        if fitting is None or _may_help(facts, fitting):
            with_it = "" if fitting is None or not _is_worth_it(facts, fitting) else f": {instead(facts, fitting)}"
            enough += f": {room} has room for all of it, with some to spare{with_it}"
        enough += "."
        return f"{enough} {other_rungs(facts)}".rstrip() if facts.profile.predictions else enough
    too_much = f"Up to {live} are live at once, too much for a device of {format_bytes(capacity_bytes)}{_less(facts)}"
    return f"{too_much} {other_rungs(facts)}".rstrip()


def _less(facts: Facts) -> str:
    """What makes less live at once, where that can be enough; a batch changes nothing about parameters."""
    memory = facts.profile.memory
    assert memory is not None
    assert facts.need_bytes is not None
    peaks = memory.requested_peak_by_role
    missing_bytes = facts.need_bytes - int(facts.limit_bytes * (1 - HEADROOM))
    if peaks.intermediate + peaks.input < missing_bytes:
        sizes = {"parameters": peaks.parameter, "gradients": peaks.gradient, "state": peaks.optimizer_state}
        *first, last = [word for word, size in sizes.items() if size] or ["what stays"]
        words = f"{', '.join(first)} and {last}" if first else last
        less = "an optimizer with less state (Adafactor, SGD)" if peaks.optimizer_state else "fewer of them"
        return (
            f": keep parameters in bfloat16, take {less}, or a device of at least "
            f"{format_bytes(facts.enough_bytes or facts.need_bytes)}. {words.capitalize()} alone take "
            f"{format_bytes(sum(sizes.values()))}, whatever the batch."
        )
    if peaks.gradient == 0:
        return ": a smaller batch makes it less."
    return ": a smaller batch or torch.utils.checkpoint.checkpoint makes it less."


def predicted(facts: Facts, more_bytes: int = 0, change: str | None = None) -> RungPrediction | None:
    """What was predicted of the rung that the run was on last."""
    asked = (facts.rung, more_bytes, change)
    found = (each for each in facts.profile.predictions if (each.rung, each.more_bytes, each.change) == asked)
    return next(found, None)


def other_rungs(facts: Facts) -> str:
    """What the simulator says would make the step shorter: another rung, or a part of the memory that it lacks.

    Nothing where it was asked and knows nothing.
    """
    here = [each for each in facts.profile.predictions if each.more_bytes == 0 and each.change is None]
    if not here:
        rungs = " or ".join(f'"{rung}"' for rung in _COMPARED if rung != facts.rung)
        return f"Whether policy={rungs} is faster say `umadvise run --record FILE` and `umadvise compare FILE`."
    now = predicted(facts)
    if now is None:
        return ""
    said = []
    fastest = min(here, key=lambda each: each.step_ns)
    if _is_worth_it(facts, fastest):
        said.append(f"{call(facts, 'policy', fastest.rung)}: {instead(facts, fastest)}.")
    more = [each for each in facts.profile.predictions if 0 < each.more_bytes < facts.missing_bytes]
    helps = [each for each in more if each.rung == facts.rung and _is_worth_it(facts, each)]
    enough = [each for each in helps if now.step_ns - each.step_ns >= _MOST_OF_IT * facts.waits.ns]
    if enough and facts.waits.ns:
        least = min(enough, key=lambda each: each.more_bytes)
        part = percent(min((now.step_ns - least.step_ns) / facts.waits.ns, 1.0))
        said.append(f"{format_bytes(least.more_bytes)} more removes {part} of the waits: {instead(facts, least)}.")
    return " ".join(said)


def _is_worth_it(facts: Facts, what: RungPrediction) -> bool:
    """Whether a step would be shorter: surely, or by the middle of what it may take, where the simulator knows enough.

    How wide that is says how sure a change is, not how much it is worth: what may save three quarters of a step, and
    may save nothing, is worth a line that says so.
    """
    now, usual_ns = predicted(facts), facts.waits.usual_ns
    if now is None or what.step_ns > now.step_ns * (1 - FAULT_THRESHOLD):
        return False
    least_ns, most_ns = bounds_ns(facts, what)
    if not usual_ns or most_ns < usual_ns:
        return True
    return _times_wrong(facts) < _FAR and sqrt(least_ns * most_ns) <= usual_ns * (1 - FAULT_THRESHOLD)


def _may_help(facts: Facts, what: RungPrediction) -> bool:
    """Whether a step may be shorter, for all that is known: the simulator says so, or is wrong about this run's."""
    now = predicted(facts)
    return now is None or what.step_ns <= now.step_ns * (1 - FAULT_THRESHOLD) or _times_wrong(facts) >= _FAR


def _times_wrong(facts: Facts) -> float:
    """How many times too much or too little the simulator says of the steps that there were; 1 where nobody knows."""
    now, waits = predicted(facts), facts.waits
    if now is None or not waits.usual_ns or waits.mostly_undriven:
        return 1.0
    said_ns = now.step_ns + waits.host_ns
    return max(said_ns / waits.usual_ns, waits.usual_ns / max(said_ns, 1))


def saved_ns(facts: Facts, change: str) -> int | None:
    """Nanoseconds of a step that a change of the program saves by simulation; None where it was not asked.

    0 where that is too little to be told from what is uncertain.
    """
    now, after = predicted(facts), predicted(facts, change=change)
    if now is None or after is None:
        return None
    return now.step_ns - after.step_ns if _is_worth_it(facts, after) else 0


def after(facts: Facts, change: str | None = None) -> str:
    """What a step would take after a change of the program, or as the rung's plan has it.

    Nothing where the simulator was not asked.
    """
    found = predicted(facts, change=change)
    return "" if found is None else f": {instead(facts, found)}"


def promised(facts: Facts, more_bytes: int | None = None, change: str | None = None) -> dict[str, int]:
    """What a step would take after what a finding names first, for its evidence; empty where nobody was asked.

    Also where more memory is asked for that nothing lacks, or that does not help.
    """
    found = predicted(facts, more_bytes or 0, change)
    if found is None or more_bytes == 0 or (more_bytes and not _is_worth_it(facts, found)):
        return {}
    least_ns, most_ns = bounds_ns(facts, found)
    return {"promised_least_ns": least_ns, "promised_most_ns": most_ns}


def bounds_ns(facts: Facts, what: RungPrediction) -> tuple[int, int]:
    """The least and the most that a step would take.

    What the script takes between ops is added, as no simulator knows of it. What is uncertain about ops and waits is
    less and more than that, and so is as many times as much as the simulator is wrong about the steps that there were.
    It speaks of one step, so that both are wider where steps differ. Neither is less than what the ops of a step take.
    """
    waits, wrong = facts.waits, _times_wrong(facts)
    computes_ns = _computes_ns(facts, what)
    ops_ns = min(what.step_ns, waits.ops_ns)
    waited_ns, ops_ns = what.step_ns - ops_ns, ops_ns + waits.host_ns
    less, more = (parts.get(what.rung, max(parts.values())) for parts in (_WAITS_LESS, _WAITS_MORE))
    least_ns = ops_ns * (1 - _OPS_UNCERTAIN) + waited_ns * (1 - less)
    most_ns = ops_ns * (1 + _OPS_UNCERTAIN) + waited_ns * (1 + more)
    step_ns = ops_ns + waited_ns
    spread = 1.0 if waits.mostly_undriven else waits.spread  # steps that plans drive are alike
    least_ns, most_ns = min(least_ns, step_ns / wrong) / spread, max(most_ns, step_ns * wrong) * spread
    return max(round(least_ns), computes_ns), max(round(most_ns), computes_ns)


def _computes_ns(facts: Facts, what: RungPrediction) -> int:
    """For how long ops run in a step at least; where the change takes ops away, as far as the simulator knows."""
    takes_ops_away = what.change is not None or (facts.rung == _RECOMPUTES and what.rung != _RECOMPUTES)
    return min(what.step_ns, facts.waits.ops_ns) if takes_ops_away else facts.waits.ops_ns


def instead(facts: Facts, what: RungPrediction) -> str:
    """What a step would take, and what it takes: "5.00 s to 6.00 s a step by simulation, instead of 9.00 s"."""
    now = predicted(facts)
    measured_ns = facts.waits.usual_ns or (now.step_ns if now is not None else 0)
    least, most = map(format_duration_ns, bounds_ns(facts, what))
    return f"{least} to {most} a step by simulation, instead of {format_duration_ns(measured_ns)}"
