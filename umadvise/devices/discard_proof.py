"""Which drivers' discards have been tried on this machine and kept the data right: on CUDA no other driver's are used.

A discard says that nobody needs the contents of a range any more. What it takes with it when a kernel is at work beside
it is up to the driver, so `tools/gpu_check` tries it and keeps the answer in the user's cache directory, by driver.
"""

import re
from pathlib import Path

from umadvise.user_cache import user_cache

_VERSION_FILE = Path("/sys/module/nvidia/version")


def driver_version() -> str | None:
    """Version of NVIDIA's kernel module, such as "580.95.05"; None where it does not tell."""
    try:
        version = _VERSION_FILE.read_text().strip()
    except OSError:
        return None
    return version if re.fullmatch(r"[0-9][0-9A-Za-z.]*", version) else None


def is_proved() -> bool:
    """Whether the discards of the driver that runs now were tried here, and kept the data right."""
    proof = _proof()
    try:
        return proof is not None and proof.exists()
    except OSError:  # a cache that cannot be searched proves nothing
        return False


def keep(proved: bool) -> bool:
    """Keeps what a trial has shown of the driver that runs now, for every later process of this user.

    Args:
        proved: the data were right after it.

    Returns:
        False where it cannot be kept, as the driver does not tell its version, or the user has no cache directory.

    Raises:
        OSError: the cache directory cannot be written.
    """
    proof = _proof()
    if proof is None:
        return False
    if proved:
        proof.parent.mkdir(parents=True, exist_ok=True)
        proof.touch()
    else:
        proof.unlink(missing_ok=True)
    return True


def _proof() -> Path | None:
    version, cache = driver_version(), user_cache()
    return None if version is None or cache is None else cache / "umadvise" / "discards" / version
