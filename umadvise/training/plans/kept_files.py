"""Files in the user's cache directory, so that a training that starts again knows what the last one found out.

Each has a name that says all it depends on, so a file is never wrong, only useless: whatever goes wrong with one, the
training goes on without it. Any of them may be deleted at any time, and those that nobody has used for the longest time
go where there are too many.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from umadvise.errors import UmadviseError
from umadvise.records.files import write_atomically
from umadvise.user_cache import user_cache

log = logging.getLogger("umadvise")
Whole = TypeVar("Whole")

SWITCH = "UMADVISE_PLAN_CACHE"
"""Environment variable: "off" keeps no files and reads none."""
_FAILURES = OSError, UmadviseError, MemoryError
_LONGEST_WRITING_S = 3600
_warned: set[tuple[str, Path]] = set()


def user_directory(name: str) -> Path | None:
    """The directory of a name in the user's cache; None where UMADVISE_PLAN_CACHE is "off", or the user has no home."""
    if os.environ.get(SWITCH, "").lower() == "off":
        return None
    cache = user_cache()
    if cache is None:
        log.warning(
            "plans cannot be kept for the next start: the user has no home directory. Set XDG_CACHE_HOME to a "
            "directory with an absolute path, or %s=off",
            SWITCH,
        )
        return None
    return cache / "umadvise" / name


@dataclass(frozen=True)
class KeptFiles:
    """Files of one kind.

    Attributes:
        directory: place of the files, which need not exist yet; None keeps none.
        ending: what their names end with, such as ".plan".
        instead: what a training does without such a file, for the log.
        most_files: number of files that are kept.
        most_bytes: bytes of all files that are kept.
    """

    directory: Path | None
    ending: str
    instead: str
    most_files: int
    most_bytes: int

    def read(self, name: str, decode: Callable[[Path], Whole]) -> Whole | None:
        """Reads the file of a name. None where there is none; where it cannot be read the log says why.

        Args:
            name: the file's name without its ending.
            decode: reads a file, or raises UmadviseError.
        """
        path = self._place(name)
        if path is None:
            return None
        try:
            path.stat()
            found = decode(path)
        except FileNotFoundError:
            return None
        except _FAILURES as error:
            if self._is_news("read", path.parent):
                log.warning(
                    "kept files are of no use, and %s: %s. Make %s readable, or set %s=off",
                    self.instead,
                    str(error) or type(error).__name__,
                    path.parent,
                    SWITCH,
                )
            return None
        with contextlib.suppress(*_FAILURES):  # another user's file serves as well, though its time cannot be set
            os.utime(path)
        return found

    def keep(self, name: str, document: bytes) -> None:
        """Writes the file of a name. Where it cannot be kept the log says why."""
        path = self._place(name)
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, document)
            self._make_room(path.parent)
        except _FAILURES as error:
            if self._is_news("kept", path.parent):
                log.warning(
                    "plans cannot be kept for the next start: %s. Make %s writable, or set %s=off",
                    str(error) or type(error).__name__,
                    path.parent,
                    SWITCH,
                )

    def _is_news(self, what: str, directory: Path) -> bool:
        """Whether the log has not said this of the directory yet: each plan of each rung asks for a file."""
        news = (what, directory) not in _warned
        _warned.add((what, directory))
        return news

    def _place(self, name: str) -> Path | None:
        return None if self.directory is None else self.directory / f"{name}{self.ending}"

    def _make_room(self, directory: Path) -> None:
        """Removes what is too much, and what processes have begun to write that were killed."""
        for abandoned in directory.glob(f".*{self.ending}.*"):
            if _last_use(abandoned)[0] < time.time() - _LONGEST_WRITING_S:
                abandoned.unlink(missing_ok=True)
        files = sorted(((*_last_use(path), path) for path in directory.glob(f"*{self.ending}")), reverse=True)
        total_bytes = 0
        for place, (_, size_bytes, path) in enumerate(files):
            total_bytes += size_bytes
            if place > 0 and (place >= self.most_files or total_bytes > self.most_bytes):
                path.unlink(missing_ok=True)


def _last_use(path: Path) -> tuple[float, int]:
    try:
        found = path.stat()
    except OSError:  # another process has just deleted it
        return 0.0, 0
    return found.st_mtime, found.st_size
