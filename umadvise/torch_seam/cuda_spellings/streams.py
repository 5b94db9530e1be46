"""Streams and events. The compute stream of the emulated device is the calling thread.

Every op is complete when its call returns. So whatever a script hands to whichever stream runs in the order in which
the script says it, which is one of the orders that CUDA allows: waits are always over, and events have always happened.
"""

import time
from typing import Any, Self

from umadvise.errors import UntranslatedError
from umadvise.torch_seam.cuda_spellings.words import target_of


class Event:
    """`torch.cuda.Event`: a moment of the calling thread."""

    def __init__(self, enable_timing: bool = False, *_blocking: Any, interprocess: bool = False, **_named: Any) -> None:
        """As torch's; events between processes are refused."""
        if interprocess:
            raise UntranslatedError(
                "torch.cuda.Event(interprocess=True)", "it belongs to one process", "use one process"
            )
        self._timed = enable_timing
        self._recorded_ns: int | None = None

    def record(self, _stream: Any = None) -> None:
        """Notes the time: work is done in order, so this is the moment."""
        self._recorded_ns = time.perf_counter_ns()

    def wait(self, _stream: Any = None) -> None:
        """Returns at once: what was recorded has happened."""

    def query(self) -> bool:
        """Returns True: what was recorded has happened."""
        return True

    def synchronize(self) -> None:
        """Returns at once: what was recorded has happened."""

    def elapsed_time(self, end: "Event") -> float:
        """Milliseconds from this event to another, by the clock.

        Raises:
            ValueError: as torch, if one of them was not recorded, or not made with enable_timing=True.
        """
        if not (self._timed and end._timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._recorded_ns is None or end._recorded_ns is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end._recorded_ns - self._recorded_ns) / 1e6


class Stream:
    """`torch.cuda.Stream`: the calling thread."""

    def __init__(self, device: Any = None, priority: int = 0, **_named: Any) -> None:
        """As torch's; priorities mean nothing."""
        target_of(device)
        self.priority = priority
        self.cuda_stream = 0
        self.stream_id = 0

    def __enter__(self) -> Self:
        """A stream is a context, too: ops go to it, now as before."""
        return self

    def __exit__(self, *_how: Any) -> None:
        """Nothing changed."""

    def __eq__(self, other: object) -> bool:
        """All streams are one."""
        return isinstance(other, Stream)

    def __hash__(self) -> int:
        return 0

    def wait_stream(self, _stream: Any) -> None:
        """Returns at once: all work of the other stream is done."""

    def wait_event(self, _event: Any) -> None:
        """Returns at once: the event has happened."""

    def record_event(self, event: Event | None = None) -> Event:
        """Records an event, a new one where none is given."""
        event = event if event is not None else Event()
        event.record()
        return event

    def query(self) -> bool:
        """Returns True: all work of the stream is done."""
        return True

    def synchronize(self) -> None:
        """Returns at once: all work of the stream is done."""


CURRENT = Stream()
"""The only one there is."""


class StreamContext:
    """`torch.cuda.stream(stream)`: ops go to the calling thread, now as before."""

    def __init__(self, stream: Any = None) -> None:
        """Takes any stream, or None, as torch does."""
        self.stream = stream

    def __enter__(self) -> None:
        """Nothing changes."""

    def __exit__(self, *_how: Any) -> None:
        """Nothing did."""
