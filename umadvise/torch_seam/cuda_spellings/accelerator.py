"""`torch.accelerator`, `torch.get_device_module()`, `torch.Stream`, `torch.Event`: the device without its name."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from umadvise.devices.ranks import ranks
from umadvise.errors import UntranslatedError
from umadvise.torch_seam.cuda_spellings import streams
from umadvise.torch_seam.cuda_spellings.words import asked_by_torch, own_index, target_of
from umadvise.torch_seam.replacements import Replacements, refusing

_SAME = (
    *("current_stream", "set_stream", "synchronize", "empty_cache", "memory_allocated", "memory_reserved"),
    *("memory_stats", "max_memory_allocated", "max_memory_reserved", "reset_peak_memory_stats"),
    "reset_accumulated_memory_stats",
)
_OTHERS = {
    "device_index": "device",
    "get_memory_info": "mem_get_info",
    "set_device_idx": "set_device",
    "set_device_index": "set_device",
}
"""Their names in `torch.cuda`."""
_REFUSED = ("get_device_capability", "Graph")


def unless_torch_asks(answer: Any, original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """What torch itself asks is answered by torch: that there is no GPU: see `asked_by_torch`."""
    return original(*arguments, **named) if asked_by_torch() else answer


def _device_module(original: Callable[..., Any], device: Any = None) -> Any:
    """`torch.get_device_module()`: of the emulated device it is `torch.cuda`."""
    if asked_by_torch():
        return original(device)
    is_ours = device is None or (not isinstance(device, int) and target_of(device) is not None)
    return torch.cuda if is_ours else original(device)


def install(replaced: Replacements, functions: dict[str, Any]) -> None:
    """Replaces them.

    Args:
        replaced: what was replaced so far.
        functions: those of `torch.cuda` that have a meaning.
    """
    answers = {
        "is_available": True,
        "device_count": ranks().local_count,
        "current_accelerator": torch.device("cuda"),
        "current_device_index": own_index(),
        "current_device_idx": own_index(),
    }
    for name, answer in answers.items():
        replaced.around(torch.accelerator, name, partial(unless_torch_asks, answer))
    for name, cuda_name in {**{name: name for name in _SAME}, **_OTHERS}.items():
        for owner in (torch.accelerator, torch.accelerator.memory):
            if hasattr(owner, name):
                # Another object: torch.compile knows functions by their identity, and takes each for one thing.
                is_class = isinstance(functions[cuda_name], type)
                replaced.put(owner, name, functions[cuda_name] if is_class else partial(functions[cuda_name]))
    for name in _REFUSED:
        if hasattr(torch.accelerator, name):
            words = (f"torch.accelerator.{name}", "nothing on it means the same", "leave it out")
            replaced.put(torch.accelerator, name, refusing(UntranslatedError, *words))
    _install_private(replaced, functions)
    if hasattr(torch.accelerator, "empty_host_cache"):
        replaced.put(torch.accelerator, "empty_host_cache", lambda: None)
    replaced.around(torch, "get_device_module", _device_module)
    replaced.put(torch, "Stream", streams.AnyStream)
    replaced.put(torch, "Event", streams.AnyEvent)


def _install_private(replaced: Replacements, functions: dict[str, Any]) -> None:
    """Replaces the functions of `torch._C` beneath `torch.accelerator`, unless torch itself calls them."""
    answers: dict[str, Callable[..., Any]] = {
        "_get_accelerator": lambda *_check: torch.device("cuda"),
        "_accelerator_getAccelerator": lambda: torch.device("cuda"),
        "_accelerator_getDeviceIndex": own_index,
        "_accelerator_getDeviceStats": functions["memory_stats_as_nested_dict"],
        "_accelerator_getMemoryInfo": functions["mem_get_info"],
        "_accelerator_getStream": functions["current_stream"],
        "_accelerator_setStream": functions["set_stream"],
        "_accelerator_setDeviceIndex": functions["set_device"],
        "_accelerator_synchronizeDevice": functions["synchronize"],
        "_accelerator_emptyCache": functions["empty_cache"],
        "_accelerator_resetPeakStats": functions["reset_peak_memory_stats"],
        "_accelerator_resetAccumulatedStats": functions["reset_accumulated_memory_stats"],
    }

    def unless_torch(answer: Callable[..., Any], original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        return (original if asked_by_torch() else answer)(*arguments, **named)

    for name, answer in answers.items():
        if hasattr(torch._C, name):
            replaced.around(torch._C, name, partial(unless_torch, answer))
