"""`torch.cuda.memory_allocated()` and its kin, answered from the device's own statistics.

Allocated is what tensors asked for; reserved is what the driver gave for them, and what is allocated at least: where
tensors are swapped out they take no device memory, but torch never reserves less than it allocates.
"""

import warnings
from typing import Any

from umadvise import _native
from umadvise.torch_seam.cuda_spellings.words import check_index, target_of
from umadvise.torch_seam.cuda_statistics import Totals, flat, nested
from umadvise.torch_seam.memory_peaks import Peaks


class MemoryFunctions:
    """The functions of `torch.cuda` that tell of memory; each takes a device, of which there is one."""

    def __init__(self, device: _native.Device) -> None:
        self.peaks = Peaks(device)
        self._before = Totals()
        self._info = device.info

    def nested(self) -> dict[str, Any]:
        """What `torch.cuda.memory_stats_as_nested_dict()` gives."""
        found = nested([self.peaks.for_script()], self._before)
        allocated, reserved = (found[name]["all"] for name in ("allocated_bytes", "reserved_bytes"))
        at_least = {when: max(allocated[when], reserved[when]) for when in ("current", "peak")}
        found["reserved_bytes"]["all"] = {**reserved, **at_least}
        return found

    def statistics(self) -> dict[str, int]:
        """What `torch.cuda.memory_stats()` gives."""
        return flat(self.nested())

    def reset_accumulated(self) -> None:
        """Counts what comes and goes from here on."""
        self._before = Totals.of([self.peaks.for_script()])

    def free_and_total(self) -> tuple[int, int]:
        """Free bytes of the device and its capacity, as `torch.cuda.mem_get_info()` gives them."""
        total_bytes = self._info().total_bytes
        return max(0, total_bytes - (self.peaks.for_script().held.resident_bytes or 0)), total_bytes

    def summary(self) -> str:
        """One line for each number that is not 0."""
        return "\n".join(f"{name}: {number:,}" for name, number in self.statistics().items() if number > 0)

    def set_fraction(self, fraction: float, device: Any = None) -> None:
        """`torch.cuda.set_per_process_memory_fraction()`, which is a limit that the command line sets here.

        Raises:
            ValueError: as torch, if it is no fraction.
        """
        target_of(device)
        if not 0 <= fraction <= 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        if fraction < 1:
            warnings.warn(
                f"torch.cuda.set_per_process_memory_fraction({fraction}) limits nothing on the emulated device: set "
                f"--budget {int(fraction * self._info().total_bytes)} instead",
                stacklevel=2,
            )

    def of_build(self) -> dict[str, Any]:
        """The functions by their names after `torch._C._cuda_`."""

        def of_the_device(answer: Any) -> Any:
            def told_the_device(device: Any = None) -> Any:
                check_index(device)
                return answer()

            return told_the_device

        return {
            "getAllocatorBackend": lambda: "umadvise",
            "getMemoryFraction": lambda _device=None: 1.0,
            "setMemoryFraction": self.set_fraction,
            "memoryStats": of_the_device(self.nested),
            "resetAccumulatedMemoryStats": of_the_device(self.reset_accumulated),
            "resetPeakMemoryStats": of_the_device(self.peaks.reset_for_script),
        }

    def functions(self) -> dict[str, Any]:
        """The functions by their names in `torch.cuda`."""
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
            "reset_accumulated_memory_stats": self.reset_accumulated,
            "memory_stats": self.statistics,
            "memory_stats_as_nested_dict": self.nested,
            "memory_summary": self.summary,
            "mem_get_info": self.free_and_total,
            "device_memory_used": lambda: self._info().total_bytes - self.free_and_total()[0],
        }
