"""Process groups, meshes and wrappers of modules in CUDA's words: NCCL is gloo, and each process has one GPU."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.distributed import device_mesh, distributed_c10d

from umadvise.torch_seam.cuda_spellings.words import ON_DEVICE, check_index
from umadvise.torch_seam.replacements import Replacements


def _gloo(backend: Any) -> Any:
    """The backend in the place of one that is, or has, NCCL ("nccl", "cpu:gloo,cuda:nccl")."""
    return "gloo" if isinstance(backend, str) and "nccl" in backend.lower() else backend


def _init_process_group(
    replaced: Replacements, original: Callable[..., Any], backend: Any = None, *arguments: Any, **named: Any
) -> Any:
    named.pop("device_id", None)  # gloo needs none
    _install_sharding(replaced)
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


def _destroy_process_group(
    kept: list[torch.distributed.ProcessGroup], original: Callable[..., None], *arguments: Any, **named: Any
) -> None:
    """A group outlives what else holds it, as DistributedDataParallel's reducer does.

    Who lets go of a group of gloo last waits for its threads, and these may wait for Python to let go of a tensor.
    Python's own reference ends without Python's lock; a reducer's ends with it, and then both would wait forever.
    """
    kept.extend(distributed_c10d._world.pg_map)
    original(*arguments, **named)


def _default_backend(original: Callable[..., str], device: Any) -> str:
    return _gloo(original(device))  # type: ignore[no-any-return]


def _init_mesh(
    replaced: Replacements, original: Callable[..., Any], self: Any, device_type: str, *arguments: Any, **named: Any
) -> None:
    _install_sharding(replaced)  # a mesh makes a process group where there is none
    original(self, "cpu" if device_type == "cuda" else device_type, *arguments, **named)


def _init_device_mesh(original: Callable[..., Any], device_type: str, *arguments: Any, **named: Any) -> Any:
    return original("cpu" if device_type == "cuda" else device_type, *arguments, **named)


def _init_data_parallel(original: Callable[..., None], self: Any, *arguments: Any, **named: Any) -> None:
    """The module is on this process's device already; to torch it is one of the CPU's, which takes no `device_ids`."""
    device_ids = named.pop("device_ids", arguments[1] if len(arguments) > 1 else None)
    output_device = named.pop("output_device", arguments[2] if len(arguments) > 2 else None)
    for device in (*(device_ids or ()), output_device):
        _check_device(device)
    original(self, *arguments[:1], *(None for _ in arguments[1:3]), *arguments[3:], **named)


def _init_sharded(original: Callable[..., None], self: Any, *arguments: Any, **named: Any) -> None:
    """FullyShardedDataParallel moves what it shards onto the device, whichever way it is told; torch knows no other."""
    given = inspect.signature(original).bind(self, *arguments, **named)
    _check_device(given.arguments.get("device_id"))
    given.arguments["device_id"] = ON_DEVICE
    original(*given.args, **given.kwargs)


def _compute_device(original: Callable[..., torch.device], *arguments: Any, **named: Any) -> torch.device:
    """Where FullyShardedDataParallel puts a module's inputs: torch makes it anew from its words."""
    original(*arguments, **named)
    return ON_DEVICE


def _check_device(device: Any) -> None:
    check_index(device.index if isinstance(device, torch.device) else device)


def install(replaced: Replacements) -> None:
    """Replaces what makes process groups and meshes, and what is told devices."""
    kept: list[torch.distributed.ProcessGroup] = []
    for module in (torch.distributed, distributed_c10d):
        replaced.around(module, "destroy_process_group", partial(_destroy_process_group, kept))
        replaced.around(module, "init_process_group", partial(_init_process_group, replaced))
        replaced.around(module, "new_group", _new_group)
        replaced.around(module, "barrier", _barrier)
        replaced.around(module, "get_default_backend_for_device", _default_backend)
        replaced.put(module, "is_nccl_available", lambda: True)
    for module in (torch.distributed, device_mesh):
        replaced.around(module, "init_device_mesh", _init_device_mesh)
    replaced.around(device_mesh.DeviceMesh, "__init__", partial(_init_mesh, replaced))
    replaced.around(torch.nn.parallel.DistributedDataParallel, "__init__", _init_data_parallel)


def _install_sharding(replaced: Replacements) -> None:
    """Replaces what the older FSDP asks for its device, when there are several ranks: its import takes a while."""
    from torch.distributed.fsdp import FullyShardedDataParallel, _init_utils

    if not hasattr(_init_utils._get_compute_device, "__wrapped__"):  # not yet
        replaced.around(FullyShardedDataParallel, "__init__", _init_sharded)
        replaced.around(_init_utils, "_get_compute_device", _compute_device)
        replaced.put(_init_utils, "_check_module_states_for_sync_module_states", lambda _states: None)  # are on a GPU
        replaced.put(torch.cpu.Stream, "synchronize", lambda _stream: None)  # which all others have
