"""The doors through which an address leaves torch: numpy, DLPack, `data_ptr`, files.

The kernel's own accesses (`write(2)` from a tensor, `read(2)` into one) raise no SIGSEGV but fail with EFAULT, which no
GPU tensor does. So whoever asks for an address gets one whose pages are resident, writable and pinned: for the life of
a numpy array or of what torch makes of a DLPack capsule, or of the storage where the export's end cannot be seen
(`data_ptr`, DLPack for others), except that the oldest of those are unpinned when memory runs out: a swapped tensor
then moves again. The address stays the storage's for life, as programs compare addresses too: nothing else is mapped
there while the storage is evicted. Where torch itself hands bytes to the kernel, it gets a
copy in ordinary memory, and so does safetensors, which asks for the addresses of a whole model before it writes. All
else that runs in this process (item, print, comparisons) finds the bytes where the tensor is now, or faults and is
served.
"""

import ctypes
import importlib
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from umadvise import _native
from umadvise._native.abi import Status
from umadvise.errors import BudgetError, NativeError
from umadvise.torch_seam import signals
from umadvise.torch_seam.placement import host_storage, to_host
from umadvise.torch_seam.replacements import Replacements
from umadvise.torch_seam.runtime import HOST, Runtime, address_of, routed, storage_address, storage_of


def _export(address: int, export: Callable[[int], None] = _native.export) -> bool:
    """Pins the allocation at an address; False where it needs no pin: foreign memory, and on CUDA all but chunks.

    Raises:
        BudgetError: it does not fit on the device beside what is pinned already.
    """
    if not _native.owns(address):
        return False
    try:
        export(address)
    except NativeError as error:
        if error.code == Status.UNSUPPORTED:
            return False
        if error.code != Status.OUT_OF_DEVICE_MEMORY:
            raise
        raise BudgetError(
            f"no room for a tensor whose address is asked for: {error.message}. "
            "Use `.cpu()` to get a copy in ordinary memory instead"
        ) from error
    return True


def _export_for_life(shown: torch.Tensor | torch.UntypedStorage) -> None:
    """Pins a storage once, however often it is asked for, until it is freed or memory runs out."""
    storage = storage_of(shown) if isinstance(shown, torch.Tensor) else shown
    address = storage_address(storage) if storage is not None else 0
    if storage is not None and _native.owns(address):
        # An allocation that no op has seen would change its address with its first op.
        _native.show_storage(address, storage._cdata)
        _export(address, _native.export_lasting)


@contextmanager
def held(*tensors: torch.Tensor) -> Iterator[None]:
    """Keeps tensors on the device, each at one address, for code that reads or writes them but is no op of torch.

    A C++ extension that is called with a tensor and launches a kernel on its `data_ptr<T>()` is such code. In the block
    none of them moves, and what is written there is not lost: addresses are good that were asked for inside it. On CUDA
    let it end when the kernels are done (`torch.cuda.synchronize()`), unless they run in the stream that is current.

    Args:
        tensors: any; those that are not on a device of umadvise need nothing.

    Raises:
        BudgetError: they do not fit on the device together.
    """
    with ExitStack() as stack:
        for tensor in tensors:
            if _export(address_of(tensor)):
                stack.callback(_release, address_of(tensor))  # on the device it may have another one than before
        yield


def _release(address: int) -> None:
    if _native.allocation_at(address) is not None:
        _native.release_export(address)


_COMPARERS = {
    "accelerate.utils.modeling",
    "huggingface_hub.serialization._torch",
    "torch._tensor",
    "torch.distributed._state_dict_utils",
    "torch.distributed.fsdp._flat_param",
    "torch.distributed.fsdp._fully_shard._fsdp_param",
    "torch.distributed.fsdp._runtime_utils",
    "torch.distributed.utils",
    "torch.nn.modules.rnn",
    "torch.serialization",
}
"""Modules that ask for an address only to compare it, as in deepcopy and save: that must not pin a model."""


def _asker() -> str:
    """The module that asks the door which calls this, beyond torch's typed storages, which ask for somebody else."""
    frame: FrameType | None = sys._getframe(3)
    while frame is not None and frame.f_globals.get("__name__") == "torch.storage":
        frame = frame.f_back
    return "" if frame is None else frame.f_globals.get("__name__", "")


def _pointer(original: Callable[..., int], self: torch.Tensor | torch.UntypedStorage) -> int:
    """Returns an address that the storage keeps for its life; the kernels of a compiled graph get the present one.

    Code that only compares addresses gets one that may show nothing, and pins nothing.
    """
    if _native.region_runs():
        return original(self)
    if _asker() in _COMPARERS:
        address = original(self)
        return _native.shown_address(address) if _native.owns(address) else address
    _export_for_life(self)
    return original(self)


def _capsule(original: Callable[..., Any], self: torch.Tensor, *arguments: Any, **named: Any) -> Any:
    """Pins a tensor that leaves torch by DLPack, to a user that cannot be followed."""
    if not _native.region_runs():
        _export_for_life(self)
    return original(self, *arguments, **named)


def _numpy(original: Callable[..., Any], self: torch.Tensor, *, force: bool = False) -> Any:
    with ExitStack() as stack:
        stack.enter_context(held(self))
        array = original(self, force=force)
        if array.size and _native.owns(address := int(array.ctypes.data)):
            _native.shown_address(address)
            # Views of the array keep it alive, and it keeps the storage.
            weakref.finalize(array, stack.pop_all().close)
    return array


def _from_dlpack(original: Callable[..., torch.Tensor], *arguments: Any, **named: Any) -> torch.Tensor:
    """A tensor of torch's own with an address of ours: its storage lives as long as anybody can use that."""
    tensor = original(*arguments, **named)
    address = address_of(tensor)
    if _export(address):
        weakref.finalize(tensor.untyped_storage(), _release, address)
    return tensor


def _write_record(original: Callable[..., Any], self: Any, name: str, data: Any, *arguments: Any) -> Any:
    return original(self, name, _in_ordinary_memory(data), *arguments)


def _write_file(original: Callable[..., Any], self: torch.UntypedStorage, *arguments: Any, **named: Any) -> Any:
    return original(_in_ordinary_memory(self), *arguments, **named)


def _in_ordinary_memory(data: Any) -> Any:
    is_ours = isinstance(data, torch.UntypedStorage) and _native.owns(storage_address(data))
    return host_storage(data) if is_ours else data


def _clone_storage(original: Callable[..., Any], self: torch.UntypedStorage) -> Any:
    """A copy is where the original is (`copy.deepcopy`); torch makes bare storages with its own allocator."""
    if not _native.owns(storage_address(self)):
        return original(self)
    return torch.empty(0, dtype=torch.uint8).set_(self).clone().untyped_storage()


def _on_host(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """What reads files straight into storages makes them in ordinary memory, as torch does for CUDA tensors first."""
    with routed(HOST):
        return original(*arguments, **named)


def _install_safetensors(runtime: Runtime) -> None:
    """Has safetensors read copies in ordinary memory, made one after the other, as it does for a GPU's tensors."""
    try:
        module = importlib.import_module("safetensors.torch")
    except ImportError:
        return
    for name in ("_to_ndarray", "_tobytes"):  # since 0.8, and before
        if hasattr(module, name):
            runtime.replaced.around(module, name, _read_by_safetensors)
            _COMPARERS.add(module.__name__)  # all that it still asks addresses for itself


def _read_by_safetensors(original: Callable[..., Any], tensor: torch.Tensor, *arguments: Any) -> Any:
    ours = _native.owns(address_of(tensor))
    return original(to_host(tensor.detach()) if ours else tensor, *arguments)


def _install_lasting(runtime: Runtime) -> None:
    """Replaces the doors whose users cannot be followed."""
    replaced = runtime.replaced
    replaced.around(torch.Tensor, "data_ptr", _pointer)
    replaced.around(torch.Tensor, "const_data_ptr", _pointer)
    replaced.around(torch.UntypedStorage, "data_ptr", _pointer)
    replaced.around(torch.Tensor, "__dlpack__", _capsule)
    for module in (torch, torch.utils.dlpack):
        replaced.around(module, "to_dlpack", _capsule)
        replaced.around(module, "from_dlpack", _from_dlpack)
    _guard_exchange(replaced)


_EXCHANGE, _EXCHANGE_CAPSULE = "__dlpack_c_exchange_api__", b"dlpack_exchange_api"
"""Where libraries find DLPack's functions for C: dlpack.h, DLPackExchangeAPI. torch has it since 2.10."""


def _guard_exchange(replaced: Replacements) -> None:
    """Guards the functions themselves, as libraries keep them; where that cannot be, they are to use Python's."""
    capsule = getattr(torch.Tensor, _EXCHANGE, None)
    if capsule is None:
        return
    address_in = ctypes.pythonapi.PyCapsule_GetPointer
    address_in.restype, address_in.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    table = int(address_in(capsule, _EXCHANGE_CAPSULE) or 0)
    guarded = _is_writable(table)
    try:
        if guarded:
            _native.guard_exchange(table, torch.Tensor, torch.nn.Parameter)
    except NativeError:
        guarded = False
    if not guarded:
        replaced.remove(torch.Tensor, _EXCHANGE)


def _is_writable(address: int) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, _, rest = line.partition("-")
        end, permissions = rest.split()[:2]
        if int(begin, 16) <= address < int(end, 16):
            return "w" in permissions
    return False


def install(runtime: Runtime) -> None:
    """Replaces torch's doors (see the module), and keeps SIGSEGV with the emulated device."""
    replaced = runtime.replaced
    replaced.around(torch.Tensor, "numpy", _numpy)
    _install_lasting(runtime)
    replaced.around(torch.UntypedStorage, "_write_file", _write_file)
    replaced.around(torch.UntypedStorage, "clone", _clone_storage)
    replaced.around(torch._C.PyTorchFileWriter, "write_record", _write_record)
    replaced.around(torch, "load", _on_host)
    _install_safetensors(runtime)
    signals.install()


def _array_interface(original: property, self: torch.Tensor) -> Any:
    """What CuPy and Numba take an address from: a property, and so asked for in a module of torch's own."""
    _export_for_life(self)
    return original.__get__(self)


def install_on_cuda(runtime: Runtime) -> None:
    """Replaces the doors through which kernels that are no ops, such as Triton's, get addresses."""
    _install_lasting(runtime)
    runtime.replaced.around(torch.Tensor, "__cuda_array_interface__", _array_interface)
