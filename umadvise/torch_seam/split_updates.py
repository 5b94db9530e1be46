"""Optimizer steps that take every parameter at once, made to take as many as fit: whole updates over part of them.

`foreach` and fused steps of torch.optim run each op for all parameters, so that every parameter, gradient and state is
needed by one op, and all of them by all ops in turn. Their functional forms (`torch.optim.adam.adam(params, grads,
exp_avgs, ...)`) know everything that belongs to a parameter: called for some parameters after the others, each group's
memory is needed once, for one whole update. No number changes, as an update looks at no other parameter.

What fits in one call is not split, nor what torch updates parameter by parameter anyway (`foreach=False`; on the CPU
also by default).
"""

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer

from umadvise.records.units import taken_bytes
from umadvise.torch_seam.replacements import Replacements
from umadvise.torch_seam.tensors import local_part
from umadvise.torch_seam.traced import unless_compiled

# The modules of torch.optim (2.9 to 2.15) whose functional form, which has the module's name, has a `foreach` or fused
# variant. An optimizer's step finds it there.
MODULES = (
    *("sgd", "adam", "adamw", "adadelta", "adagrad", "adamax", "asgd", "nadam", "radam", "rmsprop", "rprop"),
    "_adafactor",
)

Update = Callable[..., None]
Entry = list[torch.Tensor | None]  # what belongs to one parameter: itself, its gradient, its states


def install(replaced: Replacements, limit_bytes: Callable[[], int | None], unit_bytes: int = 1) -> None:
    """Splits the updates of torch.optim from now on, until `replaced.undo()`.

    Args:
        replaced: remembers torch's own functions.
        limit_bytes: asked before each update: how many bytes one call's parameters, gradients and states may take; None
            is no limit. What an update makes on its way (up to twice its parameters) comes on top.
        unit_bytes: memory is taken in units of so many bytes: storages above half a unit count in whole ones, smaller
            ones, which share units, in parts of one. 1 counts bytes.
    """
    make = functools.partial(_splitting, limit_bytes=limit_bytes, unit_bytes=unit_bytes)
    for module in MODULES:
        replaced.replace(importlib.import_module(f"torch.optim.{module}"), module.lstrip("_"), make)


def _splitting(original: Update, *, limit_bytes: Callable[[], int | None], unit_bytes: int) -> Update:
    signature = inspect.signature(original)

    def update(*args: Any, **kwargs: Any) -> None:
        limit = limit_bytes()
        if limit is None:
            return original(*args, **kwargs)
        call = signature.bind(*args, **kwargs).arguments
        lists = _lists(signature, call)
        if not lists or not _takes_all_at_once(call):
            return original(*args, **kwargs)
        parts = parts_of(list(zip(*lists.values(), strict=True)), limit, unit_bytes)
        if len(parts) == 1 or not _may_be_split(call, lists):
            return original(*args, **kwargs)
        for part in parts:
            some = {name: values[part] for name, values in lists.items()}
            original(**{**call, **some})
            for name, values in some.items():  # SGD puts the momentum that it makes into the list
                lists[name][part] = values
        return None

    return unless_compiled(update, original)


def _lists(signature: inspect.Signature, call: dict[str, Any]) -> dict[str, Entry]:
    """The lists with an element for each parameter.

    None where lengths differ, for which torch has errors, and with sparse gradients, which make it go one by one.
    """
    lists = {
        name: value
        for name, value in call.items()
        if isinstance(value, list) and value and signature.parameters[name].kind is not inspect.Parameter.KEYWORD_ONLY
    }
    dense = all(tensor is None or tensor.layout is torch.strided for values in lists.values() for tensor in values)
    return lists if dense and len({len(values) for values in lists.values()}) == 1 else {}


def _takes_all_at_once(call: dict[str, Any]) -> bool:
    foreach, fused = call.get("foreach"), call.get("fused")
    if foreach is None and fused is None:  # torch's own choice
        parameters = next(iter(call.values()))
        _, foreach = torch_optimizer._default_to_fused_or_foreach(parameters, call.get("differentiable", False))
    return bool(foreach or fused)


def _may_be_split(call: dict[str, Any], lists: dict[str, Entry]) -> bool:
    """Whether torch does the same to a parameter in a part of the lists as in all of them.

    It looks at all parameters of one device and type together to choose between kernels whose last bits may differ: one
    missing momentum, or tensors of one parameter that lie differently in memory, make it go through them one by one
    (torch/optim/sgd.py, ATen/native/ForeachUtils.h). Adafactor takes the smallest number of the first type that it
    meets for all.
    """
    forms: dict[Any, set[Any]] = {}
    for entry in zip(*lists.values(), strict=True):
        parameter, gradient = entry[0], entry[1]
        together = (parameter.device, parameter.dtype, "row_vars" in lists and gradient.dim() > 1)
        forms.setdefault(together, set()).add(tuple(_form(tensor, parameter) for tensor in entry))
    if any(len(found) > 1 for found in forms.values()):
        return False
    return "eps1" not in call or call["eps1"] is not None or len({dtype for _, dtype, _ in forms}) == 1


def _form(tensor: torch.Tensor | None, parameter: torch.Tensor) -> Any:
    if tensor is None:
        return None
    if tensor.is_contiguous():
        aligned = parameter.is_contiguous() or tensor.numel() <= 1
        return tensor.device, tensor.dtype, True, aligned or tensor.shape != parameter.shape
    aligned = tensor.shape != parameter.shape or tensor.stride() == parameter.stride()
    return tensor.device, tensor.dtype, _span(tensor) == tensor.numel(), aligned


def _span(tensor: torch.Tensor) -> int:
    """Elements from the first to the last that a tensor's strides can reach."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in steps) if tensor.numel() else 0


# ---- which parameters go together ----------------------------------------------------------------------------------


def parts_of(entries: Sequence[Sequence[torch.Tensor | None]], limit_bytes: int, unit_bytes: int = 1) -> list[slice]:
    """Cuts entries into runs that take at most a limit, each as long as possible.

    Entries that have memory in common stay together, with all between them, as ops over whole lists do all of one kind
    before the next: those and single entries may take more than the limit. The same sizes give the same runs.

    Args:
        entries: tensors that each parameter's update uses: itself, its gradient and its states.
        limit_bytes: the most bytes that the storages of one run may take, each counted once.
        unit_bytes: size of the pieces in which memory is counted: a storage above half of it counts in whole units, a
            smaller one in parts of one. 1 counts bytes.
    """
    storages = [_storages(entry, unit_bytes) for entry in entries]
    parts: list[slice] = []
    begin, held_bytes = 0, 0
    held: set[int] = set()
    for first, last in _inseparable(entries, storages):
        run = {key: size for entry in storages[first : last + 1] for key, size in entry.items()}
        added_bytes = sum(size for key, size in run.items() if key not in held)
        if first > begin and held_bytes + added_bytes > limit_bytes:
            parts.append(slice(begin, first))
            begin, held, held_bytes, added_bytes = first, set(), 0, sum(run.values())
        held |= run.keys()
        held_bytes += added_bytes
    return [*parts, slice(begin, len(entries))]


def _storages(entry: Sequence[torch.Tensor | None], unit_bytes: int) -> dict[int, int]:
    """Bytes in whole units by the storage's identity."""
    sizes: dict[int, int] = {}
    for tensor in entry:
        if tensor is not None:
            storage = local_part(tensor).untyped_storage()
            sizes[storage._cdata] = taken_bytes(storage.nbytes(), unit_bytes)
    return sizes


def _inseparable(
    entries: Sequence[Sequence[torch.Tensor | None]], storages: Sequence[dict[int, int]]
) -> Iterator[tuple[int, int]]:
    """First and last entry of the shortest runs that have no memory in common."""
    reach = list(range(len(entries)))
    for first, last in _overlaps(entries, storages):
        reach[first] = max(reach[first], last)
    begin = furthest = 0
    for index, last in enumerate(reach):
        furthest = max(furthest, last)
        if index == furthest:
            yield begin, index
            begin = furthest = index + 1


def _overlaps(
    entries: Sequence[Sequence[torch.Tensor | None]], storages: Sequence[dict[int, int]]
) -> Iterator[tuple[int, int]]:
    """Pairs of entries with a tensor each whose bytes overlap; enough of them to connect all that do."""
    owner: dict[int, int] = {}
    shared = {key for index, entry in enumerate(storages) for key in entry if owner.setdefault(key, index) != index}
    if not shared:
        return
    ranges: dict[int, list[tuple[int, int, int]]] = {key: [] for key in shared}
    for index, entry in enumerate(entries):
        for tensor in (local_part(each) for each in entry if each is not None):
            if tensor.numel() and (key := tensor.untyped_storage()._cdata) in shared:
                start = int(tensor.storage_offset()) * tensor.itemsize
                ranges[key].append((start, start + _span(tensor) * tensor.itemsize, index))
    for found in ranges.values():
        furthest_byte, furthest_index = 0, 0
        for start, stop, index in sorted(found):
            if start < furthest_byte:
                yield min(index, furthest_index), max(index, furthest_index)
            if stop > furthest_byte:
                furthest_byte, furthest_index = stop, index
