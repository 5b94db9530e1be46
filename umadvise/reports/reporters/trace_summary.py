"""A trace on one screen."""

from collections import Counter

import numpy as np

from umadvise.records.enums import Phase, Role
from umadvise.records.trace import UNKNOWN, Trace
from umadvise.records.units import format_bytes


def render(trace: Trace) -> str:
    """What a trace is of, how much memory it needs and when, and what it computes."""
    storages, ops = trace.storages, trace.ops
    parameters = storages.role == Role.PARAMETER
    lines = [
        _line("workload", trace.workload or "(no name)"),
        _line("recorded", f"{trace.source}, for {trace.device or trace.target}, torch {trace.torch_version or '-'}"),
        _line("ops", f"{len(ops):,} ({_phases(trace)})"),
        _line("storages", f"{len(storages):,}"),
        _line("parameters", f"{format_bytes(int(storages.bytes[parameters].sum()))} in {int(parameters.sum()):,}"),
        _line("peak", _peak(trace)),
        _line("working set", _largest_working_set(trace)),
        _line("arithmetic", _flops(trace)),
        _line("compute time", _duration(trace)),
    ]
    return "".join(lines)


def _line(label: str, text: str) -> str:
    return f"{label:<14}{text}\n"


def _phases(trace: Trace) -> str:
    counted = Counter(trace.ops.phase.tolist())
    return ", ".join(f"{counted[phase]:,} {Phase(phase).name.lower()}" for phase in sorted(counted))


def _peak(trace: Trace) -> str:
    if not len(trace.events):
        return format_bytes(0)
    at = int(trace.live_bytes.argmax())
    op = int(trace.events.op[at])
    where = f"at op {op}, {trace.op(op).name}" if op >= 0 else "before the first op"
    return f"{format_bytes(trace.peak_bytes)} {where}"


def _largest_working_set(trace: Trace) -> str:
    if not len(trace.ops):
        return format_bytes(0)
    sizes = trace.working_set_bytes()
    op = trace.op(int(sizes.argmax()))
    module = f" of {op.module}" if op.module else ""
    return f"at most {format_bytes(int(sizes.max()))}, op {op.index}: {op.name}{module}"


def _flops(trace: Trace) -> str:
    known = trace.ops.flops != UNKNOWN
    missing = int((~known).sum())
    total = int(trace.ops.flops[known].sum())
    scale, unit = next(
        (each for each in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")) if total >= each[0]), (1, "")
    )
    return f"{total / scale:.4g} {unit}FLOP; no formula for {missing:,} ops"


def _duration(trace: Trace) -> str:
    unknown = int(np.count_nonzero(trace.ops.duration_ns == UNKNOWN))
    if unknown and unknown == len(trace.ops):
        return "unknown: no device was named"
    rest = f", without {unknown:,} ops of unknown duration" if unknown else ""
    how = "measured" if trace.source == "live" else f"by the roofline of {trace.device}"
    return f"{trace.duration_ns / 1e6:,.1f} ms, {how}{rest}"
