"""`torch.backends.cuda` and profilers of CUDA: choices between libraries that the CPU's kernels do not use."""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch.autograd.profiler import emit_nvtx

from umadvise.torch_seam.cuda_spellings.words import asked_by_torch, check_index
from umadvise.torch_seam.replacements import Replacements


class FftPlans:
    """`torch.backends.cuda.cufft_plan_cache`, which stays empty: no FFT of the CPU has plans there."""

    def __init__(self) -> None:
        self.max_size = 4096
        self.size = 0

    def __getitem__(self, device: Any) -> Self:
        """Returns the cache of a device, of which there is one."""
        check_index(device.index if isinstance(device, torch.device) else device)
        return self

    def clear(self) -> None:
        """Changes nothing: it is empty."""


def _preferred(original: Callable[..., Any], _backend: Any = None) -> Any:
    """A library for GPUs may be preferred; the CPU's is used."""
    return original()


def install(replaced: Replacements) -> None:
    """Replaces them."""
    replaced.put(torch.backends.cuda, "cufft_plan_cache", FftPlans())
    for name in ("preferred_linalg_library", "preferred_blas_library"):
        replaced.around(torch.backends.cuda, name, _preferred)
    replaced.around(torch.backends.cuda, "is_built", lambda original: original() if asked_by_torch() else True)
    replaced.put(emit_nvtx, "__enter__", lambda context: context)
    replaced.put(emit_nvtx, "__exit__", lambda _context, *_how: False)
