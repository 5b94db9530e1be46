"""Allocations, and where torch allocates from."""

import ctypes

from umadvise._native.abi import Allocation, Route, Status
from umadvise._native.library import core_library, intern
from umadvise._native.structures import filled, structure, to_c
from umadvise.errors import NativeError
from umadvise.records.enums import Role


def free(address: int) -> bool:
    """Frees an allocation of ours; False when the address is foreign."""
    return bool(core_library().um_free(address))


def owns(address: int) -> bool:
    """Whether the address lies in the range of one of our devices."""
    return bool(core_library().um_owns(address))


def set_thread_route(route: Route) -> None:
    """Sets where this thread's torch allocations go."""
    core_library().um_route_set_thread(ctypes.byref(to_c(route)))


def lease_routes() -> int:
    """Ends what threads' routes were lent until now; returns the number of the next lease."""
    return int(core_library().um_route_lease())


def thread_route() -> Route:
    """This thread's own route."""
    return filled(Route, core_library().um_route_get_thread)


def set_process_route(route: Route) -> None:
    """Sets where the torch allocations go of threads without a route of their own."""
    core_library().um_route_set_process(ctypes.byref(to_c(route)))


def allocation_at(address: int) -> Allocation | None:
    """The allocation that contains the address, None when there is none."""
    try:
        return filled(Allocation, lambda out: core_library().um_allocation_at(address, out))
    except NativeError as error:
        if error.code == Status.INVALID_ARGUMENT:
            return None
        raise


def label(address: int, role: Role, name: str = "") -> None:
    """Sets the finer role and, when not empty, the name of the allocation at the address."""
    core_library().um_allocation_label(address, role, intern(name))


def copy_to_host(host_address: int, device_address: int, size_bytes: int) -> None:
    """Copies out of an allocation of ours, synchronously, in any state of residency."""
    core_library().um_copy_to_host(host_address, device_address, size_bytes)


def prefetch(address: int, size_bytes: int, *, to_host: bool = False, stream: int = 0) -> None:
    """Migrates a range to the device or to the host."""
    core_library().um_prefetch(address, size_bytes, to_host, stream or None)


def export(address: int) -> None:
    """Pins the whole allocation at the address on the device, and makes it writable. On CUDA: chunked memory only."""
    core_library().um_export(address, None)


def export_lasting(address: int) -> None:
    """Pins an allocation until it is freed, or until the oldest of those pinned so must make room: it may move then."""
    core_library().um_export_lasting(address)


def shown_address(address: int) -> int:
    """The address that an allocation shows for its life in place of this one, to be compared with others."""
    shown = ctypes.c_void_p()
    core_library().um_address_shown(address, ctypes.byref(shown))
    return shown.value or 0


def show_storage(address: int, storage: int) -> None:
    """Lets an allocation move from now on that a storage shows and no op has given back.

    Args:
        address: present address of the allocation.
        storage: address of the C++ storage object, which torch gives as `torch.UntypedStorage._cdata`.
    """
    core_library().um_show(ctypes.byref(structure("um_shown")(address, storage)))


def release_export(address: int) -> None:
    """Ends the pinning by one call of `export`."""
    core_library().um_export_release(address)
