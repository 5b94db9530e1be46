"""Storages that are resized outside of ops, to nothing and back, as FSDP does: they come back to where they were.

Memory that torch makes outside of ops is ordinary otherwise (`umadvise/_hooks/interposer.h`).
"""

from collections.abc import Callable
from typing import Any

import torch

from umadvise import _native
from umadvise.torch_seam.replacements import Replacements
from umadvise.torch_seam.runtime import storage_address

_MARK = "_umadvise_emptied"
"""Attribute of storages that lay on the device when they were resized to nothing: torch keeps it with the storage."""


def install(replaced: Replacements) -> None:
    """Replaces `UntypedStorage.resize_`, on the emulated device alone: on a GPU all memory of torch's is ours."""
    replaced.around(torch.UntypedStorage, "resize_", _resize)


def _resize(original: Callable[..., Any], self: torch.UntypedStorage, size: int) -> Any:
    is_ours = _native.owns(storage_address(self))
    if not is_ours and not hasattr(self, _MARK):
        return original(self, size)
    if is_ours and size == 0:
        setattr(self, _MARK, True)
        return original(self, size)
    with _native.routed_outside_ops():
        return original(self, size)
