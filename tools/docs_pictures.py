"""The pictures of the docs, one for each concept, of what the product itself says about small networks.

    python tools/docs_pictures.py          # writes docs/pictures
    python tools/docs_pictures.py FOLDER   # writes them there

Where they show time it is virtual, and plans are those that are made at once: so a picture is the same in each run. The
picture of budgets on the first page is not among them; its command is in docs/tutorials/which-card.md.
"""

import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path

os.environ["UMADVISE_PLAN_SEARCH"] = "off"
import torch
from harness import EXAMPLES  # isort: split  # no plans are kept from here on
from networks import NETWORKS

import umadvise
from umadvise import planners
from umadvise.devices.catalogue import load_device
from umadvise.devices.rungs import ADVISE, RESIDENT, SWAP, WINDOW
from umadvise.recording.dry.recorder import record
from umadvise.recording.workload import Workload
from umadvise.records.counters import PHASES, ROLES
from umadvise.records.fault_profile import FaultProfile
from umadvise.records.step_picture import StepPicture
from umadvise.records.timeline import Span, SpanKind, Timeline, Track
from umadvise.records.trace import Trace
from umadvise.reports.counters.step_picture import KnownStep, SeenStep, pictured
from umadvise.reports.reporters import svg
from umadvise.simulator import SwapSimulation, UnifiedMemory, simulate_swap
from umadvise.simulator.unified_memory import TouchOrder
from umadvise.training.plans.device import PlanningDevice
from umadvise.training.plans.fit import Batches, Fitting

FOLDER = EXAMPLES.parent / "docs" / "pictures"
CARD = "v100-16gb"
_MIB = 1 << 20
_BLOCK_BYTES = 2 << 20
_MOST_POINTS = 120
"""Of a line: of each part of the time the most is drawn."""
_FEW = 13
"""Ops that the picture of the guard shows."""
Points = list[tuple[float, float]]


def _gpt2(batch: int = 8) -> Workload:
    return NETWORKS["gpt2"](batch, length=512, layers=3, width=1024, heads=16, vocabulary=8000)


@cache
def _step() -> Trace:
    return record(_gpt2, device=CARD)


# ---- unified memory ------------------------------------------------------------------------------------------------


def pages() -> str:
    """What moves when a GPU touches one block of 2 MiB that is on the host."""
    lanes, words = [], []
    ways: tuple[tuple[str, bool, TouchOrder], ...] = (
        ("in order", False, "serial"),
        ("at random", False, "random"),
        ("prefetched", True, "serial"),
    )
    for name, prefetches, order in ways:
        memory = UnifiedMemory(CARD)
        block = memory.allocate(_BLOCK_BYTES)
        memory.touch(block, 0, block.bytes, processor="cpu", write=True)
        seen, begun_ns = len(memory.records()), memory.time_ns
        if prefetches:
            memory.prefetch(block)
        memory.touch(block, 0, block.bytes, order=order)
        records = memory.records()[seen:]
        faults = [each for each in records if each.kind == "fault_group"]
        copies = [each for each in records if each.kind == "transfer"]
        counts = f"fault services: {len(faults)}", f"copies: {len(copies)}"
        for count, found, style in zip(counts, (faults, copies), (1, 0), strict=True):
            spans = [
                ((each.start_ns - begun_ns) / 1e3, (each.end_ns - begun_ns) / 1e3, str(each.bytes >> 10 or ""))
                for each in found
            ]
            lanes.append(svg.Lane(f"{name}, {count}", spans, style))
        words.append(f"{name} it takes {(memory.time_ns - begun_ns) / 1e3:.0f} us ({', '.join(counts)})")
    panel = svg.Panel(
        "A block of 2 MiB comes from the host: what the driver does, and the KiB of each copy",
        "microseconds",
        "",
        (),
        lanes=lanes,
    )
    return svg.render([panel], f"Touched {'; '.join(words)}.")


# ---- a step, and plans for it --------------------------------------------------------------------------------------


def roles() -> str:
    """Bytes of all tensors over a step, by role."""
    trace = _step()
    length_ns = int(trace.ops.duration_ns.sum())
    picture = pictured(SeenStep(1, 0, length_ns), KnownStep(trace))
    stacked, series = [0] * len(picture.times_ns), []
    for style, role in enumerate(ROLES):
        if not any(picture.live_bytes[role]):
            continue
        stacked = [below + own for below, own in zip(stacked, picture.live_bytes[role], strict=True)]
        points = _thinned([(at / 1e6, size / _MIB) for at, size in zip(picture.times_ns, stacked, strict=True)])
        series.append(svg.Series(role.replace("_", " "), points, style, steps=True, filled=True))
    panel = svg.Panel(
        "One step of GPT-2 with three layers: what lives when, by role",
        "milliseconds",
        "MiB",
        series[::-1],
        lanes=_phases(picture),
    )
    peak = max(stacked) / _MIB
    return svg.render(
        [panel],
        f"Parameters and optimizer state live all the time, intermediates grow in forward and shrink in backward while "
        f"gradients grow. At most {peak:.0f} MiB live at once.",
    )


def _phases(picture: StepPicture) -> list[svg.Lane]:
    lanes = []
    for style, phase in enumerate(("forward", "backward", "optimizer")):
        spans = [(op.start_ns / 1e6, (op.start_ns + op.duration_ns) / 1e6) for op in picture.ops if op.phase == phase]
        lanes.append(svg.Lane(phase, [(*span, "") for span in _joined(spans)], style))
    return lanes


def plan() -> str:
    """Memory over a step within half of what it needs, and the copies that make that possible."""
    trace = _step()
    budget_bytes = trace.peak_bytes // 2
    made = planners.run("best", trace, load_device(CARD), budget_bytes, trials=0, recompute=False, paging=False)
    free = simulate_swap(trace, CARD, None, budget_bytes=4 * trace.peak_bytes)
    planned = simulate_swap(trace, CARD, made)
    timeline = _last(planned)
    lanes = [
        _lane(timeline, "copies to the device", 0, Track.H2D),
        _lane(timeline, "copies to the host", 1, Track.D2H),
        _lane(timeline, "ops wait", 3, Track.COMPUTE, SpanKind.WAIT_COPY, SpanKind.WAIT_ROOM),
    ]
    panel = svg.Panel(
        "The same step in half of the memory, by a plan",
        "milliseconds",
        "on the device, MiB",
        [_memory("without a limit", free, 6), _memory("with the plan", planned, 0)],
        limit=(budget_bytes / _MIB, "budget"),
        lanes=lanes,
    )
    return svg.render(
        [panel],
        f"Without a limit the step needs {trace.peak_bytes / _MIB:.0f} MiB and {free.step_ns / 1e6:.1f} ms. The plan "
        f"keeps {budget_bytes / _MIB:.0f} MiB: tensors are copied to the host while ops that do not need them run, and "
        f"come back before they are used. So the step takes {planned.step_ns / 1e6:.1f} ms.",
    )


def recompute() -> str:
    """Memory over a step with some ops run again in backward."""
    trace = _step()
    device = load_device(CARD)
    made = planners.run("sqrt-recompute", trace, device, trace.peak_bytes * 3 // 4)
    free, planned = (
        simulate_swap(trace, CARD, None, budget_bytes=4 * trace.peak_bytes),
        simulate_swap(trace, CARD, made),
    )
    panel = svg.Panel(
        "The same step, with ops that run again",
        "milliseconds",
        "on the device, MiB",
        [_memory("all is kept", free, 6), _memory("some is made again", planned, 2)],
        lanes=[_lane(_last(planned), "ops that run again", 2, Track.COMPUTE, SpanKind.RECOMPUTE)],
    )
    most = [int(each.live_bytes.max()) / _MIB for each in (free, planned)]
    return svg.render(
        [panel],
        "Results of forward are thrown away and made again in backward, without a copy: at most "
        f"{most[1]:.0f} MiB in place of {most[0]:.0f}, in {planned.step_ns / 1e6:.1f} ms in place of "
        f"{free.step_ns / 1e6:.1f}.",
    )


def _memory(name: str, simulation: SwapSimulation, style: int) -> svg.Series:
    starts, sizes = simulation.op_starts_ns().tolist(), simulation.live_bytes.tolist()
    points = [(at / 1e6, size / _MIB) for at, size in zip(starts, sizes, strict=True)]
    return svg.Series(name, _thinned([*points, (simulation.step_ns / 1e6, points[-1][1])]), style, steps=True)


def _last(simulation: SwapSimulation) -> Timeline:
    assert simulation.timeline is not None
    return simulation.timeline


def _lane(timeline: Timeline, name: str, style: int, track: Track, *kinds: SpanKind) -> svg.Lane:
    computed = [span for span in timeline if span.track == Track.COMPUTE]
    begun_ns = min(span.start_ns for span in computed)
    most = (max(span.start_ns + span.duration_ns for span in computed) - begun_ns) / 1e6
    spans = sorted(
        ((span.start_ns - begun_ns) / 1e6, (span.start_ns + span.duration_ns - begun_ns) / 1e6)
        for span in timeline
        if span.track == track and (not kinds or span.kind in kinds)
    )
    return svg.Lane(
        name,
        [(max(begin, 0.0), min(end, most), "") for begin, end in _joined(spans) if end > 0 and begin < most],
        style,
    )


def _joined(spans: Sequence[tuple[float, float]]) -> Points:
    """Spans with hardly anything between them are one."""
    joined: Points = []
    least = max((end for _, end in spans), default=0.0) / 600
    for begin, end in spans:
        if joined and begin - joined[-1][1] < least:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return joined


def _thinned(points: Points) -> Points:
    """Of each of so many equal parts of the time the highest point."""
    end = points[-1][0] or 1.0
    parts = groupby(points, key=lambda point: min(int(point[0] / end * _MOST_POINTS), _MOST_POINTS - 1))
    return [*(max(part, key=lambda point: point[1]) for _, part in parts), points[-1]]


# ---- the ladder ----------------------------------------------------------------------------------------------------


def ladder() -> str:
    """The step on each rung, in less and less memory."""
    profile = load_device(CARD)
    peak_bytes = _step().peak_bytes
    rungs = (RESIDENT.name, ADVISE.name, WINDOW.name, SWAP.name)
    lines: dict[str, Points] = {rung: [] for rung in rungs}
    for percent in (140, 120, 100, 80, 60):
        fitting = Fitting(_gpt2, PlanningDevice(profile, "", True), peak_bytes * percent // 100, rungs)
        for fit in fitting.report(Batches((8,))).batches[0].rungs:
            if fit.times_unlimited is not None:
                lines[fit.rung].append((float(percent), fit.times_unlimited))
    series = [
        svg.Series(rung, lines[rung][::-1], style, marks=True) for style, rung in reversed(list(enumerate(rungs)))
    ]
    panel = svg.Panel(
        "The rungs of the ladder, for GPT-2 with three layers",
        "memory, percent of what the step needs",
        "times the step without a limit",
        series,
        x_least=60,
    )
    (least_percent, _), *_ = lines[ADVISE.name][::-1]
    return svg.render(
        [panel],
        f"In {least_percent:.0f} percent of the memory that it needs, a step of GPT-2 with three layers takes "
        + ", ".join(f"{lines[rung][-1][1]:.1f} times as long on {rung}" for rung in rungs[1:])
        + f". On resident it runs from {lines[RESIDENT.name][-1][0]:.0f} percent on.",
    )


# ---- ops and steps -------------------------------------------------------------------------------------------------


def guard() -> str:
    """What lies before and after a few ops: without a plan, and with one."""
    trace = _step()
    budget_bytes = trace.peak_bytes * 6 // 10
    made = planners.run("best", trace, load_device(CARD), budget_bytes, trials=0, recompute=False, paging=False)
    alone = simulate_swap(trace, CARD, None, budget_bytes=budget_bytes, eviction="lru")
    planned = simulate_swap(trace, CARD, made)
    waiting = {span.op for span in _last(alone) if span.kind == SpanKind.WAIT_COPY}
    first = max(range(len(trace.ops) - _FEW), key=lambda op: len(waiting.intersection(range(op, op + _FEW))))
    ops = range(first, first + _FEW)
    lanes = [*_around(trace, _last(alone), ops, "guard alone"), *_around(trace, _last(planned), ops, "with a plan")]
    panel = svg.Panel(
        f"{_FEW} ops of {PHASES[trace.ops.phase[first]]}, in the guard alone and with a plan",
        "milliseconds",
        "",
        (),
        lanes=lanes,
    )
    return svg.render(
        [panel],
        f"Of {_FEW} ops in a row {len(waiting.intersection(ops))} wait, without a plan, until the guard has copied "
        "what they need; none begins before. With a plan it was copied while earlier ops ran, and what is copied "
        "meanwhile is for later ones.",
    )


def _around(trace: Trace, timeline: Timeline, ops: range, name: str) -> list[svg.Lane]:
    """Lanes of what happened from the first of these ops, with what it waits for, to the end of the last one."""
    of_ops = [span for span in timeline if span.op in ops and span.track == Track.COMPUTE]
    begun_ns, ended_ns = of_ops[0].start_ns, of_ops[-1].start_ns + of_ops[-1].duration_ns

    def drawn(span: Span) -> tuple[float, float, str]:
        op = "" if span.kind != SpanKind.OP or span.op is None else trace.strings[trace.ops.name[span.op]]
        ends = span.start_ns, span.start_ns + span.duration_ns
        begin_ms, end_ms = ((min(max(at_ns, begun_ns), ended_ns) - begun_ns) / 1e6 for at_ns in ends)
        return begin_ms, end_ms, op.removeprefix("aten::")

    return [
        svg.Lane(
            f"{name}: {what}",
            [
                drawn(span)
                for span in timeline
                if span.track == track
                and span.kind in kinds
                and span.start_ns < ended_ns
                and span.start_ns + span.duration_ns > begun_ns
            ],
            style,
        )
        for what, style, track, kinds in (
            ("ops", 2, Track.COMPUTE, (SpanKind.OP,)),
            ("waits", 3, Track.COMPUTE, (SpanKind.WAIT_COPY, SpanKind.WAIT_ROOM)),
            ("copies in", 0, Track.H2D, (SpanKind.COPY,)),
        )
    ]


def auto() -> str:
    """The first steps of sessions in virtual time, with `policy="auto"` and on two rungs alone."""
    policies = (ADVISE.name, SWAP.name, "auto")
    profiles = {policy: _trained(policy) for policy in policies}
    series = [
        svg.Series(
            policy, [(float(step.index), step.duration_ns / 1e6) for step in profiles[policy].steps], style, marks=True
        )
        for policy, style in zip(policies, (1, 3, 6), strict=True)
    ]
    changes = profiles["auto"].rungs
    ends = [*(change.step for change in changes[1:]), profiles["auto"].step_count + 1]
    spans = [(change.step - 0.5, end - 0.5, change.rung) for change, end in zip(changes, ends, strict=True)]
    panel = svg.Panel(
        "The first steps of a small network in a third of its memory",
        "step",
        "milliseconds",
        series,
        lanes=[svg.Lane("rung of auto", spans, 2)],
    )
    return svg.render(
        [panel], "; ".join(f"from step {each.step} on {each.rung}: {each.reason}" for each in changes) + "."
    )


def _trained(policy: str) -> FaultProfile:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(16)))
    optimizer = torch.optim.Adam(model.parameters())
    device = umadvise.EmulatedDevice("24MiB", clock=CARD)
    with umadvise.session(model, optimizer, device=device, policy=policy) as um:
        for _ in range(8):
            with um.step():
                model(torch.ones(256, 512)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        return um.profile()


PICTURES: dict[str, Callable[[], str]] = {
    "pages": pages,
    "roles": roles,
    "plan": plan,
    "recompute": recompute,
    "ladder": ladder,
    "guard": guard,
    "auto": auto,
}


def main(words: Sequence[str]) -> int:
    """Writes all pictures."""
    folder = Path(words[0]) if words else FOLDER
    for name, draw in PICTURES.items():
        (folder / f"{name}.svg").write_text(draw())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
