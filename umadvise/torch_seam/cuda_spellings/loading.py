"""Files and data loaders: `torch.load` and `torch.jit.load` onto the GPU, and the worker processes of a DataLoader."""

import gc
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import serialization
from torch.utils.data import _utils, dataloader

from umadvise import _native
from umadvise.records.enums import Role
from umadvise.torch_seam.cuda_spellings.words import target_of
from umadvise.torch_seam.replacements import Replacements
from umadvise.torch_seam.runtime import HOST, current, storage_address

_LOADER_PARTS = ("dataset", "collate_fn", "sampler", "batch_sampler", "worker_init_fn", "generator")
_NOT_DATA = (type, types.ModuleType, types.FrameType, types.CodeType, str, bytes)


def _load(original: Callable[..., Any], f: Any, map_location: Any = None, *arguments: Any, **named: Any) -> Any:
    """Storages of a file that go to the GPU move there when all is read; what a GPU wrote goes there by default."""
    arriving: list[torch.UntypedStorage] = []

    def place(storage: Any, location: str) -> Any:
        wanted = map_location(storage, location) if callable(map_location) else _named(map_location, location)
        if wanted is None:
            wanted = location
        if not isinstance(wanted, str | torch.device):
            return wanted  # a storage, from the script's own function
        if target_of(wanted) is None:
            return serialization.default_restore_location(storage, str(wanted))
        arriving.append(storage)
        return storage

    loaded = original(f, place, *arguments, **named)
    for storage in arriving:
        if storage.nbytes() > 0:
            current().take_in(storage, Role.INPUT)
    return loaded


def _load_script(original: Callable[..., Any], f: Any, map_location: Any = None, *arguments: Any, **named: Any) -> Any:
    """TorchScript places what it reads in C++; what goes to the GPU moves there when all is read."""
    if target_of(map_location) is None:
        return original(f, map_location, *arguments, **named)
    return original(f, torch.device("cpu"), *arguments, **named).to(map_location)


def _named(map_location: Any, location: str) -> Any:
    return map_location.get(location, location) if isinstance(map_location, dict) else map_location


def _without_pinning(original: Callable[..., None], self: Any, loader: Any) -> None:
    """Batches wait in ordinary memory, from which they are copied as fast: no thread pins them."""
    wanted = loader.pin_memory
    loader.pin_memory = False
    try:
        original(self, loader)
    finally:
        loader.pin_memory = wanted


def _with_workers(original: Callable[..., None], self: Any, loader: Any) -> None:
    """Workers are forked: what they read must lie in ordinary memory, for the device stays with this process."""
    for part in _LOADER_PARTS:
        for tensor in _tensors_of(getattr(loader, part, None)):
            _to_ordinary_memory(tensor)
    original(self, loader)


def _to_ordinary_memory(tensor: torch.Tensor) -> None:
    storage = tensor.untyped_storage()
    if _native.owns(storage_address(storage)):
        _native.give_back_storage(storage._cdata)


def _tensors_of(root: Any) -> Iterator[torch.Tensor]:
    """All tensors that an object holds, however deep; what functions see as globals is not searched."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        found = waiting.pop()
        if id(found) in seen or isinstance(found, _NOT_DATA):
            continue
        seen.add(id(found))
        if isinstance(found, torch.Tensor):
            if found.layout is torch.strided and found.device.type == "cpu":
                yield found
        elif isinstance(found, types.FunctionType):
            waiting += [cell.cell_contents for cell in found.__closure__ or () if cell != types.CellType()]
        elif gc.is_tracked(found):
            waiting += gc.get_referents(found)


def _in_worker(original: Callable[..., None], *arguments: Any, **named: Any) -> None:
    if current().forked:
        _native.interpose(None)
        _native.set_thread_route(HOST)
    original(*arguments, **named)


def install(replaced: Replacements) -> None:
    """Replaces `torch.load`, `torch.jit.load` and what a DataLoader does about memory."""
    replaced.around(torch, "load", _load)
    replaced.around(torch.jit, "load", _load_script)
    replaced.around(dataloader._BaseDataLoaderIter, "__init__", _without_pinning)
    replaced.around(dataloader._MultiProcessingDataLoaderIter, "__init__", _with_workers)
    replaced.around(_utils.worker, "_worker_loop", _in_worker)
