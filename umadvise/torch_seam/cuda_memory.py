"""What torch asks its CUDA allocator about memory, answered from the devices of ours that torch's memory lies on.

With another allocator than its own torch raises an error to each of these questions. They are answered for the life of
the process, as the allocator stays; whoever was patched before, and plain memory, counts too.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from umadvise import _native
from umadvise.errors import NativeError
from umadvise.torch_seam.cuda_statistics import Nested, Totals, nested
from umadvise.torch_seam.memory_peaks import Peaks, Reading
from umadvise.torch_seam.replacements import Replacements
from umadvise.torch_seam.runtime import Runtime


class CudaMemory:
    """Answers to torch's questions about memory, for each GPU by torch's ordinal, in the whole process."""

    def __init__(self) -> None:
        self._peaks: dict[int, list[Peaks]] = {}
        self._before: dict[int, Totals] = {}

    def add(self, ordinal: int, peaks: Peaks) -> None:
        """Adds a device that torch's memory on a GPU comes from, from now on."""
        self._peaks.setdefault(ordinal, []).append(peaks)

    def _on(self, ordinal: int) -> list[tuple[Peaks | _native.Device, Reading]]:
        """All devices of ours on a GPU with what they hold; those that are closed and empty hold nothing."""
        found: list[tuple[Peaks | _native.Device, Reading]] = []
        for peaks in self._peaks.get(ordinal, []):
            with suppress(NativeError):
                found.append((peaks, peaks.for_script()))
        plain = _native.plain_cuda_device(ordinal)
        if plain is not None:
            found.append((plain, Reading(plain.memory(), plain.memory_history())))
        return found

    def statistics(self, ordinal: int) -> Nested:
        """Statistics of a GPU in the form of `torch.cuda.memory_stats_as_nested_dict()`."""
        return nested((reading for _, reading in self._on(ordinal)), self._before.get(ordinal, Totals()))

    def reset_peaks(self, ordinal: int) -> None:
        """Starts the script's peaks again from what is held now."""
        for device, _ in self._on(ordinal):
            if isinstance(device, Peaks):
                device.reset_for_script()
            else:
                device.reset_memory_peaks()

    def reset_accumulated(self, ordinal: int) -> None:
        """Starts the sums of what was allocated and freed again from here."""
        self._before[ordinal] = Totals.of(reading for _, reading in self._on(ordinal))

    def install(self, replaced: Replacements) -> None:
        """Replaces torch's functions about memory by answers from here."""
        answers: dict[Callable[[int], Any], tuple[str, str]] = {  # torch.accelerator asks the same in other words
            self.statistics: ("_cuda_memoryStats", "_accelerator_getDeviceStats"),
            self.reset_peaks: ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats"),
            self.reset_accumulated: ("_cuda_resetAccumulatedMemoryStats", "_accelerator_resetAccumulatedStats"),
        }
        for answer, names in answers.items():
            for name in names:
                replaced.put(torch._C, name, answer)
        # It asks torch's own allocator, which was never set up, whether there is anything to tell, or to give back.
        replaced.put(torch._C, "_accelerator_isAllocatorInitialized", lambda: torch.cuda.is_initialized())
        replaced.put(torch._C, "_accelerator_emptyCache", lambda: torch._C._cuda_emptyCache())


def free_and_total(device: _native.Device, budget_bytes: int | None) -> tuple[int, int]:
    """What `torch.cuda.mem_get_info()` says of a GPU that is in use.

    Args:
        device: the device in use.
        budget_bytes: what its tensors may take there; then the budget is all that there is, and free is what it leaves,
            as far as the GPU has it.
    """
    info = device.info()
    if budget_bytes is None:
        return info.free_bytes, info.total_bytes
    limit_bytes = min(budget_bytes, info.total_bytes)
    left_bytes = max(0, limit_bytes - (device.memory().resident_bytes or 0))
    return min(left_bytes, info.free_bytes), limit_bytes


def answer_free_memory(state: Runtime) -> None:
    """Lets `torch.cuda.mem_get_info()` tell what the budget leaves while a device is patched; torch tells of others."""

    def told(ordinal: int, original: Any, asked: Any) -> Any:
        return free_and_total(state.device, state.limit_bytes) if ordinal == state.ordinal else original(asked)

    def mem_get_info(original: Any, device: Any = None) -> Any:
        index = torch.cuda._utils._get_device_index
        ordinal = torch.cuda.current_device() if device is None else index(device, optional=True)
        return told(ordinal, original, device)

    for owner in (torch.cuda, torch.cuda.memory):
        state.replaced.around(owner, "mem_get_info", mem_get_info)
    get_memory_info = "_accelerator_getMemoryInfo"
    state.replaced.around(torch._C, get_memory_info, lambda original, ordinal: told(ordinal, original, ordinal))
