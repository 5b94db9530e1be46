"""Running stages under limits of time, and the folder that they leave behind: record.json, summary.txt and log.txt."""

import datetime
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import commands
from prebuilt import Prebuilt
from sizes import small
from summary import lines

SCHEMA = "umadvise.gpu_check/3"
MOST_MANAGED_BYTES = 8 << 30
WITHIN_S = 530.0  # nine minutes less what it takes to end
_OUTPUT_CHARACTERS = 4000
_DRY_PATIENCE = 4.0


class StageError(Exception):
    """A stage did not pass; the message says why. What it found until then is in `data`."""

    def __init__(self, reason: str, data: Any = None) -> None:
        super().__init__(reason)
        self.data = data


class FolderError(Exception):
    """What was asked for cannot be done; the message says why."""


class Output:
    """The folder of results. Its record is there at any moment, with all that has ended until then.

    Attributes:
        folder: the folder of the three files.
        log: what commands wrote, as it came.
    """

    def __init__(self, folder: Path, *, dry_run: bool) -> None:
        """Takes up the record that an earlier command has left in this folder.

        Raises:
            FolderError: it is of another kind.
        """
        self.folder, self.log, self._path = folder, folder / "log.txt", folder / "record.json"
        folder.mkdir(parents=True, exist_ok=True)
        self._record: dict[str, Any] = {
            "schema": SCHEMA,
            "date": _now(),
            "dry_run": dry_run,
            "host": {"machine": platform.machine(), "kernel": platform.release(), "cpu_count": os.cpu_count()},
            "stages": [],
        }
        if self._path.exists():
            earlier = json.loads(self._path.read_text())
            if (earlier.get("schema"), earlier.get("dry_run")) != (SCHEMA, dry_run):
                raise FolderError(f"{self._path} is of another version, or a dry run's: name another folder")
            self._record = earlier

    def data(self, stage: str) -> Any:
        """What a stage has found, in this command or in one before it; None where it has not passed."""
        return next((each["data"] for each in self._record["stages"] if each["name"] == stage and each["passed"]), None)

    def put(self, entry: dict[str, Any]) -> None:
        """Writes a stage's entry, in place of the one that it had."""
        stages = self._record["stages"]
        others = [each for each in stages if each["name"] != entry["name"]]
        self._record["stages"] = [*others, entry]
        write(json.dumps(self._record, indent=1) + "\n", self._path)
        write("\n".join(lines(self._record)) + "\n", self.folder / "summary.txt")


@dataclass
class GpuCheck:
    """What the stages share.

    Attributes:
        checkout: the source tree.
        build_directory: the folder in which the native core is built, where it is built here.
        prebuilt: what a bundle brings.
        scratch: a folder for files that nobody needs afterwards.
        output: the folder of results.
        dry_run: the emulated device stands in for the GPU.
        most_managed_bytes: managed memory is never more than this, nor than what is free: more than a device holds
            could stall the machine. It is a budget, below what a network takes, that makes pages move.
        libraries: variables that name the core and the hooks, once they are there.
        stuck: why nothing more can be run.
    """

    checkout: Path
    build_directory: Path
    prebuilt: Prebuilt
    scratch: Path
    output: Output
    dry_run: bool
    most_managed_bytes: int = MOST_MANAGED_BYTES
    libraries: dict[str, str] = field(default_factory=dict)
    stuck: str | None = None
    stage_ends_s: float = 0.0
    keep: Callable[[Any], None] = lambda _data: None
    """Writes what the running stage has found until now."""

    @property
    def small(self) -> bool:
        """Whether only the programs are tried, in sizes that no GPU is needed for."""
        return self.dry_run or small()

    @property
    def kind(self) -> str:
        """The device, as the programs are told."""
        return "emulated" if self.dry_run else "cuda"

    def environment(self, *, driver: bool) -> dict[str, str]:
        """Variables of commands: this checkout's Python, what the bundle brings, and nothing from a network."""
        variables = {**os.environ, **self.libraries, "PYTHONUNBUFFERED": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        variables |= {"HF_HUB_OFFLINE": "1", "PIP_NO_INDEX": "1"}
        paths = [self.checkout, *self.prebuilt.packages]
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, [*map(str, paths), os.environ.get("PYTHONPATH")]))
        if driver and self.dry_run:
            variables |= self.prebuilt.stand_ins(self.build_directory)
        return variables

    @property
    def patience(self) -> float:
        """By which every limit of time is longer: a dry run may share a busy machine, and nobody pays for it."""
        return _DRY_PATIENCE if self.small else 1.0

    def managed_limit_bytes(self) -> int:
        """Most that may be in managed memory.

        Raises:
            StageError: nobody knows what is free.
        """
        return min(self.most_managed_bytes, self.free_bytes())

    def free_bytes(self) -> int:
        """Of the device.

        Raises:
            StageError: nobody knows.
        """
        return int(self._machine()["device"]["free_bytes"])

    def host_bytes(self) -> int:
        """Of the host's memory, what is available.

        Raises:
            StageError: nobody knows.
        """
        return int(self._machine()["available_bytes"])

    def _machine(self) -> dict[str, Any]:
        found: dict[str, Any] | None = self.output.data("environment")
        if found is None:
            raise StageError("the stage environment has not found a device, so what is free is not known")
        return found

    def run(
        self,
        words: list[str],
        *,
        must_succeed: bool = True,
        within_s: float = math.inf,
        driver: bool = False,
        watch: Callable[[], object] = lambda: None,
    ) -> str:
        """Runs a command until the stage's time is up, or its own, and returns what it printed.

        Args:
            words: the command, word by word.
            must_succeed: whether another status than 0 is an error.
            within_s: its own time.
            driver: it opens the driver itself, or in a dry run the stand-in.
            watch: called now and then while it runs.

        Raises:
            StageError: it cannot be started, is stopped, or (where it must succeed) ends with another status than 0.
        """
        if self.stuck is not None:
            raise StageError(f"not started: {self.stuck}")
        left_s = min(within_s * self.patience, self.stage_ends_s - time.monotonic())
        try:
            ended = commands.run(
                words,
                folder=self.checkout,
                environment=self.environment(driver=driver),
                scratch=self.scratch,
                log=self.output.log,
                limit_s=max(0.1, left_s),
                watch=watch,
            )
        except OSError as error:
            raise StageError(f"{words[0]} cannot be started: {error}") from error
        except commands.StuckError as error:
            self.stuck = str(error)
            raise StageError(self.stuck) from error
        if ended.status is None:
            raise StageError("stopped: its time was up")
        if must_succeed and ended.status != 0:
            program = " ".join(Path(word).name for word in words[:2])
            raise StageError(f"{program} ended with status {ended.status}: {ended.last_line or 'no message'}")
        return ended.out


@dataclass(frozen=True)
class Stage:
    """One stage.

    Attributes:
        limit_s: how long it may take.
        work: what it does with the check.
        needs: stages that run before it in every command.
        reserved_s: seconds that the stages before it leave it in any case.
        asked_for: it runs on a GPU only where it is asked for by name.
    """

    limit_s: float
    work: Callable[[GpuCheck], Any]
    needs: tuple[str, ...] = ()
    reserved_s: float = 0.0
    asked_for: bool = False


def run_stages(check: GpuCheck, stages: Mapping[str, Stage], within_s: float = WITHIN_S) -> bool:
    """Runs the stages in order; returns whether all passed."""
    ends_s = time.monotonic() + within_s * check.patience
    reserved_s = sum(stage.reserved_s for stage in stages.values()) * check.patience
    passed: dict[str, bool] = {}
    for name, stage in stages.items():
        reserved_s -= stage.reserved_s * check.patience
        limit_s = min(stage.limit_s * check.patience, ends_s - time.monotonic() - reserved_s)
        print(f"gpu_check: {name} (at most {limit_s:.0f} s)", file=sys.stderr, flush=True)
        with _entry(check, name, limit_s) as entry:
            if lacking := [need for need in stage.needs if not passed.get(need, True)]:
                raise StageError(f"not started: {' and '.join(lacking)} did not pass")
            if limit_s <= 0:
                raise StageError("not started: no time was left")
            entry["data"] = stage.work(check)
        passed[name] = entry["passed"]
        outcome = "passed" if passed[name] else f"FAILED: {entry['reason']}"
        print(f"gpu_check: {name} {outcome} ({entry['seconds']} s)", file=sys.stderr, flush=True)
    return all(passed.values())


@contextmanager
def _entry(check: GpuCheck, name: str, limit_s: float) -> Iterator[dict[str, Any]]:
    """A stage's entry, which is written when it begins, whenever it keeps something, and when it ends, however."""
    started, log_bytes = time.monotonic(), check.output.log.stat().st_size if check.output.log.exists() else 0
    entry: dict[str, Any] = {"name": name, "date": _now(), "passed": False, "reason": "cut off", "data": None}
    check.stage_ends_s = started + limit_s
    with check.output.log.open("a") as file:
        file.write(f"==== {name}, {entry['date']}\n")

    def keep(data: Any) -> None:
        with check.output.log.open("rb") as file:
            file.seek(log_bytes)
            output = file.read().decode(errors="replace")[-_OUTPUT_CHARACTERS:]
        entry.update(data=data, seconds=round(time.monotonic() - started, 1), output=output)
        check.output.put(entry)

    check.keep = keep
    keep(None)
    try:
        yield entry
        entry["reason"] = None
    except StageError as error:
        entry["reason"] = str(error)
        entry["data"] = entry["data"] if error.data is None else error.data
    except Exception as error:
        entry["reason"] = f"{type(error).__name__}: {error}"
    except BaseException as error:
        entry["reason"] = f"cut off by {error or type(error).__name__}"
        raise
    finally:
        entry["passed"] = entry["reason"] is None
        keep(entry["data"])


def write(text: str, path: Path) -> None:
    """Writes a file in one step: a reader never sees half of it."""
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    part.replace(path)


def _now() -> str:
    return datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds")
