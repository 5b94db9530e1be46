"""Ctrl-C and SIGTERM while something ends that must end whole: half a way out would leave torch patched."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def signals_held() -> Iterator[None]:
    """Has SIGINT and SIGTERM wait until the end of the block. A second one counts at once, and ignored ones stay so.

    Python runs handlers in the main thread alone, so that nothing interrupts a block of another thread.
    """
    came: list[int] = []
    before: dict[int, Any] = {}

    def put_back() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, _: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            put_back()
            os.kill(os.getpid(), number)

    try:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                handler = signal.getsignal(number)
                if handler is not None and handler != signal.SIG_IGN:  # None: one that a library has set in C
                    before[number] = handler
                    signal.signal(number, note)
        yield
    finally:
        put_back()
        if len(came) == 1:
            os.kill(os.getpid(), came[0])
