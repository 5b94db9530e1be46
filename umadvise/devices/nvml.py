"""What NVML tells of a GPU through nvidia-ml-py: free memory, the link and what goes over it, and who else is there.

The package is optional (`pip install umadvise[gpu]`), and NVML needs no CUDA context, so it may be asked before torch
sets CUDA up. What it does not tell is None; that it is not there at all is an error whose text is the reason.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from umadvise.errors import NvmlUnavailableError

_SENT, _RECEIVED = 0, 1  # nvml.h, nvmlPcieUtilCounter_t
_COUNTERS = {"h2d_bytes_per_s": _RECEIVED, "d2h_bytes_per_s": _SENT}  # the card's transmissions (TX) go to the host
_KILOBYTE = 1000  # nvml.h of nvmlDeviceGetPcieThroughput: "throughput in KB/s"

# nvml.h, nvmlGpuVirtualizationMode_t
_VIRTUALIZATION = {0: None, 1: "passthrough", 2: "vgpu", 3: "host of vGPUs", 4: "host of shared GPUs"}


@dataclass(frozen=True, slots=True)
class CardMemory:
    """Memory of the whole card in bytes, whoever uses it.

    Attributes:
        total_bytes: all of it.
        free_bytes: what nobody holds now.
    """

    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Process:
    """A process that computes on the card; None where the driver does not tell how much it holds (WSL, some vGPUs)."""

    process_id: int
    used_bytes: int | None


class Card:
    """One GPU."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle

    def ask(self, function: str, *arguments: Any) -> Any | None:
        """What a function of NVML says of the card; None where card, driver or package does not support it."""
        try:
            return getattr(self._nvml, function)(self._handle, *arguments)
        except (self._nvml.NVMLError, AttributeError):
            return None

    def number(self, function: str, *arguments: Any) -> int | None:
        """What a function of NVML says of the card where that is a number; None where it is not supported."""
        answer = self.ask(function, *arguments)
        return None if answer is None else int(answer)

    @property
    def name(self) -> str | None:
        """Its name, as CUDA has it too."""
        name = self.ask("nvmlDeviceGetName")
        return name.decode(errors="replace") if isinstance(name, bytes) else name

    def memory(self) -> CardMemory | None:
        """The card's memory and what is free of it now, in bytes."""
        found = self.ask("nvmlDeviceGetMemoryInfo")
        return None if found is None else CardMemory(int(found.total), int(found.free))

    def link(self) -> dict[str, int | None]:
        """`generation` and `width` of the link, and the most that this card in this slot can do (`max_`).

        An idle card goes down to generation 1 to save power, and up again under load; a width below the most stays.
        """
        return {
            "generation": self.number("nvmlDeviceGetCurrPcieLinkGeneration"),
            "width": self.number("nvmlDeviceGetCurrPcieLinkWidth"),
            "max_generation": self.number("nvmlDeviceGetMaxPcieLinkGeneration"),
            "max_width": self.number("nvmlDeviceGetMaxPcieLinkWidth"),
        }

    def throughput(self) -> dict[str, int | None]:
        """`h2d_bytes_per_s` and `d2h_bytes_per_s` of the last 20 ms, of both or of none; takes some 40 ms."""
        told = {way: self.number("nvmlDeviceGetPcieThroughput", counter) for way, counter in _COUNTERS.items()}
        known = {way: number * _KILOBYTE for way, number in told.items() if number is not None}
        return {**known} if len(known) == len(told) else dict.fromkeys(told)

    def processes(self) -> list[Process] | None:
        """Who computes on it, largest first; inside a container often nobody is to be seen."""
        found = self.ask("nvmlDeviceGetComputeRunningProcesses")
        if found is None:
            return None
        processes = [Process(int(each.pid), each.usedGpuMemory) for each in found]
        return sorted(processes, key=lambda process: -(process.used_bytes or 0))

    def in_mig_mode(self) -> bool | None:
        """Whether the card is divided into instances (MIG)."""
        modes = self.ask("nvmlDeviceGetMigMode")
        return None if modes is None else modes[0] == 1  # NVML_FEATURE_ENABLED

    def virtualization(self) -> str | None:
        """How a hypervisor gives the card out: "passthrough", "vgpu", "host of ..."; None where none does."""
        mode = self.number("nvmlDeviceGetVirtualizationMode")
        return None if mode is None else _VIRTUALIZATION.get(mode, f"mode {mode}")


class Nvml:
    """NVML, started."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def driver_version(self) -> str | None:
        """Version of the driver's package, such as "595.45.04"."""
        try:
            version = self._module.nvmlSystemGetDriverVersion()
        except self._module.NVMLError:
            return None
        return version.decode(errors="replace") if isinstance(version, bytes) else str(version)

    def card_at(self, pci_address: str) -> Card | None:
        """The card in a slot.

        NVML numbers cards by slot and CUDA by speed, or by CUDA_VISIBLE_DEVICES: only the slot names the same card.

        Args:
            pci_address: domain, bus and device, such as "00000000:41:00.0".
        """
        try:
            return Card(self._module, self._module.nvmlDeviceGetHandleByPciBusId(pci_address))
        except self._module.NVMLError:
            return None

    def cards(self) -> list[Card]:
        """All cards of the machine, in the order of their slots, CUDA_VISIBLE_DEVICES or not."""
        try:
            count = self._module.nvmlDeviceGetCount()
            handles = [self._module.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        except self._module.NVMLError:
            return []
        return [Card(self._module, handle) for handle in handles]


def _module() -> ModuleType:
    try:
        module = importlib.import_module("pynvml")
    except ImportError:
        raise NvmlUnavailableError("nvidia-ml-py is not installed (pip install nvidia-ml-py)") from None
    if not hasattr(module, "nvmlInit"):
        raise NvmlUnavailableError(
            "another package calls itself pynvml: pip uninstall it, then pip install nvidia-ml-py"
        )
    return module


@contextmanager
def opened() -> Iterator[Nvml]:
    """NVML while the `with` lasts.

    Raises:
        NvmlUnavailableError: the package is missing, or there is no driver to talk to.
    """
    module: Any = _module()
    try:
        module.nvmlInit()
    except module.NVMLError as error:
        raise NvmlUnavailableError(f"NVML does not start: {error}") from None
    try:
        yield Nvml(module)
    finally:
        module.nvmlShutdown()
