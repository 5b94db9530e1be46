"""umadvise as torch's CUDA allocator.

torch takes another allocator once in a process, before it has set CUDA up, and keeps it to the end (its check is in
torch/csrc/cuda/CUDAPluggableAllocator.cpp, changeCurrentAllocator). So `unpatch()` takes nothing out: it only ends the
routing, and what torch asks for from then on is plain device memory.
"""

from collections.abc import Callable
from typing import Any

import torch

from umadvise import _native
from umadvise.errors import DeviceUnavailableError, StateError
from umadvise.torch_seam import cuda_limits
from umadvise.torch_seam.cuda_memory import CudaMemory, answer_free_memory
from umadvise.torch_seam.memory_peaks import Peaks
from umadvise.torch_seam.replacements import Replacements
from umadvise.torch_seam.runtime import Runtime

_installed = False
_for_good = Replacements()
"""What torch cannot do, or say of memory, with this allocator: like the allocator it stays."""
_memory = CudaMemory()


def install(ordinal: int) -> None:
    """Makes torch's memory on a CUDA device ours to route, from now on.

    Args:
        ordinal: index of the CUDA device that umadvise serves; other devices get plain device memory.

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
        functions.set_reset_fn(_native.hooks_function("um_hooks_cuda_reset"))
        torch.cuda.memory.change_current_allocator(allocator)
        cuda_limits.install(_for_good)
        _memory.install(_for_good)
        _installed = True
    _native.serve_cuda(ordinal)


def attend(state: Runtime) -> None:
    """Lets torch's questions about memory be answered from the patched device."""
    peaks = Peaks(state.device)  # a session starts the device's own peaks again at each step
    peaks.install(state.replaced)
    _memory.add(state.ordinal, peaks)
    answer_free_memory(state)


def release() -> None:
    """Ends the routing: torch's CUDA memory is plain device memory from now on."""
    _native.serve_cuda(None)
    _clear_workspaces()


def _clear_workspaces() -> None:
    """Has torch give back what cuBLAS works in: it would live on in a closed device. The next product makes another."""
    clear: Callable[[], None] | None = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()


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
