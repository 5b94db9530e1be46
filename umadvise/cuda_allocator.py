"""umadvise as torch's CUDA allocator.

torch takes another allocator once in a process, before it has set CUDA up, and keeps it to the end (its check is in
torch/csrc/cuda/CUDAPluggableAllocator.cpp, changeCurrentAllocator). So `unpatch()` takes nothing out: it only ends the
routing, and what torch asks for from then on is plain device memory.
"""

from typing import Any

import torch

from umadvise import _native
from umadvise.errors import DeviceUnavailableError, StateError
from umadvise.replacements import Replacements

_installed = False


def install(ordinal: int) -> None:
    """Makes torch's memory on a CUDA device ours to route, from now on.

    Args:
        ordinal: of the device that routes are meant for; other devices get plain memory.

    Raises:
        DeviceUnavailableError: this torch was built without CUDA.
        StateError: torch has set CUDA up, or another library has installed an allocator.
        HooksUnavailableError: the extension against this torch cannot be compiled.
    """
    global _installed
    if not _installed:
        _require_possible()
        allocator = torch.cuda.memory.CUDAPluggableAllocator(
            str(_native.hooks_path()), "um_hooks_cuda_allocate", "um_hooks_cuda_free"
        )
        functions: Any = allocator.allocator()
        functions.set_record_stream_fn(_native.hooks_function("um_hooks_cuda_record_stream"))
        torch.cuda.memory.change_current_allocator(allocator)
        _installed = True
    _native.serve_cuda(ordinal)


def release() -> None:
    """Ends the routing: torch's CUDA memory is plain device memory from now on."""
    _native.serve_cuda(None)


def answer_statistics(device: _native.Device, replaced: Replacements) -> None:
    """Lets torch.cuda.memory_allocated() and its kin tell the device's bytes; with another allocator torch raises.

    Allocated is what tensors asked for, reserved is what the driver gave for them. A session starts the peaks again at
    each step.
    """

    def statistics(_index: int) -> dict[str, Any]:
        held = device.memory()
        return {
            "allocated_bytes": _current_and_peak(held.requested_bytes, held.requested_peak_bytes),
            "reserved_bytes": _current_and_peak(held.reserved_bytes, held.reserved_peak_bytes),
        }

    replaced.replace(torch._C, "_cuda_memoryStats", lambda _: statistics)
    replaced.replace(torch._C, "_cuda_resetPeakMemoryStats", lambda _: lambda _index: device.reset_memory_peaks())


def _current_and_peak(current_bytes: int, peak_bytes: int) -> dict[str, Any]:
    return {"all": {"current": current_bytes, "peak": peak_bytes}}


def _require_possible() -> None:
    if torch.version.cuda is None:
        raise DeviceUnavailableError(f"the installed torch {torch.__version__} was built without CUDA")
    if torch.cuda.is_initialized():
        raise StateError(
            "torch has set CUDA up already, with its own allocator, which cannot be replaced any more: call "
            'umadvise.patch() before anything that uses the GPU (a tensor on "cuda", torch.cuda.get_device_name(), '
            "torch.cuda.mem_get_info()), or start the script with `umadvise run`"
        )
    if torch.cuda.memory._get_current_allocator().allocator() is not None:
        raise StateError(
            "another library has replaced torch's CUDA allocator, which can be done once in a process: run umadvise in "
            "a process without that library"
        )
