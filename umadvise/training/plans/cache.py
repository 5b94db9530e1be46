"""Plans kept between runs, in the user's cache directory: a training that starts again does not plan again.

A plan's key is all that it depends on.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from umadvise._version import __version__
from umadvise.recording.recorded_step import DurationSource
from umadvise.records import plan_file as io
from umadvise.records.plan import Option, Plan
from umadvise.records.trace import Trace
from umadvise.training.plans.kept_files import KeptFiles, user_directory

MOST_FILES = 512
"""Of the oldest ones what is more goes, so that the directory stays small."""
_MOST_BYTES = 512 << 20


@dataclass(frozen=True)
class PlanKey:
    """What a plan depends on.

    Attributes:
        structure: digest of the step's structure, see `umadvise.records.trace.Trace.structure_digest`.
        budget_bytes: bytes of device memory, for what may leave it.
        chunk_bytes: size of a chunk; 0 for unified memory.
        device: digest of the profile of the device that it is for, or the name of a measured one, whose numbers vary.
        planner: name of the planner that made it.
        options: options of the planner.
        durations: clock that timed the step's ops, see `umadvise.recording.recorded_step.RecordedStep`.
        movable: digest of which storages that the step uses may leave the device; empty if all may.
        regions: digest of the marked regions whose ops may run again; empty without any.
    """

    structure: str
    budget_bytes: int
    chunk_bytes: int
    device: str
    planner: str
    options: Mapping[str, Option]
    durations: DurationSource
    movable: str = ""
    regions: str = ""

    @property
    def name(self) -> str:
        """File name of the plan: equal for equal keys and versions of umadvise."""
        words = asdict(self) | {"options": sorted(self.options.items()), "version": __version__}
        return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()


class PlanCache:
    """The directory of plans."""

    def __init__(self, directory: Path | None) -> None:
        """Keeps plans in a directory, which need not exist yet; nowhere where it is None."""
        self._files = KeptFiles(directory, ".plan", "steps are planned again", MOST_FILES, _MOST_BYTES)

    @classmethod
    def of_user(cls) -> "PlanCache":
        """The plans in the user's cache directory; no cache where UMADVISE_PLAN_CACHE is "off"."""
        return cls(user_directory("plans"))

    @property
    def directory(self) -> Path | None:
        """Place of the plans."""
        return self._files.directory

    def load(self, key: PlanKey, trace: Trace) -> Plan | None:
        """The plan of a key, None where there is none. A damaged file is none, and the log says so.

        Args:
            key: key of the plan.
            trace: trace of a step of the key's structure.
        """
        return self._files.read(key.name, lambda path: io.read(path, trace))

    def keep(self, key: PlanKey, plan: Plan) -> None:
        """Keeps a plan of the key's structure. Where it cannot be kept the log says why."""
        if self.directory is not None:
            self._files.keep(key.name, io.encode(plan))
