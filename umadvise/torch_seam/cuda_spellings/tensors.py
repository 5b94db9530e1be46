"""What a tensor on the emulated device says of itself, and what is done to tensors by CUDA's words."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from umadvise import _native
from umadvise.errors import UntranslatedError
from umadvise.records.enums import Role
from umadvise.torch_seam.cuda_spellings.factories import without_cuda
from umadvise.torch_seam.cuda_spellings.words import ON_DEVICE, asked_by_torch, target_of
from umadvise.torch_seam.placement import to_device, to_host
from umadvise.torch_seam.replacements import Replacements
from umadvise.torch_seam.runtime import current, on_device, storage_address
from umadvise.torch_seam.tensors import mark_pinned


def _device(original: Any, self: torch.Tensor) -> torch.device:
    found: torch.device = original.__get__(self)
    return ON_DEVICE if found.type == "cpu" and on_device(self) else found


def _is_cuda(original: Any, self: torch.Tensor) -> bool:
    return original.__get__(self) or (not asked_by_torch() and on_device(self))


def _get_device(original: Callable[..., int], self: torch.Tensor) -> int:
    return 0 if not asked_by_torch() and on_device(self) else original(self)


def _to(original: Callable[..., Any], self: Any, *arguments: Any, **named: Any) -> Any:
    """`x.to(model.device)` puts x where the model is; `torch_api` knows the words, this the answer of `.device`."""
    if arguments and arguments[0] is ON_DEVICE:
        arguments = ("cuda", *arguments[1:])
    elif named.get("device") is ON_DEVICE:
        named["device"] = "cuda"
    return original(self, *arguments, **named)


def _type(original: Callable[..., Any], self: torch.Tensor, dtype: Any = None, *arguments: Any, **named: Any) -> Any:
    wanted = without_cuda(dtype)
    result = original(self, wanted, *arguments, **named)
    return result if wanted is dtype else to_device(result, Role.INPUT, None)


def _pin_memory(self: torch.Tensor, _device: Any = None) -> torch.Tensor:
    """Pinned memory is host memory; here all of it will do."""
    pinned = to_host(self) if on_device(self) else self
    mark_pinned(pinned)
    return pinned


def _storage_is_cuda(original: Any, self: Any) -> bool:
    if asked_by_torch():
        return bool(original.__get__(self))
    return _native.owns(storage_address(self if isinstance(self, torch.UntypedStorage) else self._untyped_storage))


def _storage_cuda(self: Any, device: Any = "cuda", _non_blocking: bool = False) -> Any:
    target_of(device)
    current().take_in(self if isinstance(self, torch.UntypedStorage) else self.untyped(), Role.INPUT)
    return self


class NoArrayInterfaceError(UntranslatedError, AttributeError):
    """`tensor.__cuda_array_interface__`: libraries that ask whether a tensor has one see that it has none."""


def _array_interface(original: Any, self: torch.Tensor) -> Any:
    if on_device(self):
        raise NoArrayInterfaceError(
            "tensor.__cuda_array_interface__", "its memory is the host's", "give the library tensor.cpu().numpy()"
        )
    return original.__get__(self)


def install(replaced: Replacements) -> None:
    """Replaces methods of tensors, modules and storages; those of `torch_api` stay below."""
    replaced.around(torch.Tensor, "device", _device)
    replaced.around(torch.Tensor, "is_cuda", _is_cuda)
    replaced.around(torch.Tensor, "get_device", _get_device)
    replaced.around(torch.Tensor, "__cuda_array_interface__", _array_interface)
    replaced.around(torch.Tensor, "to", _to, told=True)
    ours = [torch.Tensor.get_device, torch.Tensor.to]  # what torch's methods of lazy tensors are told of, by identity
    replaced.replace(UninitializedTensorMixin, "_allowed_methods", lambda allowed: [*allowed, *ours])
    replaced.around(torch.nn.Module, "to", _to)
    replaced.around(torch.Tensor, "type", _type, told=True)
    replaced.put(torch.Tensor, "pin_memory", _pin_memory)
    replaced.put(torch.Tensor, "is_pinned", lambda self, _device=None: not on_device(self))
    # Memory is freed in the order of the calling thread.
    replaced.put(torch.Tensor, "record_stream", lambda *_arguments, **_named: None)
    for storage in (torch.UntypedStorage, torch.TypedStorage):
        replaced.around(storage, "is_cuda", _storage_is_cuda)
        replaced.put(storage, "cuda", _storage_cuda)
        replaced.put(storage, "pin_memory", lambda self, _device=None: self)
