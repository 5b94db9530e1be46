"""Plans kept between runs, in the user's cache directory: a training that starts again does not plan again.

A plan's key is all that it depends on, so a file is never wrong, only useless. It may be deleted at any time.
"""

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from umadvise._version import __version__
from umadvise.errors import FormatError, UmadviseError
from umadvise.recording.recorded_step import DurationSource
from umadvise.records import plan_file as io
from umadvise.records.plan import Option, Plan
from umadvise.records.trace import Trace

log = logging.getLogger("umadvise")

SWITCH = "UMADVISE_PLAN_CACHE"
"""Environment variable: "off" keeps no plans and reads none."""
MOST_FILES = 512
"""Of the oldest ones what is more goes, so that the directory stays small."""


@dataclass(frozen=True)
class PlanKey:
    """What a plan depends on.

    Attributes:
        structure: digest of the step's structure, see `umadvise.recording.recorded_step`.
        budget_bytes: bytes of device memory, for what may leave it.
        chunk_bytes: size of a chunk; 0 for unified memory.
        device: digest of the profile of the device that it is for, or the name of a measured one, whose numbers vary.
        planner: name of the planner that made it.
        options: options of the planner.
        durations: clock that timed the step's ops, see `umadvise.recording.recorded_step.RecordedStep`.
    """

    structure: str
    budget_bytes: int
    chunk_bytes: int
    device: str
    planner: str
    options: Mapping[str, Option]
    durations: DurationSource

    @property
    def name(self) -> str:
        """File name of the plan: equal for equal keys and versions of umadvise."""
        words = asdict(self) | {"options": sorted(self.options.items()), "version": __version__}
        return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()


class PlanCache:
    """The directory of plans."""

    def __init__(self, directory: Path | None) -> None:
        """Keeps plans in a directory, which need not exist yet; nowhere where it is None."""
        self.directory = directory

    @classmethod
    def of_user(cls) -> "PlanCache":
        """The plans in the user's cache directory; no cache where UMADVISE_PLAN_CACHE is "off"."""
        if os.environ.get(SWITCH, "").lower() == "off":
            return cls(None)
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return cls(Path(base) / "umadvise" / "plans")

    def load(self, key: PlanKey, structure: Trace) -> Plan | None:
        """The plan of a key, None where there is none. A damaged file is none, and the log says so.

        Args:
            key: key of the plan.
            structure: step that the plan's numbers are of.
        """
        path = self._path(key)
        if path is None or not path.exists():
            return None
        try:
            plan = io.read(path, structure)
        except FormatError as error:
            log.warning("a kept plan is of no use, and the step is planned again: %s", error)
            return None
        except UmadviseError as error:
            log.warning("a kept plan cannot be read, and the step is planned again: %s", error)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # the oldest are those that nobody has used for the longest time
        return plan

    def keep(self, key: PlanKey, plan: Plan) -> None:
        """Keeps a plan of the key's structure. Where it cannot be kept the log says why."""
        path = self._path(key)
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            io.write(plan, path)
            self._make_room(path.parent)
        except (OSError, UmadviseError) as error:
            log.warning(
                "the plan cannot be kept for the next start: %s. Make %s writable, or set %s=off",
                error,
                path.parent,
                SWITCH,
            )

    def _path(self, key: PlanKey) -> Path | None:
        return None if self.directory is None else self.directory / f"{key.name}.plan"

    def _make_room(self, directory: Path) -> None:
        files = list(directory.glob("*.plan"))
        if len(files) <= MOST_FILES:
            return
        for path in sorted(files, key=_last_use)[: len(files) - MOST_FILES]:
            path.unlink(missing_ok=True)


def _last_use(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # another process has just deleted it
        return 0.0
