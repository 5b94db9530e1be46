"""Tensors without memory of their own are refused by name, before anything is moved; but for DTensors."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor, init_device_mesh
from torch.masked import masked_tensor
from torch.utils._pytree import tree_map_only

import umadvise
from umadvise import _native
from umadvise.errors import UsageError
from umadvise.records.enums import Role
from umadvise.torch_seam import runtime


class Sum(torch.Tensor):
    """The sum of two tensors, as quantized tensors of libraries are made of several."""

    first: torch.Tensor
    second: torch.Tensor

    @staticmethod
    def __new__(cls, first: torch.Tensor, second: torch.Tensor) -> "Sum":
        made: Sum = torch.Tensor._make_wrapper_subclass(cls, first.shape, dtype=first.dtype)
        made.first, made.second = first, second
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return Sum(args[0].first, args[0].second)
        args, kwargs = tree_map_only(Sum, lambda each: each.first + each.second, (args, kwargs or {}))
        return func(*args, **kwargs)


@pytest.fixture(scope="module")
def mesh() -> Iterator[Any]:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def with_weight(weight: torch.Tensor) -> nn.Module:
    model = nn.Sequential(nn.Linear(10, 10))
    model[0].weight = nn.Parameter(weight, requires_grad=False)
    return model


def test_dtensors_are_taken_by_their_local_tensors(mesh: Any) -> None:
    model = with_weight(distribute_tensor(torch.ones(10, 10), mesh, [Replicate()]))
    batch = distribute_tensor(torch.ones(3, 10), mesh, [Replicate()])
    with umadvise.session(model, device="emulated", capacity="16MiB", policy="swap") as um:
        weight = model[0].weight
        found = _native.allocation_at(runtime.address_of(weight.to_local()))
        assert found is not None
        assert (found.name, found.role) == ("0.weight", Role.PARAMETER)
        moved = um.to_device({"x": batch})["x"]
        assert umadvise.on_device(moved)
        assert umadvise.on_device(moved @ weight)
        assert torch.equal((moved @ weight).to_local(), torch.full((3, 10), 10.0))
        summed_later = DTensor.from_local(um.to_device(torch.ones(2)), mesh, [Partial()])
        assert summed_later.to("cpu").placements == (Partial(),)
        with pytest.raises(UsageError, match="the model has DTensors"):
            um.plan_ahead(lambda: model(moved))
    assert not umadvise.on_device(model[0].weight)


def test_tensors_that_are_made_of_others() -> None:
    weight = Sum(torch.ones(10, 10), torch.ones(10, 10))
    with (
        pytest.raises(UsageError, match=r"'0\.weight' is a \w+, a tensor that is made of others"),
        umadvise.session(with_weight(weight), device="emulated", capacity="16MiB", policy="advise"),
    ):
        pass
    jagged = torch.nested.nested_tensor([torch.ones(3, 3), torch.ones(2, 3)], layout=torch.jagged)
    with umadvise.session(nn.Linear(2, 2), device="emulated", capacity="16MiB") as um:
        for batch in (weight, jagged):
            with pytest.raises(UsageError, match=f"is a {type(batch).__name__}, .* the tensors that it is made of"):
                um.to_device(batch)
        assert umadvise.on_device(um.to_device(jagged.values()))


@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors")
def test_masked_tensors() -> None:
    batch = masked_tensor(torch.ones(3), torch.tensor([True, False, True]))
    with (
        umadvise.session(nn.Linear(2, 2), device="emulated", capacity="16MiB") as um,
        pytest.raises(UsageError, match="is a MaskedTensor"),
    ):
        um.to_device(batch)


def test_subclasses_with_memory_of_their_own_are_taken() -> None:
    class Tagged(torch.Tensor):
        pass

    model = with_weight(torch.ones(10, 10))
    with umadvise.session(model, device="emulated", capacity="16MiB") as um:
        assert umadvise.on_device(um.to_device(torch.ones(3).as_subclass(Tagged)))
        assert umadvise.on_device(um.to_device(torch.nested.nested_tensor([torch.ones(3), torch.ones(2)])))
        assert um.to_device(torch.empty(0)).numel() == 0
        assert umadvise.on_device(model[0].weight)
