"""Names that only torch's CUDA build has: `torch._C._cuda_*` and the others that its Python is written with.

A program that finds CUDA available may import or bind any of them. So all exist. Those that ask something, or order
something that one emulated GPU can do, are answered; each of the others raises an error when it is called, never when
it is imported. Source of the names: `dir(torch._C)` of torch 2.11's CUDA build beside the CPU's, and
torch/_C/__init__.pyi of torch 2.13.
"""

import sys
import time
from collections.abc import Callable
from enum import IntEnum
from types import ModuleType
from typing import Any

import torch

from umadvise.devices.ranks import ranks
from umadvise.errors import UntranslatedError
from umadvise.torch_seam.cuda_spellings import data_parallel, streams
from umadvise.torch_seam.cuda_spellings.words import asked_by_torch, check_index, check_process, own_index
from umadvise.torch_seam.replacements import Replacements
from umadvise.torch_seam.runtime import current

REFUSED = (
    *("attach_out_of_memory_observer", "allocationTraceback", "beginAllocateCurrentStreamToPool"),
    *("beginAllocateCurrentThreadToPool", "beginAllocateToPool", "changeCurrentAllocator", "checkPoolLiveAllocations"),
    *("cudaCachingAllocator_enable", "cudaCachingAllocator_is_enabled", "cudaCachingAllocator_raw_alloc"),
    *("cudaCachingAllocator_raw_delete", "cudaHostAllocator", "customAllocator", "endAllocateToPool", "getAllocator"),
    *("getCheckpointState", "getCompiledVersion", "getCublasLtWorkspaceSize", "getCublasWorkspaceSize"),
    *("getCurrentBlasHandle", "getCurrentSolverHandle", "getHipblasltVersion", "getMemoryMetadata"),
    *("get_conv_benchmark_empty_cache", "get_cudnn_benchmark_limit", "hostMemoryStats"),
    *("jiterator_compile_and_launch_kernel", "memorySnapshot", "record_memory_history"),
    *("record_memory_history_legacy", "record_untuned_enable", "releasePool", "resetAccumulatedHostMemoryStats"),
    *("resetCublasLtWorkspaceSize", "resetCublasWorkspaceSize", "resetPeakHostMemoryStats"),
    *("setCheckpointPoolState", "setCublasLtWorkspaceSize", "setCublasWorkspaceSize", "setMemoryMetadata"),
    *("set_cudnn_benchmark_limit", "tunableop_enable", "tunableop_get_filename", "tunableop_get_max_tuning_duration"),
    *("tunableop_get_max_tuning_iterations", "tunableop_get_results", "tunableop_get_rotating_buffer_size"),
    *("tunableop_get_rotation_buffer_size", "tunableop_get_validators", "tunableop_read_file"),
    *("tunableop_set_filename", "tunableop_set_max_tuning_duration", "tunableop_set_max_tuning_iterations"),
    *("tunableop_set_numerical_check_tolerances", "tunableop_set_rotating_buffer_size", "tunableop_tuning_enable"),
)
"""Of the functions `torch._C._cuda_*`."""
OTHERS_REFUSED = (
    *("_construct_CUDA_Tensor_From_Storage_And_Metadata", "_cudnn_set_conv_benchmark_empty_cache"),
    *("_free_And_Remove_DeleterFn", "_gds_deregister_buffer", "_gds_deregister_handle", "_gds_load_storage"),
    *("_gds_register_buffer", "_gds_register_handle", "_gds_save_storage", "_graph_pool_handle"),
    *("_has_Standard_Deleter", "_nccl_all_gather", "_nccl_all_reduce", "_nccl_broadcast", "_nccl_init_rank"),
    *("_nccl_reduce", "_nccl_reduce_scatter", "_nccl_unique_id", "_nccl_version", "_nccl_version_suffix"),
    *("_set_storage_access_error_msg", "_set_storage_data_ptr_access_error_msg"),
    "_tensors_data_ptrs_at_indices_equal",
)
CLASSES_REFUSED = (
    *("_CUDAGraph", "_CUDAGreenContext", "_CUDAPluggableAllocator", "_CUuuid", "_MemPool", "_StaticCudaLauncher"),
    *("_cuda_CUDAAllocator", "_cuda_CUDAAllocator_AllocatorState"),
)
MODULES = ("_cudnn", "_cusparselt")
_INSTEAD = {
    "record_memory_history": "leave it out: umadvise run writes a profile of what was on the device",
    "memorySnapshot": "leave it out: umadvise run writes a profile of what was on the device",
}
_CYCLES_PER_S = 1.41e9
"""Boost clock of an A100, whose capability the emulated device has (NVIDIA A100 data sheet)."""


def refused_call(name: str) -> UntranslatedError:
    """The error for a call of `torch._C.<name>`, which names the function of torch that a program has called."""
    called, frame = f"torch._C.{name}", sys._getframe(2)
    while str(frame.f_globals.get("__name__")).split(".", 1)[0] == "torch" and frame.f_back is not None:
        called = f"{frame.f_globals['__name__']}.{frame.f_code.co_qualname}"
        frame = frame.f_back
    private = "" if called.endswith(f".{name}") else f" (torch._C.{name})"
    instead = _INSTEAD.get(name.removeprefix("_cuda_"), "leave it out, or run the script on a GPU")
    return UntranslatedError(f"{called}{private}", "only torch's CUDA build has it", instead)


def _refused(name: str) -> Callable[..., Any]:
    def refuse(*_arguments: Any, **_named: Any) -> Any:
        raise refused_call(name)

    return refuse


class RefusedModule(ModuleType):
    """A module of torch's CUDA build, each of whose functions is refused when it is called."""

    def __getattr__(self, name: str) -> Any:
        """A function that raises an error."""
        if name.startswith("__"):
            raise AttributeError(name)
        return _refused(f"{self.__name__}.{name}")


class Nvtx(ModuleType):
    """`torch._C._nvtx`: nothing shows its ranges and marks."""

    def __getattr__(self, name: str) -> Any:
        """A function that does nothing."""
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_arguments, **_named: 0


class CudaError(IntEnum):
    """`cudaError` of CUDA's runtime, of which no other value ever arises here."""

    success = 0


class Cudart(RefusedModule):
    """`torch.cuda.cudart()`: all host memory counts as pinned, and there is no profiler to start."""

    def __init__(self, free_and_total: Callable[[], tuple[int, int]]) -> None:
        super().__init__("_cudart")
        self.cudaError = CudaError
        self._free_and_total = free_and_total
        for name in ("cudaHostRegister", "cudaHostUnregister", "cudaProfilerStart", "cudaProfilerStop"):
            setattr(self, name, lambda *_arguments: CudaError.success)

    def cudaMemGetInfo(self, device: int | None = None) -> tuple[int, int]:  # noqa: N802
        """Free bytes of the device and its capacity."""
        check_index(device)
        return self._free_and_total()


def _exchange_device(index: int) -> int:
    """Makes a GPU the current one, which it is already; as CUDA's, it takes a negative index for nothing to do."""
    if index < 0:
        return -1
    check_index(index)
    return own_index()


def _set_device(index: int) -> None:
    check_index(index)
    check_process()


def _record_memory_history(enabled: Any = "all", *_arguments: Any, **_named: Any) -> None:
    if enabled:  # turned off it is already
        raise refused_call("_cuda_record_memory_history")


def _stream_numbers(stream: Any) -> tuple[int, int, int]:
    return stream.stream_id, stream.device_index, stream.device_type


def _current(device: int | None = None) -> Any:
    check_index(device)
    return streams.current_stream()


def _set_stream(stream_id: int, device_index: int, device_type: int) -> None:
    streams.set_stream(streams.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type))


def _default(device: int | None = None) -> Any:
    check_index(device)
    return streams.DEFAULT


def answers() -> dict[str, Callable[..., Any]]:
    """Functions `torch._C._cuda_*` that tell of the device and its streams, or that order something of it."""

    def nothing(*_arguments: Any, **_named: Any) -> None:
        """Changes nothing."""

    orders = (
        *("clearCublasWorkspaces", "emptyCache", "init", "ipc_collect", "lock_mutex", "set_sync_debug_mode"),
        *("synchronize", "unlock_mutex"),
    )
    states = ("isCurrentStreamCapturing", "isHistoryEnabled", "record_untuned_is_enabled", "tunableop_is_enabled")
    no = (*states, "tunableop_tuning_is_enabled")
    return {
        **dict.fromkeys(orders, nothing),
        **dict.fromkeys(no, lambda: False),
        "canDeviceAccessPeer": lambda _device, _peer: False,
        "exchangeDevice": _exchange_device,
        "getArchFlags": lambda: None,
        "getCurrentRawStream": lambda device=None: _current(device).cuda_stream,
        "getCurrentStream": lambda device=None: _stream_numbers(_current(device)),
        "getDefaultStream": lambda device=None: _stream_numbers(_default(device)),
        "getDevice": own_index,
        "getDeviceCount": lambda: 0 if asked_by_torch(2) else ranks().local_count,
        "getStreamFromExternal": lambda pointer, _device=None: _stream_numbers(streams.ExternalStream(pointer)),
        "get_sync_debug_mode": lambda: 0,
        "hasPrimaryContext": lambda index: index == own_index(),
        "isInBadFork": lambda: current().forked,
        "maybeExchangeDevice": _exchange_device,
        "record_memory_history": _record_memory_history,
        "record_memory_history_legacy": _record_memory_history,
        "setDevice": _set_device,
        "setStream": _set_stream,
        "sleep": lambda cycles: time.sleep(cycles / _CYCLES_PER_S),
    }


def install(
    replaced: Replacements, cudart: Cudart, of_memory: dict[str, Callable[..., Any]], classes: dict[str, type]
) -> None:
    """Puts the names into `torch._C`.

    Args:
        replaced: what was replaced so far.
        cudart: the object that `torch.cuda.cudart()` returns.
        of_memory: functions of `torch.cuda` by the names that `torch._C._cuda_*` has for them.
        classes: classes of `torch._C` that have a meaning.
    """
    functions: dict[str, Any] = {name: _refused(f"_cuda_{name}") for name in REFUSED}
    functions |= {**answers(), **of_memory}
    for name, function in functions.items():
        replaced.put(torch._C, f"_cuda_{name}", function)
    for name in OTHERS_REFUSED:
        replaced.put(torch._C, name, _refused(name))
    for name in ("_host_emptyCache", "_accelerator_emptyHostCache"):
        replaced.put(torch._C, name, lambda: None)
    for name in CLASSES_REFUSED:
        replaced.put(torch._C, name, type(name, (), {"__new__": _refused(name)}))
    for name in MODULES:
        replaced.put(torch._C, name, RefusedModule(name))
    for name, kind in classes.items():
        replaced.put(torch._C, name, kind)
    for name, function in data_parallel.BETWEEN_DEVICES.items():
        replaced.put(torch._C, name, function)
    for owner in (torch._C, torch.cuda):
        replaced.put(owner, "_cudart", cudart)
    replaced.put(torch._C, "_nvtx", Nvtx("_nvtx"))
    replaced.put(torch.cuda.nvtx, "_nvtx", torch._C._nvtx)
    replaced.around(torch.cuda, "_is_compiled", lambda _original: not asked_by_torch())
    replaced.put(torch.cuda, "_exchange_device", _exchange_device)
    replaced.put(torch.cuda, "_maybe_exchange_device", _exchange_device)
