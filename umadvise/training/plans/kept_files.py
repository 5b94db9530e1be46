"""Files in the user's cache directory, so that a training that starts again knows what the last one found out.

Each has a name that says all it depends on, so a file is never wrong, only useless. Any of them may be deleted at any
time, and those that nobody has used for the longest time go where there are too many.
"""

import contextlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path

from umadvise.errors import UmadviseError
from umadvise.records.files import write_atomically

log = logging.getLogger("umadvise")

SWITCH = "UMADVISE_PLAN_CACHE"
"""Environment variable: "off" keeps no files and reads none."""


def user_directory(name: str) -> Path | None:
    """The directory of a name in the user's cache; None where UMADVISE_PLAN_CACHE is "off"."""
    if os.environ.get(SWITCH, "").lower() == "off":
        return None
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "umadvise" / name


@dataclass(frozen=True)
class KeptFiles:
    """Files of one kind.

    Attributes:
        directory: place of the files, which need not exist yet; None keeps none.
        ending: what their names end with, such as ".plan".
        most_files: number of files that are kept.
        most_bytes: bytes of all files that are kept.
    """

    directory: Path | None
    ending: str
    most_files: int
    most_bytes: int

    def path(self, name: str) -> Path | None:
        """Where the file of a name is; None where there is none."""
        path = self._place(name)
        return path if path is not None and path.exists() else None

    def used(self, path: Path) -> None:
        """Takes note that somebody has a use for a file."""
        with contextlib.suppress(OSError):
            os.utime(path)

    def keep(self, name: str, document: bytes) -> None:
        """Writes the file of a name. Where it cannot be kept the log says why."""
        path = self._place(name)
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, document)
            self._make_room(path.parent)
        except (OSError, UmadviseError) as error:
            log.warning(
                "plans cannot be kept for the next start: %s. Make %s writable, or set %s=off",
                error,
                path.parent,
                SWITCH,
            )

    def _place(self, name: str) -> Path | None:
        return None if self.directory is None else self.directory / f"{name}{self.ending}"

    def _make_room(self, directory: Path) -> None:
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
