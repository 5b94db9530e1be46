"""Programs in processes of their own: as they are, and under a policy of umadvise."""

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import warm_processes

from umadvise._hooks.loader import compiled_library
from umadvise._native.library import library_path
from umadvise.records.counters import Counters, Swaps
from umadvise.records.fault_profile import FaultProfile, decode

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
PYTHON = ROOT / ".venv-programs" / "bin" / "python"
"""It has the libraries and the same torch; this package, and what was compiled for it, are ours."""
LIMIT_S = 1200
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",  # two run side by side
    "PYTHONHASHSEED": "0",
    "PYTHONPATH": os.pathsep.join(map(str, (FOLDER, ROOT))),
    "UMADVISE_HOOKS_LIBRARY": str(compiled_library()),
    "UMADVISE_LIBRARY": str(library_path()),
    "UMADVISE_PLAN_CACHE": "off",
    "UMADVISE_PLAN_SEARCH": "off",
}


@dataclass(frozen=True)
class Program:
    """A file of this folder and its arguments.

    Attributes:
        session: it opens a session itself; else `umadvise run` runs it unchanged.
    """

    file: str
    words: tuple[str, ...] = ()
    session: bool = False


@dataclass(frozen=True)
class Run:
    """What a process did.

    Attributes:
        code: it exited with.
        told: names and values, in order (see telling.py).
        seconds: between the first of them and the last.
        profile: None of plain PyTorch, and where nobody could write one.
        errors: the end of what it wrote to stderr.
    """

    code: int
    told: list[tuple[str, str]]
    seconds: float
    profile: FaultProfile | None
    errors: str

    @property
    def needed_bytes(self) -> int:
        """The most that tensors took at once."""
        assert self.profile is not None
        assert self.profile.memory is not None
        return self.profile.memory.requested_peak_bytes

    @property
    def moved_bytes(self) -> int:
        """Between device and host, by pages and by swaps, within steps and without."""
        if self.profile is None:
            return 0
        paged = sum(_paged(each) for each in (self.profile.counters, self.profile.outside) if each is not None)
        return paged + sum(
            _swapped(each) for each in (self.profile.swaps, self.profile.outside_swaps) if each is not None
        )


def _paged(counters: Counters) -> int:
    ways = (counters.bytes_h2d, counters.bytes_d2h)
    return sum(way.total or 0 for way in ways if way is not None)


def _swapped(swaps: Swaps) -> int:
    return swaps.swap_in_bytes + swaps.swap_out_bytes


def run(program: Program, policy: str | None = None, budget_bytes: int | None = None) -> Run:
    """Runs it; plain without a policy, without limits (but those of the device) without a budget."""
    with tempfile.TemporaryDirectory() as folder:
        told, profile = Path(folder, "told"), Path(folder, "profile.json")
        told.touch()
        environment = {**os.environ, **ENVIRONMENT, "TOLD": str(told)}
        command = [warm_processes.python(str(PYTHON), **ENVIRONMENT)]
        if policy is not None and program.session:
            environment.update(POLICY=policy, PROFILE=str(profile), BUDGET=str(budget_bytes or ""))
        elif policy is not None:
            limit = [] if budget_bytes is None else ["--budget", str(budget_bytes)]
            command += ["-m", "umadvise", "run", "--device", "emulated", "--policy", policy, *limit]
            command += ["--profile", str(profile)]
        command += [str(FOLDER / program.file), *program.words]
        code, errors = _started(command, environment, folder)
        lines = [json.loads(line) for line in told.read_text(encoding="utf-8").splitlines()]
        return Run(
            code=code,
            told=[(name, text) for _, name, text in lines],
            seconds=lines[-1][0] - lines[0][0] if lines else 0.0,
            profile=decode(profile.read_bytes()) if profile.exists() else None,
            errors=errors,
        )


def _started(command: list[str], environment: dict[str, str], folder: str) -> tuple[int, str]:
    try:
        ended = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return -1, f"it took more than {LIMIT_S} s"
    return ended.returncode, ended.stderr[-4000:]
