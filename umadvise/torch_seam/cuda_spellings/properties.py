"""`torch.cuda.get_device_properties()` of the emulated device."""

import os
from dataclasses import dataclass
from typing import Any

from umadvise.errors import UntranslatedError

CAPABILITY = (8, 0)
"""What scripts ask before they use bfloat16, which every CPU computes in."""
UNKNOWN = (
    *("L2_cache_size", "clock_rate", "gcnArchName", "memory_bus_width", "memory_clock_rate", "pci_bus_id"),
    *("pci_device_id", "pci_domain_id", "uuid"),
)
"""Of torch's: facts of one card, which the emulated device is not."""


class UnknownPropertyError(UntranslatedError, AttributeError):
    """A property that no emulated device has: `hasattr` and `getattr` with a default see that it is not there."""


@dataclass(frozen=True)
class EmulatedProperties:
    """The properties. Limits of kernels are those of the capability.

    Source: CUDA C++ Programming Guide, Technical Specifications per Compute Capability.
    """

    name: str
    total_memory: int
    major: int = CAPABILITY[0]
    minor: int = CAPABILITY[1]
    multi_processor_count: int = os.cpu_count() or 1
    is_integrated: bool = False
    is_multi_gpu_board: bool = False
    warp_size: int = 32
    max_threads_per_block: int = 1024
    max_threads_per_multi_processor: int = 2048
    regs_per_multiprocessor: int = 64 << 10
    shared_memory_per_block: int = 48 << 10
    shared_memory_per_block_optin: int = 163 << 10
    shared_memory_per_multiprocessor: int = 164 << 10

    def __getattr__(self, name: str) -> Any:
        """Refuses the facts of one card by their names.

        Raises:
            UnknownPropertyError: it is one.
            AttributeError: torch has no such property either.
        """
        if name in UNKNOWN:
            raise UnknownPropertyError(
                f"torch.cuda.get_device_properties().{name}", "it is a fact of one card", "use a value of your own"
            )
        raise AttributeError(name)
