"""Operators of other libraries: what their schemas keep quiet about counts as written."""

import ctypes
from collections.abc import Callable, Iterator

import pytest
import torch
from reference_interposer import ReferenceInterposer, observed_natively
from torch import nn

import umadvise
from umadvise import _native
from umadvise.recording.operators import derive
from umadvise.records.trace import Access

SIZE = 600_000  # above half a chunk, so that it can be swapped


def _add_one(*tensors: torch.Tensor) -> None:
    for tensor in tensors:
        tensor.add_(1)


@pytest.fixture(scope="module")
def toys() -> Iterator[torch._ops._OpNamespace]:
    library = torch.library.Library("umadvise_toys", "DEF")
    library.define("quiet(Tensor x, Tensor y) -> ()")
    library.define("nested(Tensor[][] outputs, Tensor[] inputs) -> ()")
    library.define("honest(Tensor(a!) x, Tensor y) -> ()")
    library.define("promised(Tensor x) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
    library.define("promised_(Tensor x) -> ()", tags=(torch.Tag.pt2_compliant_tag,))
    library.define("viewing(Tensor(a) x) -> Tensor(a)")
    for name in ("quiet", "promised_"):
        library.impl(name, lambda x, *_: _add_one(x), "CPU")
    library.impl("nested", lambda outputs, *_: [_add_one(*each) for each in outputs].clear(), "CPU")
    library.impl("honest", lambda x, *_: _add_one(x), "CPU")
    library.impl("promised", lambda x: x + 1, "CPU")
    library.impl("viewing", lambda x: x[1:] if float(x[0]) > 0 else x, "CPU")
    yield torch.ops.umadvise_toys
    library._destroy()


@torch.library.custom_op("umadvise_toys_too::declared", mutates_args=())
def declared(x: torch.Tensor) -> torch.Tensor:
    """An author who was asked what it writes."""
    return x + 1


@torch.library.custom_op("umadvise_toys_too::unsure", mutates_args="unknown")
def unsure(x: torch.Tensor) -> torch.Tensor:
    """Nobody can tell."""
    return x + 1


def push_out() -> None:
    kept = [torch.full((SIZE,), 7.0) for _ in range(12)]
    for each in kept:
        each.add_(1)


@pytest.mark.parametrize("policy", ["swap", "advise"])
def test_what_they_write_survives(policy: str, toys: torch._ops._OpNamespace) -> None:
    with umadvise.session(nn.Linear(2, 2), device="emulated", capacity="24MiB", policy=policy) as um:
        tensors = [torch.zeros(SIZE) for _ in range(4)]
        only_read = torch.ones(SIZE)
        push_out()
        for _ in range(3):
            for tensor in (*tensors, only_read):
                assert tensor.sum() >= 0  # comes back, and is clean
            toys.quiet(tensors[0], tensors[1])
            toys.nested([[tensors[1], tensors[2]], [tensors[3]]], [tensors[0]])
            toys.promised_(tensors[0])
            push_out()
        assert policy == "advise" or um.swap_counters().clean_drops
        assert [float(tensor[-1]) for tensor in tensors] == [6, 3, 3, 3]
        assert [float(tensor.sum()) for tensor in tensors] == [6 * SIZE, 3 * SIZE, 3 * SIZE, 3 * SIZE]


@pytest.mark.parametrize("policy", ["swap", "advise"])
def test_what_is_held_can_be_written_by_address(policy: str) -> None:
    with umadvise.session(nn.Linear(2, 2), device="emulated", capacity="24MiB", policy=policy):
        tensors = [torch.zeros(SIZE) for _ in range(2)]
        push_out()
        assert not any(tensor.sum() for tensor in tensors)  # back, and clean
        with umadvise.held(*tensors, torch.empty(0)):
            push_out()  # what is held stays
            for tensor in tensors:
                ctypes.memset(umadvise.torch_seam.runtime.address_of(tensor), 0x3F, 4 * SIZE)
        push_out()
        expected = float(torch.full((1,), 0x3F3F3F3F, dtype=torch.int32).view(torch.float32))
        assert all(bool((tensor == expected).all()) for tensor in tensors)
        assert [
            each.exports for each in umadvise.torch_seam.runtime.current().device.allocations() if each.exports
        ] == []


def test_torchs_own_collectives_count_as_writing() -> None:
    for name, nested in (
        ("allreduce_", False),
        ("broadcast_", False),
        ("_allgather_base_", False),
        ("allgather_", True),
    ):
        func = getattr(torch.ops.c10d, name).default
        assert not any(argument.alias_info for argument in func._schema.arguments)
        assert any("List[List" in str(argument.type) for argument in func._schema.arguments) == nested
        arguments = derive(func).arguments
        assert any(argument.flags & Access.WRITE for argument in arguments)
        assert all(bool(argument.flags & Access.WRITE) != argument.name.startswith("input") for argument in arguments)


def test_the_state_of_dropout_advances_in_training() -> None:
    rnn = derive(torch.ops.aten._cudnn_rnn.default)
    (state,) = [each for each in rnn.arguments if each.flags & Access.WRITE]
    assert (state.name, state.only_in_training) == ("dropout_state", True)
    assert torch.ops.aten._cudnn_rnn.default._schema.arguments[rnn.training_index].name == "train"


def test_native_and_python_agree_on_who_is_believed(
    device: _native.Device, route: Callable[..., None], toys: torch._ops._OpNamespace
) -> None:
    route()
    x, y, z = torch.ones(10), torch.ones(10), torch.ones(10)

    def calls() -> None:
        toys.quiet(x, y)
        toys.nested([[x], [y, z]], [z])
        toys.honest(x, y)
        toys.promised(x)
        toys.promised_(x)
        toys.viewing(x)
        declared(x)
        unsure(x)

    _native.interpose(device)
    device.record(True)
    calls()
    device.record(False)
    _native.interpose(None)
    native = observed_natively(device.recorded())
    with ReferenceInterposer() as reference:
        calls()
    expected = {
        "quiet": [True, True],
        "nested": [True] * 4,
        "honest": [True, False],
        "promised": [False],
        "promised_": [True],
        "viewing": [False],
        "declared": [False],
        "unsure": [True],
    }
    for observed in (native, reference.observed):
        assert {op.name.partition("::")[2]: [each.write for each in op.accesses] for op in observed} == expected
    for name in expected:
        space = toys if hasattr(toys, name) else torch.ops.umadvise_toys_too
        flags = [bool(each.flags & Access.WRITE) for each in derive(getattr(space, name).default).arguments]
        assert flags == ([True, True] if name == "nested" else expected[name])
