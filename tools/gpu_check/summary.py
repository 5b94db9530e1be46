"""The record as text, for somebody who looks once."""

from collections.abc import Iterator, Mapping
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
    elif isinstance(found, dict):
        plain = {key: value for key, value in found.items() if isinstance(value, (bool, int, float, str))}
        if plain:
            yield f"  {name}: {', '.join(f'{key} {value}' for key, value in plain.items())}"[:300]
        for key, value in found.items():
            if isinstance(value, dict) and "all_written_kept" in value:
                yield f"  {name}, {key}: {'all kept' if value['all_written_kept'] else 'LOST'}"
    elif isinstance(found, (bool, int, float)):
        yield f"  {name}: {found}"


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
    return f"  {row['name']}: {', '.join(parts)}"
