"""The only ctypes: libumadvise (csrc/include/umadvise.h) and the hooks library (umadvise/_hooks/hooks.h), typed.

Nothing is loaded before the first call. A failed call raises NativeError with the core's message of this thread.
"""

from umadvise._native.device import Device, op_took
from umadvise._native.hooks import (
    adopt_storage,
    extension_function,
    fallbacks,
    follow_thread,
    give_back_storage,
    guard_exchange,
    hooks_error,
    hooks_function,
    hooks_path,
    install_allocator,
    interpose,
    plain_cuda_device,
    region,
    region_functions,
    region_runs,
    routed_outside_ops,
    serve_cuda,
    set_device_constructor,
    set_edge,
    set_module,
    set_parts,
    set_phase,
    set_rescuer,
    set_split,
    show,
    split_limit,
    work_beside,
)
from umadvise._native.library import intern, library_path, string
from umadvise._native.machine import (
    claim_signals,
    cuda_attribute,
    cuda_calls,
    cuda_device,
    cuda_unavailable_reason,
    cupti_library,
    set_most_managed,
    share_host,
)
from umadvise._native.memory import (
    allocation_at,
    copy_to_host,
    export,
    export_lasting,
    free,
    label,
    lease_routes,
    owns,
    prefetch,
    release_export,
    set_process_route,
    set_thread_route,
    show_storage,
    shown_address,
    thread_route,
)
from umadvise._native.pages import Pages
from umadvise._native.recording import Recording
from umadvise._native.refused_steps import end_refusals, refusal_pending, undo_step, watch_in_steps
from umadvise._native.simulation import simulate_swap, simulate_unified
