"""Tensors whose memory is mapped read-only, and child processes in which a write to one is found out."""

import ctypes
import mmap
import os
import resource
import signal
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

_PROT_READ = 1
_BOARD_BYTES = 4096
MOST_SECONDS = 120
"""A child that takes longer is given up."""


def read_only(value: Any) -> Any:
    """Equal tensors in memory that cannot be written, for every strided tensor in a value."""
    return tree_map(lambda leaf: _protected(leaf) if can_be_protected(leaf) else leaf, value)


def can_be_protected(value: Any) -> bool:
    """Whether it is a tensor with plain bytes of its own."""
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided:
        return False
    plain = value.device.type == "cpu" and not value.is_quantized and not value.is_conj() and not value.is_neg()
    return plain and value.numel() > 0


def _protected(tensor: torch.Tensor) -> torch.Tensor:
    source = tensor.detach().untyped_storage()
    memory = mmap.mmap(-1, source.nbytes())
    storage = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    storage.copy_(source)
    copied = torch.empty(0, dtype=tensor.dtype).set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
    address, size = ctypes.c_void_p(storage.data_ptr()), ctypes.c_size_t(source.nbytes())
    if ctypes.CDLL(None, use_errno=True).mprotect(address, size, _PROT_READ) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")
    return copied


class Board:
    """A few words that a child leaves for its parent, whatever becomes of it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _BOARD_BYTES)

    def write(self, words: str) -> None:
        """Replaces what stands there."""
        self._memory[:] = words.encode()[:_BOARD_BYTES].ljust(_BOARD_BYTES, b"\0")

    def read(self) -> str:
        """What was written last."""
        return self._memory[:].rstrip(b"\0").decode()


def signal_of_child(work: Callable[[], None]) -> int:
    """Runs something in a forked child. Returns the signal that killed it, 0 where it ended by itself."""
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        signal.alarm(MOST_SECONDS)
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
