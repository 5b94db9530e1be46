"""Train PyTorch models under a byte budget: unified memory, advice by role, a report of what faulted and was swapped.

Importing this package changes nothing in torch and imports neither torch nor the native core; the names below load what
they need when they are first used.

    patch(device="auto")         puts tensors into unified memory, and teaches torch "cuda:<advice>"
    unpatch()                    ends that
    session(model, optimizer)    a training loop under a budget: roles, advice and the fault profile by itself
    EmulatedDevice(...)          a device with real page faults, in this process's memory
    compile(model)               torch.compile, block by block: graphs that a budget can hold
    held(tensor, ...)            keeps tensors in place while code that is no op of torch uses their addresses
    on_device(tensor)            whether a tensor's bytes are on a device of umadvise
    read_counters()              what the patched device counted
    memory_stats()               what it holds

In a notebook `%load_ext umadvise` adds `%umadvise`; `umadvise.integrations` has callbacks for frameworks.
"""

import importlib
from typing import TYPE_CHECKING, Any

from umadvise import errors
from umadvise._version import __version__

if TYPE_CHECKING:
    from umadvise.devices.open_device import EmulatedDevice
    from umadvise.torch_seam.compiling import compile  # noqa: A004  # as torch has it
    from umadvise.torch_seam.doors import held
    from umadvise.torch_seam.patching import patch, unpatch
    from umadvise.torch_seam.runtime import on_device
    from umadvise.training.session import Session as session  # noqa: N813  # read as a verb: with umadvise.session(...)
    from umadvise.training.watch.statistics import memory_stats, read_counters

__all__ = [
    "EmulatedDevice",
    "__version__",
    "compile",
    "errors",
    "held",
    "memory_stats",
    "on_device",
    "patch",
    "read_counters",
    "session",
    "unpatch",
]

_HOMES = {
    "EmulatedDevice": ("devices.open_device", "EmulatedDevice"),
    "compile": ("torch_seam.compiling", "compile"),
    "held": ("torch_seam.doors", "held"),
    "load_ipython_extension": ("integrations.notebook", "load_ipython_extension"),
    "patch": ("torch_seam.patching", "patch"),
    "unpatch": ("torch_seam.patching", "unpatch"),
    "on_device": ("torch_seam.runtime", "on_device"),
    "session": ("training.session", "Session"),
    "read_counters": ("training.watch.statistics", "read_counters"),
    "memory_stats": ("training.watch.statistics", "memory_stats"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'umadvise' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(importlib.import_module(f"umadvise.{module}"), attribute)
