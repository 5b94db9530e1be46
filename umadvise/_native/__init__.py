"""The only ctypes: libumadvise (csrc/include/umadvise.h) and the hooks library (umadvise/_hooks/hooks.h), typed.

Nothing is loaded before the first call. A failed call raises NativeError with the core's message of this thread.
"""

from umadvise._native.device import Device, Recording
from umadvise._native.hooks import (
    adopt_storage,
    give_back_storage,
    hooks_function,
    hooks_path,
    install_allocator,
    interpose,
    plain_cuda_device,
    serve_cuda,
    set_module,
    set_phase,
    set_rescuer,
    set_split,
    split_limit,
)
from umadvise._native.library import intern, library_path, string
from umadvise._native.machine import (
    claim_signals,
    cuda_attribute,
    cuda_device,
    cuda_unavailable_reason,
    cupti_library,
    set_most_managed,
)
from umadvise._native.memory import (
    allocation_at,
    copy_from_host,
    copy_to_host,
    export,
    free,
    label,
    owns,
    prefetch,
    process_route,
    release_export,
    routed_device,
    set_process_route,
    set_thread_route,
    thread_route,
)
from umadvise._native.pages import Pages
from umadvise._native.simulation import Simulation, simulate_swap, simulate_unified

__all__ = [
    "Device",
    "Pages",
    "Recording",
    "Simulation",
    "adopt_storage",
    "allocation_at",
    "claim_signals",
    "copy_from_host",
    "copy_to_host",
    "cuda_attribute",
    "cuda_device",
    "cuda_unavailable_reason",
    "cupti_library",
    "export",
    "free",
    "give_back_storage",
    "hooks_function",
    "hooks_path",
    "install_allocator",
    "intern",
    "interpose",
    "label",
    "library_path",
    "owns",
    "plain_cuda_device",
    "prefetch",
    "process_route",
    "release_export",
    "routed_device",
    "serve_cuda",
    "set_module",
    "set_most_managed",
    "set_phase",
    "set_process_route",
    "set_rescuer",
    "set_split",
    "set_thread_route",
    "simulate_swap",
    "simulate_unified",
    "split_limit",
    "string",
    "thread_route",
]
