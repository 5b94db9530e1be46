"""What the device in use counted and holds, for scripts that call `patch()` and open no session."""

from umadvise.records.counters import Counters, MemoryStats
from umadvise.torch_seam import runtime


def read_counters() -> Counters:
    """The device's totals since `patch()`; None for what cannot be seen.

    Raises:
        StateError: nothing is patched.
    """
    return runtime.current().device.counters()


def memory_stats() -> MemoryStats:
    """Requested, reserved, resident, host and workspace bytes, by role, with their peaks since `patch()`.

    Raises:
        StateError: nothing is patched.
    """
    return runtime.current().device.memory()
