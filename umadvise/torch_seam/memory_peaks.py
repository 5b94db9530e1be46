"""One set of peaks on a device, and two who start them again: the fault profile at each step, and the script.

Each sees its own: before either starts them again, the other's are kept.
"""

from dataclasses import dataclass, replace

from umadvise import _native
from umadvise._native.abi import MemoryHistory
from umadvise.records.counters import MemoryStats
from umadvise.records.peaks import later
from umadvise.torch_seam.replacements import Replacements


@dataclass(frozen=True, slots=True)
class Reading:
    """What a device holds, and what was allocated and freed in it."""

    held: MemoryStats
    history: MemoryHistory

    def higher(self, before: "Reading | None") -> "Reading":
        """This one with the higher peaks of two."""
        if before is None:
            return self
        peak = max(before.history.live_allocations_peak, self.history.live_allocations_peak)
        return Reading(later(before.held, self.held), replace(self.history, live_allocations_peak=peak))


class Peaks:
    """Two sets of peaks of one device's memory: the fault profile's and the script's."""

    def __init__(self, device: _native.Device) -> None:
        self._device = device
        self._held, self._reset = device.memory, device.reset_memory_peaks
        self._of_profile: Reading | None = None
        self._of_script: Reading | None = None

    def install(self, replaced: Replacements) -> None:
        """Gives the fault profile peaks of its own."""
        replaced.put(self._device, "memory", lambda: self._for_profile().held)
        replaced.put(self._device, "reset_memory_peaks", self._reset_for_profile)
        replaced.put(self._device, "peaks_began_within", lambda: self._of_profile is not None)

    def _read(self) -> Reading:
        return Reading(self._held(), self._device.memory_history())

    def _for_profile(self) -> Reading:
        return self._read().higher(self._of_profile)

    def _reset_for_profile(self) -> None:
        self._of_script, self._of_profile = self.for_script(), None
        self._reset()

    def for_script(self) -> Reading:
        """The device's memory, with the peaks since the script started them."""
        return self._read().higher(self._of_script)

    def reset_for_script(self) -> None:
        """Starts the script's peaks again from what is held now."""
        self._of_profile, self._of_script = self._for_profile(), None
        self._reset()
