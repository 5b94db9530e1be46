"""Process groups, meshes and DistributedDataParallel in CUDA's words: NCCL is gloo, and each process has one GPU."""

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import device_mesh, distributed_c10d

from umadvise.torch_seam.cuda_spellings.words import check_index
from umadvise.torch_seam.replacements import Replacements


def _gloo(backend: Any) -> Any:
    """The backend in the place of one that is, or has, NCCL ("nccl", "cpu:gloo,cuda:nccl")."""
    return "gloo" if isinstance(backend, str) and "nccl" in backend.lower() else backend


def _init_process_group(original: Callable[..., Any], backend: Any = None, *arguments: Any, **named: Any) -> Any:
    named.pop("device_id", None)  # gloo needs none
    return original(_gloo(backend), *arguments, **named)


def _new_group(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    named.pop("device_id", None)
    if len(arguments) > 2:
        arguments = (*arguments[:2], _gloo(arguments[2]), *arguments[3:])
    if "backend" in named:
        named["backend"] = _gloo(named["backend"])
    return original(*arguments, **named)


def _barrier(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    named.pop("device_ids", None)
    return original(*arguments, **named)


def _default_backend(original: Callable[..., str], device: Any) -> str:
    return _gloo(original(device))  # type: ignore[no-any-return]


def _init_mesh(original: Callable[..., Any], self: Any, device_type: str, *arguments: Any, **named: Any) -> None:
    original(self, "cpu" if device_type == "cuda" else device_type, *arguments, **named)


def _init_device_mesh(original: Callable[..., Any], device_type: str, *arguments: Any, **named: Any) -> Any:
    return original("cpu" if device_type == "cuda" else device_type, *arguments, **named)


def _init_data_parallel(original: Callable[..., None], self: Any, *arguments: Any, **named: Any) -> None:
    """The module is on this process's device already; to torch it is one of the CPU's, which takes no `device_ids`."""
    device_ids = named.pop("device_ids", arguments[1] if len(arguments) > 1 else None)
    output_device = named.pop("output_device", arguments[2] if len(arguments) > 2 else None)
    for index in (*(device_ids or ()), output_device):
        check_index(index.index if isinstance(index, torch.device) else index)
    original(self, *arguments[:1], *(None for _ in arguments[1:3]), *arguments[3:], **named)


def install(replaced: Replacements) -> None:
    """Replaces what makes process groups and meshes, and what is told devices."""
    for module in (torch.distributed, distributed_c10d):
        replaced.around(module, "init_process_group", _init_process_group)
        replaced.around(module, "new_group", _new_group)
        replaced.around(module, "barrier", _barrier)
        replaced.around(module, "get_default_backend_for_device", _default_backend)
        replaced.put(module, "is_nccl_available", lambda: True)
    for module in (torch.distributed, device_mesh):
        replaced.around(module, "init_device_mesh", _init_device_mesh)
    replaced.around(device_mesh.DeviceMesh, "__init__", _init_mesh)
    replaced.around(torch.nn.parallel.DistributedDataParallel, "__init__", _init_data_parallel)
