"""`torch.cuda.memory_allocated()` and its kin, answered from the device's own statistics.

Allocated is what tensors asked for; reserved is what the driver gave for them.
"""

from dataclasses import fields, replace
from typing import Any

from umadvise import _native
from umadvise._abi import MemoryStats
from umadvise.errors import UntranslatedError
from umadvise.replacements import Replacements

_PEAKS = tuple(field.name for field in fields(MemoryStats) if "peak" in field.name)


def _higher(now: MemoryStats, before: MemoryStats | None) -> MemoryStats:
    """A reading with the higher peaks of two."""
    if before is None:
        return now
    peaks: dict[str, Any] = {}
    for name in _PEAKS:
        new, old = getattr(now, name), getattr(before, name)
        peaks[name] = max(new, old) if isinstance(new, int) else tuple(map(max, new, old))
    return replace(now, **peaks)


class Peaks:
    """The device has one set of peaks, which two start again: the fault profile at each step, and the script.

    Each sees its own: before either starts them again, the other's are kept.
    """

    def __init__(self, device: _native.Device) -> None:
        self._device = device
        self._read, self._reset = device.memory, device.reset_memory_peaks
        self._of_profile: MemoryStats | None = None
        self._of_script: MemoryStats | None = None

    def install(self, replaced: Replacements) -> None:
        """The profile reads the device; it gets its own peaks."""
        replaced.replace(self._device, "memory", lambda _: self._for_profile)
        replaced.replace(self._device, "reset_memory_peaks", lambda _: self._reset_for_profile)

    def _for_profile(self) -> MemoryStats:
        return _higher(self._read(), self._of_profile)

    def _reset_for_profile(self) -> None:
        self._of_script, self._of_profile = self.for_script(), None
        self._reset()

    def for_script(self) -> MemoryStats:
        """The device's memory, with the peaks since the script started them."""
        return _higher(self._read(), self._of_script)

    def reset_for_script(self) -> None:
        """Starts the script's peaks again from what is held now."""
        self._of_profile, self._of_script = self._for_profile(), None
        self._reset()


class MemoryFunctions:
    """The functions of `torch.cuda` that tell of memory; each takes a device, of which there is one."""

    def __init__(self, device: _native.Device) -> None:
        self.peaks = Peaks(device)
        self._info = device.info

    def statistics(self) -> dict[str, int]:
        """What `torch.cuda.memory_stats()` gives; torch's other keys are of its own allocator, which is not in use."""
        held = self.peaks.for_script()
        return {
            "allocated_bytes.all.current": held.requested_bytes,
            "allocated_bytes.all.peak": held.requested_peak_bytes,
            "reserved_bytes.all.current": held.reserved_bytes,
            "reserved_bytes.all.peak": held.reserved_peak_bytes,
            "allocation.all.current": held.live_allocations,
            "allocation.all.allocated": held.allocation_count,
            "allocation.all.freed": held.free_count,
        }

    def free_and_total(self) -> tuple[int, int]:
        """What is not occupied on the device, and its capacity, in bytes."""
        total_bytes = self._info().total_bytes
        return max(0, total_bytes - self.peaks.for_script().resident_bytes), total_bytes

    def summary(self) -> str:
        """One line for each number."""
        return "\n".join(f"{name}: {number:,}" for name, number in self.statistics().items())

    def functions(self) -> dict[str, Any]:
        """By name in `torch.cuda`."""
        of = {
            "memory_allocated": "allocated_bytes.all.current",
            "max_memory_allocated": "allocated_bytes.all.peak",
            "memory_reserved": "reserved_bytes.all.current",
            "max_memory_reserved": "reserved_bytes.all.peak",
            "memory_cached": "reserved_bytes.all.current",
            "max_memory_cached": "reserved_bytes.all.peak",
        }
        answers: dict[str, Any] = {name: lambda key=key: self.statistics()[key] for name, key in of.items()}
        resets = ("reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached")
        return {
            **answers,
            **dict.fromkeys(resets, self.peaks.reset_for_script),
            "memory_stats": self.statistics,
            "memory_summary": self.summary,
            "mem_get_info": self.free_and_total,
            "device_memory_used": lambda: self._info().total_bytes - self.free_and_total()[0],
            "set_per_process_memory_fraction": _refuse_fraction,
            "get_per_process_memory_fraction": lambda: 1.0,
        }


def _refuse_fraction() -> None:
    raise UntranslatedError(
        "torch.cuda.set_per_process_memory_fraction", "its memory is what --capacity says", "use --budget instead"
    )
