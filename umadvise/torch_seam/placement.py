"""Moving tensors between the emulated device and ordinary memory, as `.to("cuda...")` and `.to("cpu")` do."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from umadvise import _native
from umadvise.errors import NativeError
from umadvise.records.enums import Advice, Role
from umadvise.torch_seam.replacements import overrides
from umadvise.torch_seam.runtime import HOST, address_of, current, placed, routed, storage_address
from umadvise.torch_seam.tensors import is_dense, is_distributed, with_local

_to = torch._C.TensorBase.to
_clone = torch._C.TensorBase.clone


def to_device(
    tensor: torch.Tensor,
    role: Role,
    advice: Advice | None,
    *,
    dtype: torch.dtype | None = None,
    copy: bool = False,
    memory_format: torch.memory_format = torch.preserve_format,
) -> torch.Tensor:
    """A tensor's values on the emulated device; the tensor itself when it is there already with that advice.

    Args:
        tensor: any tensor of the CPU.
        role: role of the copy, which chooses its arena.
        advice: advice that the user gave; None takes the policy's.
        dtype: type of the copy's elements; None keeps the tensor's.
        copy: whether to copy a tensor that is there already.
        memory_format: layout of the copy, one of torch's memory formats.
    """
    if is_distributed(tensor):
        move = partial(to_device, role=role, advice=advice, dtype=dtype, copy=copy, memory_format=memory_format)
        return with_local(tensor, move)
    same_type = dtype is None or dtype == tensor.dtype
    if same_type and not copy and memory_format == torch.preserve_format and _is_placed(tensor, advice):
        return tensor
    with routed(placed(current().policy.placement(role, advice))):
        if same_type:
            return _clone(tensor, memory_format=memory_format) if tensor.layout is torch.strided else _clone(tensor)
        return _to(tensor, dtype=dtype, copy=True, memory_format=memory_format)


def _is_placed(tensor: torch.Tensor, advice: Advice | None) -> bool:
    if is_traceable_wrapper_subclass(tensor):  # made of tensors: it has no memory, and may have no copies
        names, _ = tensor.__tensor_flatten__()
        return all(_is_placed(getattr(tensor, name), advice) for name in names)
    if tensor.numel() == 0:
        return False
    allocation = _native.allocation_at(address_of(tensor))
    if (
        allocation is None or allocation.device != current().device.handle
    ):  # of an earlier device: it outlived unpatch()
        return False
    return advice is None or allocation.advice == advice


def to_host(
    tensor: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format = torch.preserve_format,
) -> torch.Tensor:
    """A tensor's values in ordinary memory, through the copy engine: no page moves and none faults."""
    if is_distributed(tensor):
        return with_local(tensor, partial(to_host, dtype=dtype, memory_format=memory_format))
    if _is_more_than_bytes(tensor):
        with routed(HOST):
            copied = _clone(tensor, memory_format=memory_format) if tensor.layout is torch.strided else _clone(tensor)
            return copied if dtype in (None, tensor.dtype) else _to(copied, dtype=dtype)
    copied = _copy_out_traced(tensor) if tensor.requires_grad else copy_of_bytes(tensor)
    with routed(HOST):
        return _to(copied, dtype=dtype or tensor.dtype, memory_format=memory_format)


def _is_more_than_bytes(tensor: torch.Tensor) -> bool:
    """Whether a copy is more than bytes: of boxes of a picture, of a tensor made of others, of a nested one."""
    has_idea = torch._C._is_torch_function_enabled() and overrides(tensor)
    return has_idea or tensor.is_nested or is_traceable_wrapper_subclass(tensor)


class _CopyOut(torch.autograd.Function):
    """The copy to the host as autograd sees it: gradients come back to the device."""

    @staticmethod
    def forward(_ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        """Copies out."""
        return copy_of_bytes(tensor)

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        """Copies in."""
        return to_device(gradient, Role.INTERMEDIATE, None)


_copy_out_traced: Callable[[torch.Tensor], torch.Tensor] = _CopyOut.apply


def copy_of_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's values in ordinary memory, copied from wherever they lie, in no op if they lie in one run."""
    with routed(HOST):
        in_one_run = tensor.layout is torch.strided and is_dense(tensor)
        if not in_one_run or tensor.is_conj() or tensor.is_neg():
            return _clone(tensor.detach())  # through ops: torch knows how to gather it
        host = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
    if tensor.numel() > 0:
        _copy_to_host(address_of(host), lambda: address_of(tensor), tensor.numel() * tensor.element_size())
    return host


def host_storage(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """A copy of a storage's bytes in ordinary memory."""
    with routed(HOST):
        host = torch.UntypedStorage(storage.nbytes())
    if storage.nbytes() > 0:
        _copy_to_host(storage_address(host), lambda: storage_address(storage), storage.nbytes())
    return host


def _copy_to_host(host: int, address: Callable[[], int], size_bytes: int) -> None:
    """Copies what lies at an address that another thread's op may change before the core has found it there."""
    while True:
        present = address()
        try:
            _native.copy_to_host(host, present, size_bytes)
        except NativeError:
            if address() == present:
                raise
        if address() == present:
            return
