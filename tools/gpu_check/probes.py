"""What decides how umadvise should work on a driver, in parts: `python probes.py cuda PART`.

No part but the two that count faults needs more than Python and the driver.
"""

import ctypes
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import parts
import probe_chunks
import probe_host
import probe_launches
import probe_managed
from driver import RawDriver
from memory import MappedChunks
from probe_calls import BusyCalls

ATTRIBUTES = {
    18: "integrated",
    75: "compute capability, major",
    76: "compute capability, minor",
    83: "managed memory",
    89: "concurrent managed access",
    100: "pageable memory by the host's page tables",
    102: "virtual memory management",
    134: "NUMA node of the host",
    141: "virtual memory management of the host's memory",
    145: "host allocation by DMA buffers",
}
"""Numbers of CUdevice_attribute."""
_NODES = ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
_SMI_LINES = ("Driver Version", "CUDA Version", "Persistence Mode", "Addressing Mode", "MIG", "Current", "CC ", "Conf")


def attributes(kind: str) -> Any:
    """The device, what it says it can do, and the machine around it."""
    driver = RawDriver(kind)
    name = ctypes.create_string_buffer(256)
    driver.call("cuDeviceGetName", name, 256, driver.device)
    return {
        "name": name.value.decode(),
        "driver_version": driver.version,
        "missing": driver.missing,
        "attributes": {f"{number}: {what}": driver.attribute(number) for number, what in ATTRIBUTES.items()},
        "free_bytes": driver.free_bytes(),
        "granularity_bytes": MappedChunks(driver).granularity(),
        "device_nodes": {node: Path("/dev", node).exists() for node in _NODES},
        "numa_nodes_online": _text("/sys/devices/system/node/online"),
        "kernel_module": _text("/proc/driver/nvidia/version"),
        "module_parameters": _text("/proc/driver/nvidia/params"),
        "nvidia_smi": _nvidia_smi(),
    }


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _nvidia_smi() -> list[str] | str:
    """Persistence, ECC, confidential computing; or why there is nothing."""
    try:
        ended = subprocess.run(["nvidia-smi", "-q"], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return [" ".join(line.split()) for line in ended.stdout.splitlines() if any(word in line for word in _SMI_LINES)]


PARTS: dict[str, Callable[[str], Any]] = {
    "attributes": attributes,
    "launches_beside": probe_launches.beside,
    "aliased": probe_chunks.aliased,
    "busy_calls": lambda kind: BusyCalls(kind).measured(),
    "several_mappings": probe_chunks.several,
    "layout": probe_chunks.layout,
    "prefetches": probe_managed.prefetches,
    "discards": probe_managed.discards,
    "pinned": probe_host.pinned,
    "registered": probe_host.registered,
    "bandwidth": probe_host.bandwidth,
    "events": probe_host.events,
    "counters_first": partial(probe_managed.counted, allocated_first=False),
    "memory_first": partial(probe_managed.counted, allocated_first=True),
    "host_numa": probe_chunks.host_numa,
    "host_numa_copies": probe_chunks.host_numa_copies,
}
"""In order: what may die or hang comes last."""


if __name__ == "__main__":
    sys.exit(parts.main(PARTS))
