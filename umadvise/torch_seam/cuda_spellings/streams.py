"""Streams and events. The compute stream of the emulated device is the calling thread.

Every op is complete when its call returns. So whatever a script hands to whichever stream runs in the order in which
the script says it, which is one of the orders that CUDA allows: waits are always over, and events have always happened.

torch's C++ casts stream and event arguments without a check. So both classes derive from torch's own, and to C++ each
object is one of the CPU's, whose streams do nothing. Only the attributes that Python reads speak of the GPU.
"""

import itertools
import threading
import time
from typing import Any, Self

import torch

from umadvise.errors import UntranslatedError
from umadvise.torch_seam.cuda_spellings.words import own_index, target_of
from umadvise.torch_seam.replacements import refusing

CUDA_TYPE = 1
"""Of c10::DeviceType (c10/core/DeviceType.h)."""
_CPU_TYPE = 0
_numbers = itertools.count(1)


def own_device() -> torch.device:
    """The device of every stream and event: the one GPU of this process."""
    return torch.device("cuda", own_index())


def _refuse_between_processes(name: str) -> Any:
    return refusing(UntranslatedError, name, "an event belongs to one process", "use one process")


class Event(torch._C.Event):
    """`torch.cuda.Event`: a moment of the calling thread."""

    def __new__(cls, enable_timing: bool = False, *_blocking: Any, interprocess: bool = False, **_named: Any) -> Self:
        """As torch's; events between processes are refused."""
        if interprocess:
            _refuse_between_processes("torch.cuda.Event(interprocess=True)")()
        event: Self = torch._C.Event.__new__(cls, device="cpu")
        event._timed = enable_timing
        event._recorded_ns = None
        event._number = 0
        return event

    _timed: bool
    _recorded_ns: int | None
    _number: int

    @property
    def device(self) -> torch.device | None:  # type: ignore[override]
        """As torch's: None until the event has been recorded."""
        return None if self._recorded_ns is None else own_device()

    @property
    def cuda_event(self) -> int:
        """A number of its own, 0 until the event has been recorded; torch's is the address of CUDA's event."""
        return self._number

    event_id = _as_parameter_ = cuda_event

    def record(self, _stream: Any = None) -> None:
        """Notes the time: work is done in order, so this is the moment."""
        self._recorded_ns = time.perf_counter_ns()
        self._number = self._number or next(_numbers)

    def wait(self, _stream: Any = None) -> None:
        """Returns at once: what was recorded has happened."""

    def query(self) -> bool:
        """Returns True: what was recorded has happened."""
        return True

    def synchronize(self) -> None:
        """Returns at once: what was recorded has happened."""

    def elapsed_time(self, end: "Event") -> float:  # type: ignore[override]
        """Milliseconds from this event to another, by the clock.

        Raises:
            ValueError: as torch, if one of them was not recorded, or not made with enable_timing=True.
        """
        if not (self._timed and end._timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._recorded_ns is None or end._recorded_ns is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end._recorded_ns - self._recorded_ns) / 1e6

    ipc_handle = _refuse_between_processes("torch.cuda.Event.ipc_handle")
    from_ipc_handle = staticmethod(_refuse_between_processes("torch.cuda.Event.from_ipc_handle"))

    def __repr__(self) -> str:
        return f"<torch.cuda.Event {self._number:#x}>" if self._number else "<torch.cuda.Event uninitialized>"


class Stream(torch._C.Stream):
    """`torch.cuda.Stream`: a name for the calling thread. Streams are equal whose `stream_id` is equal."""

    priority: int

    def __new__(
        cls,
        device: Any = None,
        priority: int = 0,
        *,
        stream_id: int | None = None,
        device_index: int | None = None,
        device_type: int | None = None,
        **_named: Any,
    ) -> Self:
        """As torch's: a new stream of a device, or the one with a `stream_id`; priorities mean nothing."""
        target_of(device_index if device is None and device_type in (None, CUDA_TYPE) else device)
        number = next(_numbers) if stream_id is None else stream_id
        stream: Self = torch._C.Stream.__new__(cls, stream_id=number, device_index=0, device_type=_CPU_TYPE)
        stream.priority = priority
        return stream

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The one GPU of this process."""
        return own_device()

    @property
    def device_index(self) -> int:  # type: ignore[override]
        """Index of that GPU."""
        return own_index()

    @property
    def device_type(self) -> int:  # type: ignore[override]
        """CUDA, as a number of c10::DeviceType."""
        return CUDA_TYPE

    @property
    def cuda_stream(self) -> int:
        """The stream's number, 0 of the default stream; torch's is the address of CUDA's stream."""
        return self.stream_id

    native_handle = _as_parameter_ = cuda_stream

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """As CUDA answers for a device without priorities (cudaDeviceGetStreamPriorityRange)."""
        return 0, 0

    def __enter__(self) -> Self:
        """Makes it the current stream: ops run in the calling thread, now as before."""
        _entered().append(current_stream())
        set_stream(self)
        return self

    def __exit__(self, *_how: Any) -> None:
        """Makes the stream before it the current one again."""
        set_stream(_entered().pop())

    def wait_stream(self, _stream: Any) -> None:
        """Returns at once: all work of the other stream is done."""

    def wait_event(self, _event: Any) -> None:
        """Returns at once: the event has happened."""

    def record_event(self, event: Event | None = None) -> Event:  # type: ignore[override]
        """Records an event, a new one where none is given."""
        event = event if event is not None else Event()
        event.record()
        return event

    def query(self) -> bool:
        """Returns True: all work of the stream is done."""
        return True

    def synchronize(self) -> None:
        """Returns at once: all work of the stream is done."""

    def is_capturing(self) -> bool:
        """Returns False: no graph is ever captured."""
        return False

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


class ExternalStream(Stream):
    """`torch.cuda.ExternalStream`: a stream that another library made, which is the calling thread too."""

    def __new__(cls, stream_ptr: int, device: Any = None, **_named: Any) -> Self:
        """As torch's."""
        return super().__new__(cls, device, stream_id=stream_ptr)


DEFAULT = Stream(stream_id=0)
"""The stream that every thread begins with."""


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.current: Any = DEFAULT
        self.entered: list[Any] = []


_of_thread = _OfThread()


def _entered() -> list[Any]:
    return _of_thread.entered


def current_stream() -> Any:
    """The stream that this thread entered or set last."""
    return _of_thread.current


def set_stream(stream: Any) -> None:
    """Makes it this thread's; None changes nothing, as in torch."""
    if stream is not None:
        _of_thread.current = stream


def forget_streams() -> None:
    """Gives this thread the default stream again."""
    _of_thread.__init__()  # type: ignore[misc]


class StreamContext:
    """`torch.cuda.stream(stream)`: makes a stream the current one."""

    def __init__(self, stream: Any = None) -> None:
        """Takes any stream, or None, which changes nothing, as torch does."""
        self.stream = stream

    def __enter__(self) -> None:
        """Makes it the current stream."""
        _entered().append(current_stream())
        set_stream(self.stream)

    def __exit__(self, *_how: Any) -> None:
        """Makes the stream before it the current one again."""
        set_stream(_entered().pop())


class _OfAnyDevice(type(torch._C.Stream)):  # type: ignore[misc]
    """Metaclass of what replaces torch.Stream and torch.Event: all streams, or events, of torch are instances."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls._all) if "_all" in vars(cls) else super().__instancecheck__(instance)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, cls._all) if "_all" in vars(cls) else super().__subclasscheck__(kind)


class AnyStream(Stream, metaclass=_OfAnyDevice):
    """`torch.Stream`: of the GPU, unless another device is named."""

    _all = torch._C.Stream

    def __new__(cls, device: Any = None, *arguments: Any, priority: int = 0, **named: Any) -> Any:
        """As torch's: of a device, or of three numbers that another stream told."""
        numbers = (device, *arguments) if arguments else ()
        if numbers:
            device, named = None, dict(zip(("stream_id", "device_index", "device_type"), numbers, strict=False))
        elsewhere = named.get("device_type", CUDA_TYPE) != CUDA_TYPE or not (device is None or target_of(device))
        if elsewhere:
            return torch._C.Stream(**named) if named else torch._C.Stream(device, priority=priority)
        return Stream.__new__(Stream if cls is AnyStream else cls, device, priority, **named)


class AnyEvent(Event, metaclass=_OfAnyDevice):
    """`torch.Event`: of the GPU, unless another device is named."""

    _all = torch._C.Event

    def __new__(cls, device: Any = None, **named: Any) -> Any:
        """As torch's."""
        if not (device is None or target_of(device)):
            return torch._C.Event(device, **named)
        return Event.__new__(Event if cls is AnyEvent else cls, **named)
