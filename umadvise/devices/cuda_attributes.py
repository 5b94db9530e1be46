"""Attributes of a CUDA device that matter here, by cuda.h's numbers (CUdevice_attribute), without a context on it."""

from enum import IntEnum

from umadvise import _native
from umadvise.errors import NativeError


class Attribute(IntEnum):
    """CU_DEVICE_ATTRIBUTE_..., in cuda.h's order."""

    INTEGRATED = 18
    PCI_BUS_ID = 33
    PCI_DEVICE_ID = 34
    PCI_DOMAIN_ID = 50
    COMPUTE_CAPABILITY_MAJOR = 75
    COMPUTE_CAPABILITY_MINOR = 76
    MANAGED_MEMORY = 83
    PAGEABLE_MEMORY_ACCESS = 88
    CONCURRENT_MANAGED_ACCESS = 89
    PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES = 100
    DIRECT_MANAGED_MEM_ACCESS_FROM_HOST = 101
    VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102
    HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 141


def read(ordinal: int, attribute: Attribute) -> int | None:
    """Its value; None where the driver is too old to know it, or does not answer."""
    try:
        return _native.cuda_attribute(ordinal, attribute)
    except NativeError:
        return None


def pci_address(ordinal: int) -> str | None:
    """The slot of a device as NVML writes it, such as "00000000:41:00.0"; None where the driver does not tell."""
    parts = [read(ordinal, each) for each in (Attribute.PCI_DOMAIN_ID, Attribute.PCI_BUS_ID, Attribute.PCI_DEVICE_ID)]
    known = [part for part in parts if part is not None]
    return "{:08x}:{:02x}:{:02x}.0".format(*known) if len(known) == len(parts) else None
