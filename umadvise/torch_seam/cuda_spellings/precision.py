"""Mixed precision: autocast and gradient scaling for CUDA are those of the CPU, whose kernels run."""

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.amp import autocast_mode

from umadvise.torch_seam.cuda_spellings.words import asked_by_torch
from umadvise.torch_seam.replacements import Replacements


def _is_cuda(device_type: Any) -> bool:
    return isinstance(device_type, str) and device_type.split(":", 1)[0] == "cuda"


_dtype = torch.get_autocast_dtype
"""torch's own: for "cuda" it is what `torch.autocast("cuda")` computes in where a script names no dtype (float16)."""


def _autocast(
    original: Callable[..., None], self: Any, device_type: Any, dtype: Any = None, *arguments: Any, **named: Any
) -> None:
    """What torch itself opens for CUDA, besides the old `torch.cuda.amp.autocast`, is empty on a CPU and stays so."""
    by_torch = asked_by_torch() and sys._getframe(2).f_globals.get("__name__") != "torch.cuda.amp.autocast_mode"
    if by_torch or not _is_cuda(device_type):
        original(self, device_type, dtype, *arguments, **named)
    else:
        original(self, "cpu", _dtype("cuda") if dtype is None else dtype, *arguments, **named)


def _for_cpu(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """A decorator of autograd functions, or a gradient scaler, that is told a device type."""
    if _is_cuda(named.get("device_type")):
        named["device_type"] = "cpu"
    return original(*arguments, **named)


def _scaler(original: Callable[..., None], self: Any, device: Any = "cuda", *arguments: Any, **named: Any) -> None:
    original(self, "cpu" if _is_cuda(str(device)) else device, *arguments, **named)


def _is_enabled(original: Callable[..., bool], device_type: str = "cuda") -> bool:
    return original(device_type if asked_by_torch() or not _is_cuda(device_type) else "cpu")


def _dtype_of(original: Callable[..., torch.dtype], device_type: str = "cuda") -> torch.dtype:
    if asked_by_torch() or not _is_cuda(device_type):
        return original(device_type)
    return original("cpu") if torch._C.is_autocast_enabled("cpu") else _dtype("cuda")


def install(replaced: Replacements) -> None:
    """Replaces autocast, the decorators for it, and the gradient scaler."""
    replaced.around(autocast_mode.autocast, "__init__", _autocast)
    replaced.around(torch.amp.GradScaler, "__init__", _scaler)
    for name in ("custom_fwd", "custom_bwd"):
        for owner in (torch.amp, autocast_mode):
            replaced.around(owner, name, _for_cpu)
        replaced.put(torch.cuda.amp, name, functools.partial(getattr(torch.amp, name), device_type="cpu"))
    replaced.around(torch, "is_autocast_enabled", _is_enabled)
    replaced.around(torch, "get_autocast_dtype", _dtype_of)
    replaced.put(torch, "get_autocast_gpu_dtype", lambda: torch.get_autocast_dtype("cuda"))
