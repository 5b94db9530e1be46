"""The machine below Python: operating system, memory, and NVIDIA's hardware as the kernel sees it."""

import os
import platform
import re
from dataclasses import dataclass, field
from pathlib import Path

from umadvise.doctor.records import Check
from umadvise.records.units import format_bytes

ROOT = Path("/")
"""Under which /proc, /sys and /dev lie."""

_NVIDIA = "0x10de"  # PCI vendor
_DISPLAY = "0x03"  # PCI class of GPUs, with or without a monitor
_LEAST_BYTES = 2 << 30


@dataclass(frozen=True)
class Machine:
    """What the kernel tells."""

    root: Path = field(default_factory=lambda: ROOT)
    system: str = field(default_factory=platform.system)
    release: str = field(default_factory=platform.release)
    architecture: str = field(default_factory=platform.machine)

    def text(self, path: str) -> str:
        """A file's text; empty where it cannot be read."""
        try:
            return (self.root / path).read_text(errors="replace")
        except OSError:
            return ""

    @property
    def is_wsl(self) -> bool:
        """Whether Linux runs under Windows (WSL), which has a driver and unified memory of its own kind."""
        return "microsoft" in self.text("proc/version").lower() or (self.root / "dev/dxg").exists()

    @property
    def card_count(self) -> int:
        """NVIDIA's GPUs on the PCI bus, with or without a driver."""
        folders = (self.root / "sys/bus/pci/devices").glob("*")
        return sum(
            (folder / "vendor").is_file()
            and self.text(f"{folder}/vendor").strip() == _NVIDIA
            and self.text(f"{folder}/class").startswith(_DISPLAY)
            for folder in folders
        )

    @property
    def kernel_module(self) -> str | None:
        """Version of NVIDIA's kernel module, with "open" where it is the open one; None where it is not loaded."""
        first = self.text("proc/driver/nvidia/version").partition("\n")[0]
        version = re.search(r"\b\d{3,}\.\d+(\.\d+)*\b", first)
        return None if version is None else version[0] + (" (open)" if "open" in first.lower() else "")

    @property
    def profiling_needs_admin(self) -> bool | None:
        """Whether performance counters are kept from ordinary users; None where the module does not tell."""
        found = re.search(r"RmProfilingAdminOnly:\s*(\d)", self.text("proc/driver/nvidia/params"))
        return None if found is None else found[1] == "1"

    @property
    def has_device_nodes(self) -> bool:
        """Whether /dev has NVIDIA's devices, and this user may open them."""
        return os.access(self.root / "dev/nvidiactl", os.R_OK | os.W_OK)

    @property
    def has_fault_counters_node(self) -> bool:
        """Whether /dev has what CUPTI reads page faults from, and this user may open it."""
        return os.access(self.root / "dev/nvidia-uvm-tools", os.R_OK | os.W_OK)

    def memory_bytes(self, entry: str) -> int | None:
        """A line of /proc/meminfo, such as MemTotal."""
        found = re.search(rf"^{entry}:\s*(\d+) kB", self.text("proc/meminfo"), re.MULTILINE)
        return None if found is None else int(found[1]) << 10


def check_system(machine: Machine) -> Check:
    """Operating system and processor."""
    name = f"{machine.system} {machine.release}, {machine.architecture}"
    facts = {"wsl": machine.is_wsl}
    if machine.system != "Linux":
        remedy = "use Linux for training, with or without a GPU; planning and reporting need none"
        return Check("system", "limited", f"{name}: umadvise's core is for Linux", remedy)
    if machine.architecture != "x86_64":
        found, remedy = f"{name}: the emulated device is for x86-64", "train on a GPU, or on an x86-64 machine"
        return Check("system", "limited", found, remedy, facts)
    if machine.is_wsl:
        found = (
            f"{name} under Windows (WSL): its driver pages no unified memory and takes neither advice nor prefetches"
        )
        remedy = "use the emulated device here, and Linux itself for a budget on the GPU"
        return Check("system", "limited", found, remedy, facts)
    return Check("system", "ok", name, facts=facts)


def check_memory(machine: Machine) -> Check:
    """The host's memory, which is where everything goes that leaves a device."""
    total, available = machine.memory_bytes("MemTotal"), machine.memory_bytes("MemAvailable")
    facts = {"total_bytes": total, "available_bytes": available}
    found = f"{format_bytes(available)} of {format_bytes(total)} available"
    if available is not None and available < _LEAST_BYTES:
        remedy = "end other programs: what leaves a device goes to host memory"
        return Check("host memory", "limited", found, remedy, facts)
    return Check("host memory", "ok", found, facts=facts)


def check_cards(machine: Machine) -> Check:
    """GPUs as the bus has them."""
    count = machine.card_count
    facts = {"pci_cards": count}
    if machine.is_wsl and count == 0:
        return Check("GPU", "ok", "whatever Windows passes on (see the driver)", facts=facts)
    if count == 0:
        remedy = "train on the emulated device, or move to a machine with an NVIDIA GPU"
        return Check("GPU", "missing", "no NVIDIA GPU on this machine", remedy, facts)
    return Check("GPU", "ok", f"{count} from NVIDIA on the PCI bus", facts=facts)
