"""What this machine has, before a device is open."""

import ctypes

from umadvise._native.abi import CallCount, CudaDevice, CuptiLibrary
from umadvise._native.library import core_library
from umadvise._native.structures import each, filled, known, read


def cuda_unavailable_reason() -> str | None:
    """None when libcuda is usable here, else the reason it is not."""
    reason = core_library().um_cuda_unavailable_reason()
    return reason.decode(errors="replace") if reason else None


def cuda_device(ordinal: int) -> CudaDevice:
    """What the driver says of a device, without a context on it.

    Raises:
        NativeError: the driver is not usable, or has no such device.
    """
    return filled(CudaDevice, lambda out: core_library().um_cuda_describe(ordinal, out))


def cuda_attribute(ordinal: int, attribute: int) -> int | None:
    """Value of a CUdevice_attribute of a device; None for one that the driver does not know.

    Raises:
        NativeError: the driver is not usable, or has no such device.
    """
    value = ctypes.c_int32()
    core_library().um_cuda_attribute(ordinal, attribute, ctypes.byref(value))
    return known(value.value)


def cupti_library() -> CuptiLibrary:
    """The libcupti that counters of a CUDA device come from.

    Raises:
        NativeError: there is none, or it is too old; the message says what to do.
    """
    return filled(CuptiLibrary, core_library().um_cupti_describe)


def share_host(processes: int) -> None:
    """Says how many processes of one training divide the host's memory: each has an equal part from now on."""
    core_library().um_host_shared_set(processes)


def set_most_managed(most_bytes: int) -> None:
    """Limits the CUDA managed memory of the process, in bytes; 0: what host and device had free at opening."""
    core_library().um_most_managed_set(most_bytes)


def claim_signals(*, chosen: bool = False) -> bool:
    """Puts the emulated device's SIGSEGV handler back on top; returns whether another one had taken its place.

    Args:
        chosen: the user has just set that one, so that raised signals are meant for it.
    """
    return bool(core_library().um_emulated_claim_signals(chosen))


def cuda_calls() -> list[CallCount]:
    """What the core has called of libcuda since this process began."""
    return [read(CallCount, count) for count in each("um_call_count", core_library().um_cuda_calls)]
