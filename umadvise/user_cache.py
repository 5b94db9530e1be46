"""The user's cache directory, where umadvise keeps compiled code, plans and steps."""

import os
import pwd
import stat
from pathlib import Path

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def user_cache() -> Path | None:
    """The directory of the XDG Base Directory Specification; None where neither $XDG_CACHE_HOME nor a home names one.

    A relative path names none: the specification has it ignored, as it would mean another place in each directory that
    a script is started in.
    """
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():
        return named
    home = _home()
    return home / ".cache" if home.is_absolute() else None


def _home() -> Path:
    if home := os.environ.get("HOME"):
        return Path(home)
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:  # a user without an entry, as of `docker run --user`
        return Path()


def why_untrusted(path: Path, base: Path) -> str | None:
    """Says why code is not loaded from a path: another user may have written it. None where no other user can.

    Each directory from `base` down to the path, and the path itself, has to belong to this user or to root, who can do
    anything anyway, and must not be writable for its group or for others.

    Args:
        path: file or directory, below `base`.
        base: directory that the user chose.

    Raises:
        OSError: one of them is not there, or cannot be looked at.
    """
    for each in (path, *(parent for parent in path.parents if parent.is_relative_to(base))):
        found = each.stat()
        if found.st_uid not in {os.getuid(), 0}:
            return f"{each} belongs to another user (uid {found.st_uid})"
        if found.st_mode & _OTHERS_WRITE:
            return f"other users can write to {each} (mode {stat.S_IMODE(found.st_mode):o})"
    return None
