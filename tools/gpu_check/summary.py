"""The record as text, for somebody who looks once."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_MS = 1e6


def lines(record: Mapping[str, Any]) -> Iterator[str]:
    """A line for each stage, and below it what is most asked for."""
    kind = "dry run, " if record["dry_run"] else ""
    yield f"gpu_check: {kind}{record['date']}, {record['host']['cpu_count']} cores, kernel {record['host']['kernel']}"
    for stage in record["stages"]:
        outcome = "passed" if stage["passed"] else f"FAILED: {stage['reason']}"
        yield f"{stage['name']} ({stage['seconds']} s): {outcome}"
        data = stage["data"]
        if isinstance(data, dict) and "rows" in data:
            yield from map(_row, data["rows"])
            yield from verdicts(data["rows"])
        elif isinstance(data, dict):
            for name, found in data.items():
                yield from _found(name, found)


def _found(name: str, found: Any) -> Iterator[str]:
    """Of a part what fits in a line."""
    if isinstance(found, dict) and (why := found.get("crashed") or found.get("reason")):
        yield f"  {name}: {why}"
    elif isinstance(found, dict) and "calls" in found and isinstance(found["calls"], dict):
        waits = [call for call, row in found["calls"].items() if row.get("kernel_still_ran") is False]
        yield f"  {name}: wait for a kernel of another stream: {', '.join(waits) or 'none'}"
    elif isinstance(found, dict) and "beside" in found:
        yield f"  {name}: {_launches(found['beside'])}"
    elif isinstance(found, dict):
        plain = {key: value for key, value in found.items() if isinstance(value, (bool, int, float, str))}
        if plain:
            yield f"  {name}: {', '.join(f'{key} {value}' for key, value in plain.items())}"[:300]
        for key, value in found.items():
            if isinstance(value, dict) and "all_written_kept" in value:
                yield f"  {name}, {key}: {'all kept' if value['all_written_kept'] else 'LOST'}"
    elif isinstance(found, (bool, int, float)):
        yield f"  {name}: {found}"


def _launches(rows: Mapping[str, Any]) -> str:
    """Microseconds of the longest launch, and until its kernel was done, beside calls that a kernel runs beside."""
    longest = {name: row["kernel"] for name, row in rows.items() if row.get("kernel", {}).get("launches")}
    ends = {name: (row["longest_launch_ns"] / 1e3, row["longest_done_ns"] / 1e3) for name, row in longest.items()}
    each = [f"{name} {launched:.0f} / {done:.0f}" for name, (launched, done) in ends.items()]
    return f"longest launch / kernel beside calls, in us: {', '.join(each)}"


def _row(row: Mapping[str, Any]) -> str:
    if row["outcome"] != "ran":
        return f"  {row['name']}: {row['outcome']}: {row['reason']}"
    busy = row.get("busy") or {}
    gpu_ns = busy.get("gpu_ns")
    parts = [
        f"step {row['step_ns'] / _MS:.1f} ms",
        f"launched in {row['launch_ns'] / _MS:.1f} ms",
        "GPU busy unknown" if gpu_ns is None else f"GPU busy {gpu_ns / _MS:.1f} ms",
        f"peak {(row.get('peak_bytes') or 0) / 2**30:.2f} GiB",
        {True: "same losses", False: "OTHER LOSSES", None: "losses not compared"}[row.get("same_losses")],
    ]
    return f"  {row['name']}: {', '.join([*parts, *_promised(row)])}"


def _promised(row: Mapping[str, Any]) -> Iterator[str]:
    """What the plan promised, what it and the step copied, and whether the recorded ops are as long as the kernels."""
    if (predicted_ns := row.get("predicted_step_ns")) is not None:
        yield f"predicted {predicted_ns / _MS:.1f} ms"
    if (planned := row.get("planned_bytes")) is not None:
        copied = row["swaps"]
        words = f"planned {planned['in'] / 1e9:.1f} + {planned['out'] / 1e9:.1f} GB in + out"
        yield f"{words} of {copied['swap_in_bytes'] / 1e9:.1f} + {copied['swap_out_bytes'] / 1e9:.1f} copied"
    if (recorded_ns := row.get("recorded_ops_ns")) is not None:
        yield f"recorded ops {recorded_ns / _MS:.1f} ms"


# ---- who wins -------------------------------------------------------------------------------------------------------


def verdicts(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """For each budget the two fastest ways that kept it, and where their time went.

    Other people's ways know no budget: they keep those that their peak is below.
    """
    ran = [row for row in rows if row["outcome"] == "ran"]
    budgets = {row["budget_bytes"]: _budget(row) for row in ran if row.get("budget_bytes") is not None}
    for budget_bytes, name in sorted(budgets.items(), reverse=True):
        kept = [row for row in ran if row.get("budget_bytes") == budget_bytes or _fits(row, budget_bytes)]
        first, *others = sorted(kept, key=lambda row: row["step_ns"])
        line = f"  at {name} ({budget_bytes / 2**30:.2f} GiB) {first['name']} wins: {_time(first)}"
        yield line + (f"; next {others[0]['name']}: {_time(others[0])}" if others else "; nothing else kept it")


def _budget(row: Mapping[str, Any]) -> str:
    """What a row's budget is."""
    percent = row.get("budget_percent")
    return f"the peak of {row['budget_of']}" if percent is None else f"{percent:g} %"


def _fits(row: Mapping[str, Any], budget_bytes: int) -> bool:
    known = row["way"] is not None and row["way"] != "vanilla again" and row.get("peak_bytes") is not None
    return known and row["peak_bytes"] <= budget_bytes


def _time(row: Mapping[str, Any]) -> str:
    busy, step_ns = row.get("busy") or {}, row["step_ns"]
    parts = [f"{step_ns / _MS:.1f} ms"]
    for what, spent_ns in (
        ("kernels", busy.get("gpu_ns")),
        ("copies", busy.get("copies_ns")),
        ("host", row.get("host_busy_ns")),
    ):
        if spent_ns is not None:
            parts.append(f"{what} {spent_ns / step_ns:.0%}")
    if swaps := row.get("swaps"):
        parts.append(f"waits {swaps['wait_copy_ns'] / _MS:.1f} + {swaps['wait_room_ns'] / _MS:.1f} ms")
    if calls := row.get("driver_calls"):
        made, total_ns = (sum(each.get(what, 0) for each in calls.values()) for what in ("calls", "ns"))
        maps = calls.get("cuMemMap", {}).get("calls", 0)
        parts.append(f"{made:.0f} driver calls in {total_ns / _MS:.1f} ms, {maps:.0f} map")
    if row.get("followed_steps") == 0:
        parts.append("NO PLAN FOLLOWED")
    return ", ".join(parts)
