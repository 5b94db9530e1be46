"""Running commands under a limit of time, such that one that crashes, hangs or is cut off costs only itself."""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_GRACE_S = 5.0
"""Between asking a command to end and killing it; a process that waits in a driver answers to neither."""
_POLL_S = 0.5
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class StuckError(Exception):
    """A process did not end when it was killed: it waits in the driver, and so would the next one."""


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        status: the exit status; negative: the signal that ended it; None: its time was up.
        out: what it printed.
        last_line: the last line of its errors; empty where there is none.
    """

    status: int | None
    out: str
    last_line: str


def run(
    words: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str],
    scratch: Path,
    log: Path,
    limit_s: float,
    watch: Callable[[], object] = lambda: None,
) -> Ended:
    """Runs a command; its errors go to the log as they come, and what it printed when it has ended.

    Args:
        words: the command, word by word.
        folder: the working directory of the command.
        environment: all of its variables.
        scratch: folder for what it prints.
        log: file that is appended to.
        limit_s: seconds until it is ended, together with what it has started.
        watch: called now and then while it runs.

    Raises:
        OSError: it cannot be started.
        StuckError: it cannot be ended.
    """
    printed = scratch / "stdout"
    started = time.monotonic()
    with printed.open("wb") as out, log.open("ab") as errors:
        errors.write(f"$ {' '.join(words)}\n".encode())
        errors.flush()
        begun = errors.tell()
        process = subprocess.Popen(
            words,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            start_new_session=True,  # so that what it starts ends with it
            preexec_fn=_die_with_parent,
        )
        try:
            status = _wait(process, started + limit_s, watch)
        except BaseException:  # a signal to this program: nothing may go on without it
            _end(process)
            raise
    text, last_line = printed.read_text(errors="replace"), _last_line(log, begun)
    with log.open("a", errors="replace") as file:
        said = "its time was up" if status is None else f"status {status}"
        file.write(f"{text[-20000:]}# {said} after {time.monotonic() - started:.1f} s\n")
    return Ended(status, text, last_line)


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait(process: "subprocess.Popen[bytes]", ends_s: float, watch: Callable[[], object]) -> int | None:
    while (left_s := ends_s - time.monotonic()) > 0:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(min(_POLL_S, left_s))
        watch()
    _end(process)
    return None


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Asks, then kills, all that the command has started.

    Raises:
        StuckError: it is still there.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it has started and left behind
            return
    raise StuckError(f"process {process.pid} did not end when it was killed: it waits in the driver")


def _last_line(log: Path, begun: int) -> str:
    """Of what was logged since; empty where there is none."""
    with log.open("rb") as file:
        file.seek(begun)
        lines = file.read().decode(errors="replace").splitlines()
    return next((line for line in reversed(lines) if line.strip()), "")
