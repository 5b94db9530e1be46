"""The page-accurate model (csrc/um/pages.h)."""

import ctypes
import weakref
from typing import Any

from numpy.typing import NDArray

from umadvise._native.library import core_library
from umadvise._native.structures import layout, make, rows, structure


class Pages:
    """A model of unified memory page by page (csrc/um/pages.h). Every call but `close` raises NativeError."""

    def __init__(self, **options: Any) -> None:
        """Starts with empty memory; `options`: the fields of um_pages_options."""
        handle = ctypes.c_void_p()
        core_library().um_pages_create(ctypes.byref(make("um_pages_options", **options)), ctypes.byref(handle))
        self._handle = handle.value
        self.close = weakref.finalize(self, core_library().um_pages_destroy, handle.value)

    def allocate(self, size_bytes: int) -> tuple[int, int]:
        """Number and address of a new allocation."""
        allocation, address = ctypes.c_uint64(), ctypes.c_uint64()
        core_library().um_pages_allocate(self._handle, size_bytes, ctypes.byref(allocation), ctypes.byref(address))
        return allocation.value, address.value

    def free(self, allocation: int) -> None:
        """Forgets an allocation."""
        core_library().um_pages_free(self._handle, allocation)

    def touch(self, **touch: Any) -> None:
        """Accesses of a kernel or of a host thread; `touch`: the fields of um_pages_touch."""
        core_library().um_pages_accesses(self._handle, ctypes.byref(make("um_pages_touch", **touch)))

    def advise(self, allocation: int, advice: int, *, host: bool) -> None:
        """One of the driver's six calls, numbered as um_driver_advice."""
        core_library().um_pages_advise(self._handle, allocation, advice, host)

    def prefetch(self, allocation: int, *, host: bool) -> None:
        """A migration that the user asks for."""
        core_library().um_pages_prefetch(self._handle, allocation, host)

    def discard(self, allocation: int) -> None:
        """Says that the contents of a range are no longer needed."""
        core_library().um_pages_discard(self._handle, allocation)

    def counters(self) -> ctypes.Structure:
        """Totals since the model was made: um_pages_counters."""
        counters = structure("um_pages_counters")()
        core_library().um_pages_counters_read(self._handle, ctypes.byref(counters))
        return counters

    def now_ns(self) -> int:
        """The model's clock."""
        return int(core_library().um_pages_now_ns(self._handle))

    def records(self, first: int) -> NDArray[Any]:
        """The records from the `first` on: an array of um_pages_record."""
        tell = core_library().um_pages_records
        return rows(layout("um_pages_record"), lambda out, most: tell(self._handle, first, out, most) - first)
