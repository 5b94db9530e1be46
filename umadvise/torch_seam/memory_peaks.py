"""One set of peaks on a device, and two who start them again: the fault profile at each step, and the script.

Each sees its own: before either starts them again, the other's are kept.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from umadvise import _native
from umadvise._native.abi import MemoryHistory, MemoryStats
from umadvise.torch_seam.replacements import Replacements

Record = TypeVar("Record", MemoryStats, MemoryHistory)


def _higher(now: Record, before: Record) -> Record:
    """A reading with the higher peaks of two."""
    peaks: dict[str, Any] = {}
    for name in (field.name for field in fields(now) if "peak" in field.name):
        new, old = getattr(now, name), getattr(before, name)
        peaks[name] = max(new, old) if isinstance(new, int) else tuple(map(max, new, old))
    return replace(now, **peaks)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a device holds, and what came and went."""

    held: MemoryStats
    history: MemoryHistory

    def higher(self, before: "Reading | None") -> "Reading":
        """This one with the higher peaks of two."""
        if before is None:
            return self
        return Reading(_higher(self.held, before.held), _higher(self.history, before.history))


class Peaks:
    """The two views of a device's memory."""

    def __init__(self, device: _native.Device) -> None:
        self._device = device
        self._held, self._reset = device.memory, device.reset_memory_peaks
        self._of_profile: Reading | None = None
        self._of_script: Reading | None = None

    def install(self, replaced: Replacements) -> None:
        """The profile reads the device; it gets its own peaks."""
        replaced.replace(self._device, "memory", lambda _: lambda: self._for_profile().held)
        replaced.replace(self._device, "reset_memory_peaks", lambda _: self._reset_for_profile)

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
