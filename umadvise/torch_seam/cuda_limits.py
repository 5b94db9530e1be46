"""What torch offers on CUDA with its own allocator alone: refused in words when it is used, or passed by with a word.

torch's own answers to these are errors about CUDAPluggableAllocator, from deep inside, or none at all. All of it stays
for the life of the process, as the allocator does; only `torch.compile` compiles again after `unpatch()`.
"""

import logging
import os
from collections.abc import Callable
from typing import Any

import torch

from umadvise.errors import UnsupportedError
from umadvise.torch_seam.replacements import Replacements, refusing

log = logging.getLogger("umadvise")

_SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")

_graphs = refusing(
    UnsupportedError,
    "a CUDA graph",
    "it replays kernels on the addresses of its capture, where no budget can be kept for them, and only torch's own "
    "allocator leaves those addresses to it",
    "run without torch.cuda.graph, make_graphed_callables and CUDAGraph; torch.compile may stay, and runs eagerly",
)
_pools = refusing(
    UnsupportedError,
    "torch.cuda.MemPool",
    "pools are parts of torch's own allocator",
    "leave it out: umadvise has arenas of its own by role, and takes memory of all threads",
)
_sharing = refusing(
    UnsupportedError,
    "sharing CUDA tensors with another process",
    "the driver shares no memory that can be paged (cuIpcGetMemHandle takes what cuMemAlloc gave)",
    "send tensor.cpu(), and move it to the device over there",
)
_snapshots = refusing(
    UnsupportedError,
    "a snapshot of torch's CUDA memory",
    "it lists the segments of torch's own allocator, which holds nothing",
    "see torch.cuda.memory_stats(), umadvise.memory_stats(), or a session's profile() and, with record=True, trace()",
)


def _record_history(enabled: Any = None, *_arguments: Any, **_named: Any) -> None:
    if enabled:  # switching it off is what it is already
        _snapshots()


def _set_memory_fraction(fraction: float, _device: int) -> None:
    if fraction < 1:
        raise UnsupportedError(
            "torch.cuda.set_per_process_memory_fraction",
            "torch's own allocator would keep it, and it holds nothing",
            "give umadvise.patch, umadvise.session or `umadvise run` a budget instead",
        )


def _ignore_settings(settings: str) -> None:
    _say_ignored("torch.cuda.memory._set_allocator_settings", settings)


def _say_ignored(name: str, settings: str) -> None:
    without = "; addresses stay where they are and need no expandable segments" if "expandable" in settings else ""
    log.warning("%s: %r is for torch's own allocator and has no effect on umadvise's%s", name, settings, without)


def _set_benchmark(original: Callable[[bool], None], on: bool) -> None:
    if on:
        log.warning(
            "torch.backends.cudnn.benchmark stays off: cuDNN would ask torch's own CUDA allocator for its largest "
            "free block, which is not in use; cuDNN picks algorithms by its heuristics instead"
        )
    original(False)


def install(replaced: Replacements) -> None:
    """Replaces what needs torch's own CUDA allocator, and says which settings of it have nobody to read them."""
    replaced.put(torch.cuda.CUDAGraph, "__new__", _graphs)
    replaced.put(torch.cuda.CUDAGraph, "capture_begin", _graphs)
    replaced.put(torch.cuda.MemPool, "__new__", _pools)
    for name in ("_share_cuda_", "_new_shared_cuda"):
        replaced.put(torch.UntypedStorage, name, _sharing)
    for name in ("_cuda_memorySnapshot", "_cuda_attach_out_of_memory_observer"):
        replaced.put(torch._C, name, _snapshots)
    for name in ("_cuda_record_memory_history", "_cuda_record_memory_history_legacy"):
        replaced.put(torch._C, name, _record_history)
    replaced.put(torch._C, "_cuda_setMemoryFraction", _set_memory_fraction)
    replaced.put(torch._C, "_cuda_getMemoryFraction", lambda _device: 1.0)
    replaced.put(torch.cuda.memory, "_set_allocator_settings", _ignore_settings)
    _install_benchmark(replaced)
    for name in _SETTINGS:
        if settings := os.environ.get(name):
            _say_ignored(name, settings)


def _install_benchmark(replaced: Replacements) -> None:
    """`torch.backends.cudnn.benchmark = True`, in both ways that it can be said; and where it is on already."""
    replaced.around(torch._C, "_set_cudnn_benchmark", _set_benchmark)
    flag = vars(type(torch.backends.cudnn))["benchmark"]
    replaced.put(flag, "setter", torch._C._set_cudnn_benchmark)
    if torch.backends.cudnn.benchmark:
        torch._C._set_cudnn_benchmark(True)
