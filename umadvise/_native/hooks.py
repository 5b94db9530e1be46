"""What needs torch's C++: calls into the hooks library (umadvise/_hooks/hooks.h).

Every function raises HooksUnavailableError where the extension cannot be compiled or loaded.
"""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from umadvise._native import header
from umadvise._native.abi import Placement
from umadvise._native.device import Device
from umadvise._native.library import hooks_library, intern, string
from umadvise._native.structures import to_c
from umadvise.records.enums import Phase


def install_allocator() -> None:
    """Installs the routing CPU allocator in torch, once and for the life of the process."""
    hooks_library().um_hooks_allocator_install()


def hooks_path() -> Path:
    """The compiled extension's file, for torch, which takes functions out of it by name."""
    from umadvise._hooks import loader

    return loader.compiled_library()


def hooks_function(name: str) -> int:
    """Address of one of the extension's functions, for torch, which calls it itself."""
    return ctypes.cast(getattr(hooks_library(), name), ctypes.c_void_p).value or 0


def serve_cuda(ordinal: int | None) -> None:
    """Says for which CUDA device the routes are meant from now on: see um_hooks_cuda_serve."""
    hooks_library().um_hooks_cuda_serve(-1 if ordinal is None else ordinal)


def plain_cuda_device(ordinal: int) -> Device | None:
    """The device that torch's plain memory on a CUDA device comes from; None as long as it asked for none."""
    handle = hooks_library().um_hooks_cuda_plain_device(ordinal)
    return Device(handle) if handle else None


_called: dict[str, Any] = {}  # by its name, as long as the library may call it


def set_rescuer(rescuer: Callable[[], bool] | None) -> None:
    """Sets what is asked when chunks have no room for an op (see um_hooks_rescuer_set); None: such ops are refused."""
    _set_callback("rescuer", rescuer)


def set_edge(edge: Callable[[], int] | None) -> None:
    """Sets what is called where a step begins that was found by its repetition, at an op (see um_hooks_edge_set)."""
    _set_callback("edge", edge)


def _set_callback(name: str, function: Callable[[], int] | None) -> None:
    callback = header.hooks().types[f"um_hooks_{name}"]
    before, _called[name] = _called.get(name), callback() if function is None else callback(function)
    getattr(hooks_library(), f"um_hooks_{name}_set")(_called[name])
    del before


def adopt_storage(storage: int, device: Device, placement: Placement) -> None:
    """Moves a live torch storage's bytes into our memory; every tensor on it follows.

    Args:
        storage: address of the C++ storage object, which torch gives as `torch.UntypedStorage._cdata`.
        device: open device that the bytes go to.
        placement: kind of memory, role and advice of the new allocation.

    Raises:
        NativeError: it does not fit, or the storage is no CPU storage with bytes of its own.
    """
    hooks_library().um_hooks_storage_adopt(storage, device.handle, ctypes.byref(to_c(placement)))


def give_back_storage(storage: int) -> None:
    """Moves a storage's bytes out of our memory into an ordinary CPU allocation; nothing for foreign storages."""
    hooks_library().um_hooks_storage_give_back(storage)


def interpose(device: Device | None) -> None:
    """Lets this thread's ops go through the interposer for a device; None ends it for this thread."""
    hooks_library().um_hooks_interpose(device.handle if device else None)


def work_beside() -> None:
    """Lets this thread's ops hold what they are given for as long as they run, beside the threads that interpose."""
    hooks_library().um_hooks_beside(1)


def set_split(limit_bytes: int | None, unit_bytes: int = 1) -> None:
    """Splits ops on lists that work element by element, so that each part keeps a limit: see um_hooks_split_set.

    Args:
        limit_bytes: the most bytes that the storages of one op may take together; None lets ops run whole again.
        unit_bytes: size of the pieces in which memory is counted: a storage above half of it counts in whole units, a
            smaller one in parts of one.

    Raises:
        NativeError: a unit of 0 bytes.
    """
    hooks_library().um_hooks_split_set(limit_bytes or 0, unit_bytes)


def split_limit(device: Device) -> int | None:
    """The limit that `set_split` has set, or less where the device has less room; None: no limit."""
    return int(hooks_library().um_hooks_split_limit(device.handle)) or None


def set_phase(phase: Phase) -> None:
    """Sets the phase that this thread's ops outside of backward nodes belong to from now on."""
    hooks_library().um_hooks_phase_set(phase)


def set_module(module: str) -> str:
    """Sets the module whose forward runs in this thread from now on; returns the previous one."""
    return string(int(hooks_library().um_hooks_module_set(intern(module))))
