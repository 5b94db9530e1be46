"""Storages that show memory of ours, and are told of another address: what torch makes of it, and what they refuse."""

import copy
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from owners_core import Core
from torch import nn

import umadvise
from umadvise import _native
from umadvise._native.abi import Placement, Route, RouteState
from umadvise.torch_seam import doors
from umadvise.torch_seam.runtime import address_of

KIB = 1 << 10


@pytest.fixture
def core(device: _native.Device) -> Core:
    _native.install_allocator()
    return Core(device)


@pytest.fixture
def made(route: Callable[..., None]) -> Callable[..., torch.Tensor]:
    """A tensor in our memory: 0, 1, 2, ..."""

    def make(length: int = 1000) -> torch.Tensor:
        route()
        tensor = torch.arange(float(length))
        _native.set_thread_route(Route(RouteState.OFF))
        return tensor

    return make


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()


def remembered(core: Core, tensor: torch.Tensor) -> int:
    owner = core.remember(storage_of(tensor))
    assert owner is not None
    return owner


# ---- what follows ----------------------------------------------------------------------------------------------------


def test_views_follow(core: Core, made: Callable[..., torch.Tensor]) -> None:
    base = made(24)
    views = [base[3:], base.view(4, 6).t(), base[::5], base.view(torch.int32)[7:9]]
    expected = [base.clone(), *[view.clone() for view in views]]
    for _ in range(3):
        core.move_all(views[0])
        assert all(map(torch.equal, [base, *views], expected))
    base.add_(1)
    assert torch.equal(views[0], expected[1] + 1)
    assert core.device.info().live_allocations == 1


def test_training_is_what_it_is_without_moves(core: Core, route: Callable[..., None]) -> None:
    def train(move: Callable[..., object]) -> list[torch.Tensor]:
        saved: list[torch.Tensor] = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            saved.append(tensor)
            return tensor

        torch.manual_seed(2)
        model = nn.Sequential(nn.Linear(40, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        parameters, losses = list(model.parameters()), []
        for _ in range(3):
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                loss = model(torch.randn(16, 40)).square().mean()
            move(loss, *parameters, *saved)
            saved.clear()
            loss.backward()
            gradients = [parameter.grad for parameter in parameters]
            move(*gradients)
            assert all(parameter.grad is grad for parameter, grad in zip(parameters, gradients, strict=True))
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            move(*parameters, *(state["exp_avg"] for state in optimizer.state.values()))
            losses.append(loss.detach())
        return [*losses, *(parameter.detach() for parameter in parameters)]

    expected = train(lambda *_: None)
    route()
    assert all(map(torch.equal, train(core.move_all), expected))


def test_an_adopted_storage_follows_with_what_it_was_before(core: Core) -> None:
    array = np.arange(1000, dtype=np.float32)
    tensor = torch.from_numpy(array)
    _native.adopt_storage(storage_of(tensor)._cdata, core.device, Placement())
    for _ in range(2):
        core.move_all(tensor)
        assert torch.equal(tensor, torch.arange(1000.0))
    array.fill(-1)  # shared no longer, but still there
    _native.adopt_storage(storage_of(tensor)._cdata, core.device, Placement())
    core.move_all(tensor)
    assert torch.equal(tensor, torch.arange(1000.0))
    del tensor
    assert core.device.info().live_allocations == 0


def test_a_tensor_set_onto_the_storage_follows(core: Core, made: Callable[..., torch.Tensor]) -> None:
    source, other = made(), made(10)
    other.set_(source)
    assert core.device.info().live_allocations == 1
    core.move_all(source)
    assert torch.equal(other, torch.arange(1000.0))
    assert other.data_ptr() == source.data_ptr()


def test_a_deep_copy_stays_apart(core: Core, made: Callable[..., torch.Tensor]) -> None:
    original = made()
    core.move_all(original)
    duplicate = copy.deepcopy(original)
    core.move_all(original)
    original.zero_()
    assert torch.equal(duplicate, torch.arange(1000.0))


# ---- storages that get other memory ----------------------------------------------------------------------------------


def test_a_resized_storage_has_other_memory(core: Core, made: Callable[..., torch.Tensor]) -> None:
    tensor = made()
    core.move_all(tensor)
    owner, before = remembered(core, tensor), tensor.data_ptr()
    tensor.resize_(100_000)  # frees what has moved
    assert core.device.info().live_allocations == 0
    assert torch.equal(tensor[:1000], torch.arange(1000.0))
    assert not core.repoint(owner, before, before + 64)
    core.drop_references()
    core.forget(owner)
    assert not _native.owns(tensor.data_ptr())


def test_an_emptied_storage_gets_memory_again(core: Core, made: Callable[..., torch.Tensor]) -> None:
    tensor = made()
    core.move_all(tensor)
    storage, bytes_before = storage_of(tensor), storage_of(tensor).nbytes()
    owner, before = remembered(core, tensor), tensor.data_ptr()
    storage.resize_(0)
    assert core.device.info().live_allocations == 0
    assert not core.repoint(owner, before, before + 64)
    core.drop_references()
    core.forget(owner)
    storage.resize_(bytes_before)
    assert torch.equal(tensor.fill_(3), torch.full((1000,), 3.0))


def test_a_storage_in_shared_memory_stays_there(core: Core, made: Callable[..., torch.Tensor]) -> None:
    tensor = made()
    core.move_all(tensor)
    owner, before = remembered(core, tensor), tensor.data_ptr()
    tensor.share_memory_()
    assert core.device.info().live_allocations == 0
    assert not core.repoint(owner, before, before + 64)
    core.drop_references()
    core.forget(owner)
    assert core.remember(storage_of(tensor)) is None
    assert torch.equal(tensor, torch.arange(1000.0))


# ---- exports that move what they pin ---------------------------------------------------------------------------------


@pytest.fixture
def moving(patched: Callable[..., _native.Device], monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """A tensor whose exports bring it to another address first."""
    core, tensor = Core(patched()), torch.arange(1000.0)
    export = doors._export

    def move_and_export(address: int, *how: Callable[[int], None]) -> bool:
        assert address == address_of(tensor)
        core.move_all(tensor)
        assert address != address_of(tensor)
        return export(address_of(tensor), *how)

    monkeypatch.setattr(doors, "_export", move_and_export)
    return tensor


def exports(tensor: torch.Tensor) -> int:
    found = _native.allocation_at(address_of(tensor))
    assert found is not None
    return found.exports


def test_an_array_shares_the_memory_that_is_pinned(moving: torch.Tensor) -> None:
    array = moving.numpy()
    array += 1
    assert torch.equal(moving, torch.arange(1000.0) + 1)
    assert exports(moving) == 1
    del array
    assert exports(moving) == 0


def test_what_is_held_is_let_go_of_where_it_lies(moving: torch.Tensor) -> None:
    with umadvise.held(moving):
        assert exports(moving) == 1
    assert exports(moving) == 0


def test_an_address_that_lasts_is_the_pinned_one(moving: torch.Tensor) -> None:
    assert moving.data_ptr() == address_of(moving)
    assert exports(moving) == 1


# ---- refusals --------------------------------------------------------------------------------------------------------


def test_a_lazy_copy_is_refused_before_and_after(core: Core, made: Callable[..., torch.Tensor]) -> None:
    tensor = made()
    core.move_all(tensor)
    owner, address = remembered(core, tensor), tensor.data_ptr()
    lazy = torch._lazy_clone(tensor)
    assert core.remember(storage_of(tensor), address) is None
    assert core.remember(storage_of(lazy), address) is None
    assert not core.move(owner, address)
    core.drop_references()
    core.forget(owner)
    lazy.add_(1)
    assert torch.equal(tensor, torch.arange(1000.0))
    assert torch.equal(lazy, torch.arange(1000.0) + 1)


def test_memory_that_somebody_else_frees_is_refused(core: Core, made: Callable[..., torch.Tensor]) -> None:
    tensor = made()
    assert core.remember(storage_of(torch.from_dlpack(tensor))) is None
    assert core.remember(storage_of(torch.from_numpy(np.ones(10)))) is None
    assert core.remember(storage_of(torch.ones(10)), tensor.data_ptr()) is None


def test_an_address_inside_an_allocation_is_refused(core: Core, made: Callable[..., torch.Tensor]) -> None:
    tensor = made()
    assert core.remember(storage_of(tensor), tensor.data_ptr() + 64) is None
    owner = remembered(core, tensor)
    assert not core.repoint(owner, tensor.data_ptr() + 64, tensor.data_ptr())
    core.drop_references()
    core.forget(owner)


def test_a_storage_that_only_python_has_is_left_alone(core: Core, made: Callable[..., torch.Tensor]) -> None:
    tensor = made()
    storage = storage_of(tensor)
    owner, address = remembered(core, tensor), tensor.data_ptr()
    del tensor
    moved = core.move(owner, address)
    core.drop_references()
    assert moved == (storage.data_ptr() != address)
    core.forget(owner)
    assert torch.equal(torch.empty(0).set_(storage, 0, (1000,)), torch.arange(1000.0))


# ---- the end of a storage --------------------------------------------------------------------------------------------


def test_an_owner_outlives_its_storage(core: Core, made: Callable[..., torch.Tensor]) -> None:
    tensor = made()
    owner, address = remembered(core, tensor), tensor.data_ptr()
    del tensor
    assert core.device.info().live_allocations == 0
    assert not core.repoint(owner, address, address + 64)
    core.drop_references()
    core.forget(owner)


def test_the_last_reference_is_let_go_of_in_settling(core: Core, made: Callable[..., torch.Tensor]) -> None:
    tensor = made()
    owner, address = remembered(core, tensor), tensor.data_ptr()
    assert core.move(owner, address)
    del tensor
    assert core.device.info().live_allocations == 1
    core.drop_references()
    assert core.device.info().live_allocations == 0
    core.drop_references()
    core.forget(owner)


def test_storages_end_while_another_thread_moves_them(core: Core, made: Callable[..., torch.Tensor]) -> None:
    rounds, ready, moves = 300, threading.Barrier(2), []
    given: list[tuple[int, int]] = []

    def move_all() -> None:
        for _ in range(rounds):
            ready.wait()
            owner, address = given.pop()
            target = core.device.allocate(4 * KIB, Placement())
            moves.append(core.repoint(owner, address, target))
            core.drop_references()
            core.forget(owner)
            _native.free(address if moves[-1] else target)
            ready.wait()

    mover = threading.Thread(target=move_all)
    mover.start()
    for _ in range(rounds):
        tensor = made(KIB)
        given.append((remembered(core, tensor), tensor.data_ptr()))
        ready.wait()
        del tensor
        ready.wait()
    mover.join()
    assert len(moves) == rounds
    assert core.device.info().live_allocations == 0
