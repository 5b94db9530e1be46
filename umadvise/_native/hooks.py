"""What needs torch's C++: calls into the hooks library (umadvise/_hooks/hooks.h).

Every function raises HooksUnavailableError where the extension cannot be compiled or loaded.
"""

import ctypes
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from umadvise._native import header
from umadvise._native.abi import Placement
from umadvise._native.device import Device
from umadvise._native.library import hooks_library, intern, string
from umadvise._native.structures import to_c
from umadvise.errors import NativeError
from umadvise.records.enums import Phase


def install_allocator() -> None:
    """Installs the routing CPU allocator in torch, once and for the life of the process."""
    hooks_library().um_hooks_allocator_install()


def hooks_path() -> Path:
    """The compiled extension's file, as it is loaded, for torch, which takes functions out of it by name."""
    return Path(hooks_library()._name)


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


def set_parts(parts: Callable[[Any], Sequence[int]]) -> None:
    """Sets what is asked which tensors a tensor is made of that is a Python object around others.

    Args:
        parts: given such a tensor, the addresses of the C++ tensors in it, which torch gives as `Tensor._cdata`.
    """

    def tell(tensor: int, out: int, capacity: int) -> int:
        found = parts(ctypes.cast(tensor, ctypes.py_object).value)[:capacity]
        for place, address in enumerate(found):
            (ctypes.c_void_p * capacity).from_address(out)[place] = address
        return len(found)

    _set_callback("parts", tell)


@contextmanager
def routed_outside_ops() -> Iterator[None]:
    """Memory that torch makes in this thread goes by its route outside of ops too, until the end of the `with`."""
    hooks_library().um_hooks_route_outside_ops(1)
    try:
        yield
    finally:
        hooks_library().um_hooks_route_outside_ops(0)


def _set_callback(name: str, function: Callable[..., int] | None) -> None:
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


def show(tensor: int) -> None:
    """Lets what a tensor shows of our memory move from now on, where no op has given it back.

    Args:
        tensor: address of the C++ tensor object, which torch gives as `torch.Tensor._cdata`.
    """
    hooks_library().um_hooks_show(tensor)


def interpose(device: Device | None) -> None:
    """Lets this thread's ops go through the interposer for a device; None ends it for this thread."""
    hooks_library().um_hooks_interpose(device.handle if device else None)


def work_beside() -> None:
    """Lets this thread's ops hold what they are given for as long as they run, beside the threads that interpose."""
    hooks_library().um_hooks_beside(1)


def follow_thread(on: bool) -> bool:
    """Makes this thread's ops those of the steps, or, where not `on`, those of the threads that interpose.

    Returns:
        Whether it could: not where this thread's ops are not seen.
    """
    return bool(hooks_library().um_hooks_follow(on))


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


def set_module(name: int) -> int:
    """Sets the interned name of the module whose forward runs in this thread; returns the previous one (0: none)."""
    return int(hooks_library().um_hooks_module_set(name))


@dataclass(frozen=True, slots=True)
class Fallbacks:
    """Ops that asked for memory, found no room, and ended all the same.

    Attributes:
        count: how many, since that was asked last.
        op: the one that asked for most.
        most_bytes: how much that was.
    """

    count: int
    op: str
    most_bytes: int


def fallbacks() -> Fallbacks | None:
    """Those of all threads since that was asked last; None: there were none."""
    name, most_bytes = ctypes.c_uint32(), ctypes.c_uint64()
    count = hooks_library().um_hooks_fallbacks(ctypes.byref(name), ctypes.byref(most_bytes))
    return Fallbacks(int(count), string(name.value), most_bytes.value) if count else None


def region(name: str, written: Sequence[int], *, gradients: bool) -> int:
    """What stands for a compiled graph in `region_functions`.

    Args:
        name: what recordings and reports call its runs.
        written: indices of the inputs that a run writes.
        gradients: it computes gradients, and may write whatever is no parameter.
    """
    return int(
        hooks_library().um_hooks_region(
            intern(name), (ctypes.c_uint32 * len(written))(*written), len(written), gradients
        )
    )


@functools.cache
def _tell_of_python(tensor: type, parameter: type) -> None:
    sample = tensor()
    hooks_library().um_hooks_python_set(id(tensor), id(parameter), object.__basicsize__, id(sample), sample._cdata)


def guard_exchange(table: int, tensor: type, parameter: type) -> None:
    """Has tensors stay whose addresses are asked for through DLPack's table of functions for C: for good.

    Args:
        table: address of torch's DLPackExchangeAPI, in memory that can be written.
        tensor: the class of tensors, from which one can be made.
        parameter: the class of parameters.

    Raises:
        NativeError: the table is of a version that is not known, or Python's tensors are not laid out as expected.
    """
    _tell_of_python(tensor, parameter)
    hooks_library().um_hooks_exchange_guard(table)


@functools.cache
def region_functions(tensor: type, parameter: type) -> tuple[Callable[[int, Any], int], Callable[[Any], None]]:
    """What begins a run of a compiled graph, and what ends it: um_hooks_region_begin and um_hooks_region_end.

    They are called from hot code, so they are ctypes' functions themselves.

    Args:
        tensor: the class of tensors, from which one can be made.
        parameter: the class of parameters.

    Raises:
        NativeError: Python's tensors are not laid out as expected.
    """
    _tell_of_python(tensor, parameter)
    library = ctypes.PyDLL(str(hooks_path()))  # whose functions are called with Python's lock
    begin, end = library.um_hooks_region_begin, library.um_hooks_region_end
    begin.argtypes, begin.restype = [ctypes.c_void_p, ctypes.py_object], ctypes.c_int32
    end.argtypes, end.restype = [ctypes.c_void_p], None
    return begin, end


def set_device_constructor(kind: type, on: bool) -> None:
    """Lets `torch.device(0)` be the GPU, and `torch.device(device)` that very object, while it is on.

    Args:
        kind: the class torch.device.
        on: False lets torch's own constructor work again.

    Raises:
        NativeError: this Python lays classes out in a way that is not known.
    """
    set_constructor = ctypes.PyDLL(str(hooks_path())).um_hooks_device_constructor_set  # called with Python's lock
    set_constructor.argtypes = [ctypes.py_object, ctypes.c_int32]
    if (status := set_constructor(kind, on)) != 0:
        raise NativeError(status, f"the constructor of {kind} was not found in this build of Python")


def extension_function(
    function: Callable[..., Any],
    name: str,
    *,
    prepare: Callable[..., tuple[list[Any], tuple[Any, ...], dict[str, Any]]],
    tensors_in: Callable[[Any], list[Any]],
    make_parts: Callable[[tuple[Any, ...]], tuple[Any, ...]],
    classes: tuple[type, type, type[Exception]],
) -> Any:
    """A builtin that calls a function which uses its tensors' memory by address: see `um_hooks_extension_function`.

    Args:
        function: what it calls.
        name: what recordings and reports call its calls.
        prepare: function of a call's arguments, and of the named ones where there are any: a list of the tensors in
            them, and both as they are passed on.
        tensors_in: function of a result: the tensors in it.
        make_parts: function of a tuple: the one that the builtin is to belong to.
        classes: the class of tensors, from which one can be made, that of parameters, and what is raised where there
            is no room.

    Raises:
        NativeError: Python's tensors are not laid out as expected.
    """
    tensor, parameter, out_of_memory = classes
    _tell_of_python(tensor, parameter)
    make = ctypes.PyDLL(str(hooks_path())).um_hooks_extension_function
    make.argtypes = [ctypes.py_object, ctypes.py_object, ctypes.c_char_p, ctypes.c_char_p]
    make.restype = ctypes.py_object
    parts = make_parts((function, intern(name), prepare, tensors_in, out_of_memory))
    module = getattr(function, "__module__", None) or name.partition("::")[0]
    return make(parts, module, function.__name__.encode(), (function.__doc__ or "").encode())


def region_runs() -> bool:
    """Whether a compiled graph runs in this thread, which was begun by `region_functions`."""
    return bool(hooks_library().um_hooks_region_runs())


def hooks_error() -> str:
    """Message of this thread's last failed call of the extension."""
    return str(hooks_library().um_hooks_last_error().decode(errors="replace"))
