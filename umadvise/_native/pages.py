"""The page-accurate model (csrc/um/pages.h)."""

import ctypes
import weakref

from umadvise._native.abi import PagesCounters, PagesOptions, PagesRecord, PagesTouch
from umadvise._native.library import core_library
from umadvise._native.mirrors import filled, mirror, to_c
from umadvise._native.prototypes import POINTER, U64


class Pages:
    """A model of unified memory page by page (csrc/um/pages.h). Every call but `close` raises NativeError."""

    def __init__(self, options: PagesOptions) -> None:
        handle = POINTER()
        core_library().um_pages_create(ctypes.byref(to_c(options)), ctypes.byref(handle))
        self._handle = handle.value
        self.close = weakref.finalize(self, core_library().um_pages_destroy, handle.value)

    def allocate(self, size_bytes: int) -> tuple[int, int]:
        """Number and address of a new allocation."""
        allocation, address = U64(), U64()
        core_library().um_pages_allocate(self._handle, size_bytes, ctypes.byref(allocation), ctypes.byref(address))
        return allocation.value, address.value

    def free(self, allocation: int) -> None:
        """Forgets an allocation."""
        core_library().um_pages_free(self._handle, allocation)

    def touch(self, touch: PagesTouch) -> None:
        """Accesses of a kernel or of a host thread."""
        core_library().um_pages_accesses(self._handle, ctypes.byref(to_c(touch)))

    def advise(self, allocation: int, advice: int, *, host: bool) -> None:
        """One of the driver's six calls, numbered as um_driver_advice."""
        core_library().um_pages_advise(self._handle, allocation, advice, host)

    def prefetch(self, allocation: int, *, host: bool) -> None:
        """A migration that the user asks for."""
        core_library().um_pages_prefetch(self._handle, allocation, host)

    def discard(self, allocation: int) -> None:
        """The contents are no longer needed."""
        core_library().um_pages_discard(self._handle, allocation)

    def counters(self) -> PagesCounters:
        """Totals since the model was made."""
        return filled(PagesCounters, lambda out: core_library().um_pages_counters_read(self._handle, out))

    def now_ns(self) -> int:
        """The model's clock."""
        return int(core_library().um_pages_now_ns(self._handle))

    def records(self, first: int) -> bytes:
        """The records from the `first` on: um_pages_record structures, one after the other."""
        structure = mirror(PagesRecord).structure
        count = int(core_library().um_pages_records(self._handle, 0, None, 0)) - first
        buffer = (structure * count)()
        core_library().um_pages_records(self._handle, first, buffer, count)
        return bytes(buffer)
