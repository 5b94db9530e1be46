"""`torch.nn.parallel` on the one GPU of a process: scatter, gather, broadcast and replicate.

torch's own functions refuse tensors of the CPU, which those on the emulated device are to it. They are built on four
autograd functions, whose `apply` is replaced, and on functions of torch's CUDA build, which work on the one device.
"""

import importlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.cuda import comm as cuda_comm
from torch.nn.parallel import _functions, comm, scatter_gather

from umadvise.records.enums import Role
from umadvise.torch_seam.cuda_spellings.words import check_index, own_index
from umadvise.torch_seam.placement import to_device
from umadvise.torch_seam.replacements import Replacements

_Tensors = Sequence[torch.Tensor]


def _check(devices: Sequence[Any]) -> int:
    for device in devices:
        check_index(device.index if isinstance(device, torch.device) else device)
    return len(devices)


def _scatter(
    tensor: torch.Tensor, devices: Sequence[int], sizes: Sequence[int] | None, dim: int, _streams: Any = None
) -> tuple[torch.Tensor, ...]:
    """As torch::cuda::scatter: in chunks of about the same size, unless sizes are given."""
    parts = tensor.chunk(_check(devices), dim) if sizes is None else tensor.split(list(sizes), dim)
    return tuple(part.to("cuda") for part in parts)


def _gather(tensors: _Tensors, dim: int, destination: int | None = None) -> torch.Tensor:
    """As torch::cuda::gather; -1 is the CPU."""
    joined = torch.cat(list(tensors), dim)
    if destination == -1:
        return joined.to("cpu")
    check_index(destination)
    return joined.to("cuda")


def _broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """As torch::cuda::broadcast: a tensor on the first device is itself what that one gets."""
    first = tensor.to("cuda")
    return tuple(first if place == 0 else first.clone() for place in range(_check(devices)))


def _broadcast_coalesced(tensors: _Tensors, devices: Sequence[int], _buffer_size: int = 0) -> list[list[torch.Tensor]]:
    each = [_broadcast(tensor, devices) for tensor in tensors]
    return [[copies[place] for copies in each] for place in range(_check(devices))]


def _broadcast_out(tensor: torch.Tensor, outs: _Tensors) -> _Tensors:
    for out in outs:
        out.copy_(tensor)
    return outs


def _scatter_out(tensor: torch.Tensor, outs: _Tensors, dim: int, _streams: Any = None) -> _Tensors:
    for out, part in zip(outs, tensor.split([out.size(dim) for out in outs], dim), strict=True):
        out.copy_(part)
    return outs


def _gather_out(tensors: _Tensors, out: torch.Tensor, dim: int) -> torch.Tensor:
    return torch.cat(list(tensors), dim, out=out)


BETWEEN_DEVICES: dict[str, Callable[..., Any]] = {
    "_broadcast": _broadcast,
    "_broadcast_coalesced": _broadcast_coalesced,
    "_broadcast_out": _broadcast_out,
    "_gather": _gather,
    "_gather_out": _gather_out,
    "_scatter": _scatter,
    "_scatter_out": _scatter_out,
}
"""Functions of `torch._C` in torch's CUDA build, under their names."""


def _apply_scatter(devices: Sequence[Any], sizes: Any, dim: int, tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return _scatter(tensor, devices, sizes, dim)


def _apply_gather(destination: Any, dim: int, *tensors: torch.Tensor) -> torch.Tensor:
    if dim == 0 and all(tensor.dim() == 0 for tensor in tensors):
        tensors = tuple(tensor.view(1) for tensor in tensors)
        warnings.warn(
            "Was asked to gather along dimension 0, but all input tensors were scalars; will instead unsqueeze and "
            "return a vector.",
            stacklevel=2,
        )
    index = destination.index if isinstance(destination, torch.device) else destination
    return _gather(tensors, dim, -1 if str(destination) == "cpu" else index)


def _apply_broadcast(devices: Sequence[Any], *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Views, so that gradients of all copies are added up."""
    tensors = tuple(to_device(tensor, Role.INPUT, None) for tensor in tensors)
    return tuple(tensor.view_as(tensor) for _ in range(_check(devices)) for tensor in tensors)


def _reduce_add(inputs: _Tensors, destination: Any = None) -> torch.Tensor:
    """As comm.reduce_add: the sum, in order, of tensors of one shape; one tensor is its own sum."""
    check_index(destination.index if isinstance(destination, torch.device) else destination)
    for index, each in enumerate(inputs):
        if each.size() != inputs[0].size():
            got, expected = ("x".join(map(str, size)) for size in (each.size(), inputs[0].size()))
            raise ValueError(f"input {index} has invalid size: got {got}, but expected {expected}")
    result = inputs[0]
    for each in inputs[1:]:
        result = result + each
    return result


def _reduce_add_coalesced(inputs: Sequence[_Tensors], destination: Any = None, _size: int = 0) -> tuple[Any, ...]:
    return tuple(_reduce_add(each, destination) for each in zip(*inputs, strict=True))


def _apply_reduce(destination: Any, count: int, *gradients: torch.Tensor) -> tuple[Any, ...]:
    groups = [gradients[first : first + count] for first in range(0, len(gradients), count)]
    return _reduce_add_coalesced(groups, destination)


def _on_one(
    _original: Callable[..., Any],
    module: torch.nn.Module,
    inputs: Any,
    device_ids: Any = None,
    output_device: Any = None,
    dim: int = 0,
    module_kwargs: Any = None,
) -> Any:
    """`torch.nn.parallel.data_parallel`: one device runs the module itself."""
    devices = [own_index()] if device_ids is None else list(device_ids)
    _check([*devices, None if output_device == -1 else output_device])
    arguments = inputs if isinstance(inputs, tuple) else () if inputs is None else (inputs,)
    scattered, named = scatter_gather.scatter_kwargs(arguments, module_kwargs, devices[:1], dim)
    result = module(*(scattered[0] if scattered else ()), **(named[0] if named else {}))
    return result.to("cpu") if output_device == -1 else result


def _apply_in_turn(
    _original: Callable[..., list[Any]], modules: Any, inputs: Any, kwargs_tup: Any = None, devices: Any = None
) -> list[Any]:
    """`torch.nn.parallel.parallel_apply`: one device runs one module after another."""
    _check(devices or ())
    named = kwargs_tup or [{}] * len(modules)
    together = zip(modules, inputs, named, strict=True)
    return [module(*(each if isinstance(each, list | tuple) else (each,)), **words) for module, each, words in together]


def install(replaced: Replacements) -> None:
    """Replaces what `torch.nn.parallel` and `torch.cuda.comm` are built on."""
    for kind, apply in (
        (_functions.Scatter, _apply_scatter),
        (_functions.Gather, _apply_gather),
        (_functions.Broadcast, _apply_broadcast),
        (_functions.ReduceAddCoalesced, _apply_reduce),
    ):
        replaced.put(kind, "apply", staticmethod(apply))
    for owner in (comm, cuda_comm):
        replaced.put(owner, "reduce_add", _reduce_add)
        replaced.put(owner, "reduce_add_coalesced", _reduce_add_coalesced)
    for name, function in (("data_parallel", _on_one), ("parallel_apply", _apply_in_turn)):
        for owner in (torch.nn.parallel, importlib.import_module(f"torch.nn.parallel.{name}")):
            replaced.around(owner, name, function)
