"""Running stages under time limits, and the file that they leave behind."""

import datetime
import json
import math
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = "umadvise.gpu_check/2"
MOST_MANAGED_BYTES = 8 << 30
TOTAL_S = 530.0  # nine minutes less what it takes to end
_OUTPUT_CHARACTERS = 8000
_DRY_PATIENCE = 4.0


class StageError(Exception):
    """A stage did not pass; the message says why. What it found until then is in `data`."""

    def __init__(self, reason: str, data: Any = None) -> None:
        super().__init__(reason)
        self.data = data


@dataclass
class Check:
    """What the stages share.

    Attributes:
        checkout: the source tree.
        build_directory: of the native core.
        scratch: for files that nobody needs afterwards.
        dry_run: the emulated device stands in for the GPU.
        most_managed_bytes: managed memory is never more than this, nor than what is free: more than a device holds
            could stall the machine. It is a budget, below what a network takes, that makes pages move.
        found: the data of the stages that ran before, by name.
        output: of the commands of the running stage.
    """

    checkout: Path
    build_directory: Path
    scratch: Path
    dry_run: bool
    most_managed_bytes: int = MOST_MANAGED_BYTES
    found: dict[str, Any] = field(default_factory=dict)
    output: list[str] = field(default_factory=list)
    stage_ends_s: float = 0.0

    def environment(self) -> dict[str, str]:
        """Of the commands: this checkout's Python, and the core that the build stage has built."""
        variables = {**os.environ, "PYTHONUNBUFFERED": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(self.checkout), os.environ.get("PYTHONPATH")]))
        if (library := self.found.get("build", {}).get("library")) is not None:
            variables["UMADVISE_LIBRARY"] = library
        return variables

    @property
    def patience(self) -> float:
        """By which every limit of time is longer: a dry run may share a busy machine, and nobody pays for it."""
        return _DRY_PATIENCE if self.dry_run else 1.0

    def managed_limit_bytes(self) -> int:
        """Most that may be in managed memory.

        Raises:
            StageError: nobody knows what is free.
        """
        if self.found.get("environment") is None:
            raise StageError("the stage environment has not found a device, so what is free is not known")
        return min(self.most_managed_bytes, int(self.found["environment"]["device"]["free_bytes"]))

    def run(self, words: list[str], *, must_succeed: bool = True, within_s: float = math.inf) -> str:
        """Runs a command until the stage's time is up, or its own, and returns its stdout.

        Raises:
            StageError: it cannot be started, is stopped, or (where it must succeed) ends with another status than 0.
        """
        self.output.append("$ " + " ".join(words))
        try:
            process = subprocess.Popen(
                words,
                cwd=self.checkout,
                env=self.environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,  # so that what it starts ends with it
            )
        except OSError as error:
            raise StageError(f"{words[0]} cannot be started: {error}") from error
        try:
            left_s = min(within_s, self.stage_ends_s - time.monotonic())
            out, err = process.communicate(timeout=max(0.1, left_s))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            self.output += [out, err]
            raise StageError("stopped: its time was up") from None
        self.output += [out, err]
        if must_succeed and process.returncode != 0:
            last = next((line for line in reversed(err.splitlines()) if line.strip()), "no message")
            raise StageError(f"{' '.join(words[:3])} ... ended with status {process.returncode}: {last}")
        return out


@dataclass(frozen=True)
class Stage:
    """One stage.

    Attributes:
        limit_s: how long it may take.
        work: what it does with the check.
        reserved_s: that the stages before it leave it in any case.
        asked_for: it runs on a GPU only where it is asked for by name.
    """

    limit_s: float
    work: Callable[[Check], Any]
    reserved_s: float = 0.0
    asked_for: bool = False


def run_stages(check: Check, stages: Mapping[str, Stage], path_of: Callable[[str], Path]) -> tuple[Path, bool]:
    """Runs the stages in order; returns where the file lies, and whether all passed."""
    started = time.monotonic()
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "date": datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds"),
        "dry_run": check.dry_run,
        "host": {"machine": platform.machine(), "kernel": platform.release(), "cpu_count": os.cpu_count()},
        "stages": [],
    }
    path = path_of("unknown-device")
    total_s = TOTAL_S * check.patience
    reserved_s = sum(stage.reserved_s for stage in stages.values()) * check.patience
    for name, stage in stages.items():
        reserved_s -= stage.reserved_s * check.patience
        limit_s = min(stage.limit_s * check.patience, started + total_s - time.monotonic() - reserved_s)
        print(f"gpu_check: {name} (at most {limit_s:.0f} s)", file=sys.stderr, flush=True)
        entry = _run_stage(check, name, stage, limit_s)
        record["stages"].append(entry)
        outcome = "passed" if entry["passed"] else f"FAILED: {entry['reason']}"
        print(f"gpu_check: {name} {outcome} ({entry['seconds']} s)", file=sys.stderr, flush=True)
        if name == "environment" and entry["passed"]:
            path = path_of(entry["data"]["device"]["name"])
        write(record, path)
    return path, all(entry["passed"] for entry in record["stages"])


def _run_stage(check: Check, name: str, stage: Stage, limit_s: float) -> dict[str, Any]:
    started = time.monotonic()
    check.stage_ends_s = started + limit_s
    check.output = []
    reason, data = None, None
    try:
        if limit_s <= 0:
            raise StageError("not started: no time was left")
        data = check.found[name] = stage.work(check)
    except StageError as error:
        reason, data = str(error), error.data
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    return {
        "name": name,
        "passed": reason is None,
        "reason": reason,
        "seconds": round(time.monotonic() - started, 1),
        "data": data,
        "output": "\n".join(filter(None, check.output))[-_OUTPUT_CHARACTERS:],
    }


def write(record: dict[str, Any], path: Path) -> None:
    """Writes the record in one step: a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(record, indent=1) + "\n")
    part.replace(path)


def slug(text: str) -> str:
    """A name as part of a file's: "NVIDIA H200" is "nvidia-h200"."""
    return "-".join("".join(letter if letter.isalnum() else " " for letter in text.lower()).split())
