"""Trying what was found: a tensor in unified memory, in a process of its own."""

import json
import subprocess
import sys
from typing import Any

from umadvise.doctor.records import Check, Fact
from umadvise.records.units import format_bytes

TIMEOUT_S = 120
_NAMES = {"emulated": "trial, emulated", "cuda": "trial, GPU"}


def run(kind: str) -> dict[str, Any]:
    """What the trial printed; `error` says why it failed."""
    command = [sys.executable, "-m", "umadvise.doctor.trial", kind]
    try:
        finished = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return {"error": f"it did not end within {TIMEOUT_S} s"}
    except OSError as error:
        return {"error": f"it cannot be started: {error}"}
    try:
        found: dict[str, Any] = json.loads(finished.stdout)
    except ValueError:
        last = (finished.stderr.strip().splitlines() or ["it said nothing"])[-1]
        how = f"signal {-finished.returncode}" if finished.returncode < 0 else f"status {finished.returncode}"
        return {"error": f"it ended with {how}: {last}"}
    return found


def check_trial(kind: str, found: dict[str, Any]) -> Check:
    """What a trial found, in words."""
    name = _NAMES[kind]
    if found["error"] is not None:
        remedy = "see the checks above; if they are all well, please report this with umadvise doctor --json"
        return Check(name, "missing", found["error"], remedy)
    if kind == "emulated":
        return Check(name, "ok", "a tensor lives in unified memory, with page faults")
    budget, unsampled = found["auto_budget_bytes"], found["unsampled"]
    facts: dict[str, Fact] = {"auto_budget_bytes": budget, "unsampled": unsampled, **found["features"]}
    said = "a tensor lives in unified memory"
    said += f'; budget="auto" is {format_bytes(budget)} now' if budget is not None else f"; {found['no_auto_budget']}"
    missing = sorted(reason for reason in found["functions"].values() if reason is not None)
    if missing:
        said += f"; the driver lacks {len(missing)} functions that umadvise does without: {missing[0]}"
    return Check(name, "ok", said, facts=facts)
