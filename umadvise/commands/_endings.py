"""Signals that end a script under `umadvise run`: its profile and trace are written all the same."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(BaseException):
    """SIGTERM has come: the script ends as it does after Ctrl-C."""


@contextmanager
def heeding_sigterm() -> Iterator[None]:
    """Has SIGTERM raise `Terminated` within the block, and end the process once that has left the block.

    Nothing changes where the script handles or ignores SIGTERM, and for processes that the script forks.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    owner = os.getpid()

    def end(number: int, _: FrameType | None) -> None:
        if os.getpid() == owner:
            raise Terminated
        _end_by(number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    except Terminated:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        _end_by(signal.SIGTERM)
    finally:
        if signal.getsignal(signal.SIGTERM) is end:  # else the script has set another one
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _end_by(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
