"""The core's side of owners, played by a test: it allocates, copies, re-points, and frees what is left behind."""

import ctypes

import torch

from umadvise import _native
from umadvise._native.abi import Placement
from umadvise._native.library import core_library, hooks_library
from umadvise._native.structures import structure
from umadvise.torch_seam.runtime import storage_address

Remember = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
Repoint = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
Forget = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
DropReferences = ctypes.CFUNCTYPE(None)


class Core:
    """What the core does with the functions that the hooks give it."""

    def __init__(self, device: _native.Device) -> None:
        functions = structure("um_owner_functions").from_address(hooks_library().um_hooks_owner_functions())
        self.device = device
        self.repoint, self.drop_references = Repoint(functions.repoint), DropReferences(functions.drop_references)
        self._remember, self.forget = Remember(functions.remember), Forget(functions.forget)

    def remember(self, storage: torch.UntypedStorage, address: int | None = None) -> int | None:
        """The owner, or None where it refuses."""
        return self._remember(storage._cdata, storage_address(storage) if address is None else address)

    def move(self, owner: int, address: int) -> bool:
        """Moves an allocation to another address, unless its owner refuses."""
        found = _native.allocation_at(address)
        assert found is not None
        target = self.device.allocate(found.bytes, Placement())
        contents = ctypes.create_string_buffer(found.bytes)
        _native.copy_to_host(ctypes.addressof(contents), address, found.bytes)
        core_library().um_copy_from_host(target, contents, found.bytes)
        moved = bool(self.repoint(owner, address, target))
        if moved:  # nobody reads it any more: NaN
            core_library().um_copy_from_host(address, b"\xff" * found.bytes, found.bytes)
        _native.free(address if moved else target)
        return moved

    def move_all(self, *tensors: torch.Tensor) -> None:
        """Moves the storages of tensors, which must agree."""
        for storage in {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}.values():
            owner, before = self.remember(storage), storage_address(storage)
            assert owner is not None
            assert self.move(owner, before)
            self.drop_references()
            self.forget(owner)
            assert storage_address(storage) != before
            assert _native.owns(storage_address(storage))
