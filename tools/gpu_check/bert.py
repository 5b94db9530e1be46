"""BERT-Large with and without unified memory, each run in a process of its own, losses compared to the last bit."""

import json
import sys
from pathlib import Path
from typing import Any

from record import Check, StageError

_TRAIN = str(Path(__file__).with_name("train.py"))
GIB = 1 << 30

# Managed memory is never more than this, nor than what is free: more than a device holds could stall the machine. It is
# a budget, below what the model takes, that makes pages move.
MOST_MANAGED_BYTES = 8 * GIB
_SLACK = 1.25  # of what arenas hold beyond what vanilla torch holds

# Sizes of examples/bert_large.py, and what 2 x 128 takes with AdamW: 16 bytes a parameter and the activations.
_SIZES = (("large", 6.2 * GIB), ("base", 2.2 * GIB), ("small", 0.8 * GIB))
_ADVISED = {"parameter": "preferredlocation", "input": "readmostly", "intermediate": "prefetch"}


def bert(check: Check) -> Any:
    """Vanilla twice (does it repeat itself?), unified without advice, with the best, and with a budget of a third."""
    size = _size(check)
    base = _base_options(check, size)
    data: dict[str, Any] = {"size": size, "stand_in": "--stand-in" in base, "rows": {}}
    vanilla = _row(check, data, "vanilla", [*base, "--no-unified", "--device", "cpu" if check.dry_run else "cuda"])
    _row(check, data, "vanilla again", [*base, "--no-unified", "--device", "cpu" if check.dry_run else "cuda"])
    peak_bytes = vanilla["peak_bytes"]
    limit_bytes = min(MOST_MANAGED_BYTES, _free_bytes(check))
    if peak_bytes * _SLACK > limit_bytes:
        raise StageError(
            f"vanilla took {peak_bytes} bytes at its peak: too near the limit of {limit_bytes} bytes of managed memory",
            data,
        )
    unified = [*base, "--unified", "--device", "emulated" if check.dry_run else "cuda"]
    unified += ["--capacity", "2GiB"] if check.dry_run else []
    advised = [word for role, advice in _ADVISED.items() for word in (f"--{role}-advice", advice)]
    _row(check, data, "unified, no advice", unified)
    _row(check, data, "unified, best advice", [*unified, *advised])
    _row(check, data, "unified, best advice, a third", [*unified, *advised, "--budget", str(peak_bytes // 3)])
    return _compared(data)


def _free_bytes(check: Check) -> int:
    if "environment" not in check.found:
        raise StageError("the stage environment has not found a device, so what is free is not known")
    return int(check.found["environment"]["device"]["free_bytes"])


def _size(check: Check) -> str:
    """The largest model whose managed memory stays below the limits."""
    if check.dry_run:
        return "small"
    limit_bytes = min(MOST_MANAGED_BYTES, _free_bytes(check))
    for size, needs_bytes in _SIZES:
        if needs_bytes * _SLACK <= limit_bytes:
            return size
    raise StageError(f"only {limit_bytes} bytes of device memory are free")


def _base_options(check: Check, size: str) -> list[str]:
    packages = check.found.get("environment", {}).get("packages", {})
    has_bert = packages.get("transformers") is not None and packages.get("tokenizers") is not None
    options = [] if has_bert and not check.dry_run else ["--stand-in"]
    shape = (1, 16, 2) if check.dry_run else (2, 128, 5)
    for name, value in zip(("--batch-size", "--seq-length", "--steps"), shape, strict=True):
        options += [name, str(value)]
    return [*options, "--size", size]


def _row(check: Check, data: dict[str, Any], name: str, options: list[str]) -> dict[str, Any]:
    """One run of the example: what it wrote."""
    written = check.scratch / "row.json"
    written.unlink(missing_ok=True)
    try:
        check.run([sys.executable, _TRAIN, *options, "--json", str(written)])
    except StageError as error:
        raise StageError(f"{name}: {error}", data) from error
    row: dict[str, Any] = json.loads(written.read_text())
    data["rows"][name] = row
    return row


def _compared(data: dict[str, Any]) -> Any:
    rows: dict[str, Any] = data["rows"]
    losses = rows["vanilla"]["losses_hex"]
    data["vanilla_repeats"] = rows["vanilla again"]["losses_hex"] == losses
    differing = [name for name, row in rows.items() if row["losses_hex"] != losses]
    if differing:
        own = "" if data["vanilla_repeats"] else " (vanilla torch does not repeat itself either)"
        raise StageError(f"losses differ from vanilla in: {', '.join(differing)}{own}", data)
    most_bytes = max(row["peak_bytes"] for row in rows.values())
    if most_bytes > MOST_MANAGED_BYTES:
        raise StageError(f"{most_bytes} bytes were on the device: more than {MOST_MANAGED_BYTES}", data)
    return data
