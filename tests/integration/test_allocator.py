"""Torch's CPU allocations in our memory: routing, freeing, running out, and moving live storages in and out."""

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from umadvise import _native
from umadvise._native.abi import Placement, Route, RouteState, Status
from umadvise.errors import NativeError
from umadvise.records.enums import Advice, Role

MIB = 1 << 20
OFF = Route(RouteState.OFF)


def ours(tensor: torch.Tensor) -> bool:
    return _native.owns(tensor.data_ptr())


def adopt(tensor: torch.Tensor, device: _native.Device, **placement: int) -> None:
    _native.adopt_storage(tensor.untyped_storage()._cdata, device, Placement(**placement))


def give_back(tensor: torch.Tensor) -> None:
    _native.give_back_storage(tensor.untyped_storage()._cdata)


# ---- routing -------------------------------------------------------------------------------------------------------


def test_a_routed_thread_gets_our_memory_as_placed(route: Callable[..., None]) -> None:
    before = torch.ones(100)
    route(role=Role.PARAMETER, advice=Advice.READ_MOSTLY)
    during = torch.ones(100)
    allocation = _native.allocation_at(during.data_ptr())
    assert allocation is not None
    assert (allocation.bytes, allocation.role, allocation.advice) == (400, Role.PARAMETER, Advice.READ_MOSTLY)
    _native.set_thread_route(OFF)
    after = torch.ones(100)
    assert [ours(tensor) for tensor in (before, during, after)] == [False, True, False]
    assert torch.equal(during + before, after * 2)


def test_other_threads_keep_torchs_allocator(route: Callable[..., None]) -> None:
    route()
    with ThreadPoolExecutor(1) as pool:
        elsewhere = pool.submit(torch.ones, 100).result()
    assert not ours(elsewhere)
    assert ours(torch.ones(100))


def test_the_process_route_covers_threads_without_their_own(device: _native.Device) -> None:
    _native.install_allocator()
    _native.set_process_route(Route(RouteState.ON, Placement(), device.handle))
    with ThreadPoolExecutor(1) as pool:
        assert ours(pool.submit(torch.ones, 100).result())
        pool.submit(_native.set_thread_route, OFF).result()
        assert not ours(pool.submit(torch.ones, 100).result())


def test_blocks_are_aligned_and_apart(route: Callable[..., None]) -> None:
    route()
    tensors = [torch.full((size,), size, dtype=torch.uint8) for size in range(1, 200)]
    assert all(tensor.data_ptr() % 64 == 0 for tensor in tensors)
    assert all(bool((tensor == size).all()) for size, tensor in enumerate(tensors, 1))


def test_an_empty_tensor_takes_nothing(device: _native.Device, route: Callable[..., None]) -> None:
    route()
    empty = torch.empty(0)
    assert empty.untyped_storage().data_ptr() == 0
    assert device.info().live_allocations == 0
    assert torch.equal(torch.cat([empty, torch.ones(2)]), torch.ones(2))


# ---- freeing -------------------------------------------------------------------------------------------------------


def test_memory_is_freed_whatever_the_route_is_then(device: _native.Device, route: Callable[..., None]) -> None:
    foreign = [torch.ones(1000) for _ in range(10)]
    route()
    routed = [torch.ones(1000) for _ in range(10)]
    foreign.clear()  # by today's allocator, from yesterday's
    _native.set_thread_route(OFF)
    assert device.info().live_allocations == 10
    del routed[::2]
    assert device.info().live_allocations == 5
    with ThreadPoolExecutor(1) as pool:
        pool.submit(routed.clear).result()
    assert device.info().live_allocations == 0


def test_a_storage_survives_the_end_of_its_routing(device: _native.Device, route: Callable[..., None]) -> None:
    route()
    kept = torch.arange(5 * MIB, dtype=torch.int32)
    _native.set_thread_route(OFF)
    device.close()  # goes when `kept` does
    assert torch.equal(kept, torch.arange(5 * MIB, dtype=torch.int32))


def test_onednn_frees_with_todays_allocator_what_it_got_from_yesterdays(route: Callable[..., None]) -> None:
    def step() -> torch.Tensor:
        torch.manual_seed(3)
        convolution = nn.Conv2d(8, 16, 3)
        output = convolution(torch.randn(2, 8, 20, 20)).sum()
        output.backward()
        return torch.cat([output.detach().reshape(1), convolution.weight.grad.flatten()])

    expected = step()
    for _ in range(3):  # oneDNN keeps scratchpads and reordered weights from call to call
        route()
        assert torch.equal(step(), expected)
        _native.set_thread_route(OFF)
        assert torch.equal(step(), expected)


def test_storages_resize_where_they_were_made(route: Callable[..., None]) -> None:
    route()
    tensor = torch.arange(4.0)
    _native.set_thread_route(OFF)
    tensor.resize_(1000)
    assert torch.equal(tensor[:4], torch.arange(4.0))
    route()
    tensor.resize_(100_000)
    assert ours(tensor)
    assert torch.equal(tensor[:4], torch.arange(4.0))


# ---- running out ---------------------------------------------------------------------------------------------------


def test_running_out_is_torchs_own_error_with_our_diagnosis(device: _native.Device, route: Callable[..., None]) -> None:
    route()
    with pytest.raises(torch.OutOfMemoryError, match="70368744177664 bytes") as raised:
        torch.empty(1 << 46, dtype=torch.uint8)  # managed memory may exceed the device, but not the host
    assert "umadvise" in str(raised.value)
    assert device.info().live_allocations == 0
    assert ours(torch.ones(100))  # and the process goes on


def test_a_failed_driver_call_is_an_error_and_the_process_goes_on(
    device: _native.Device, route: Callable[..., None]
) -> None:
    route()
    device.fail(None, 1)
    with pytest.raises(RuntimeError, match="CUDA_ERROR"):
        torch.empty(200 * MIB, dtype=torch.uint8)
    device.fail(None, 0)
    assert torch.equal(torch.ones(50 * MIB, dtype=torch.uint8)[-3:], torch.ones(3, dtype=torch.uint8))


# ---- moving live storages ------------------------------------------------------------------------------------------


def test_views_ties_and_offsets_follow_their_storage(device: _native.Device) -> None:
    base = torch.arange(24.0)
    views = [base[3:], base.view(4, 6).t(), base[::5], base.view(torch.int32)[7:9]]
    expected = [base.clone(), *[view.clone() for view in views]]
    adopt(views[2], device, role=Role.PARAMETER)
    assert all(map(ours, [base, *views]))
    assert len({_native.allocation_at(tensor.data_ptr()) for tensor in [base, *views]}) == 1
    assert views[0].storage_offset() == 3
    assert all(map(torch.equal, [base, *views], expected))
    base.add_(1)  # still one memory
    assert torch.equal(views[0], expected[1] + 1)
    give_back(base)
    assert not any(map(ours, [base, *views]))
    assert torch.equal(views[0], expected[1] + 1)
    base.mul_(0)
    assert not views[0].any()
    assert device.info().live_allocations == 0


def test_tied_parameters_stay_tied_and_train(device: _native.Device) -> None:
    def model() -> tuple[nn.Embedding, nn.Linear]:
        torch.manual_seed(5)
        embedding, head = nn.Embedding(11, 4), nn.Linear(4, 11, bias=False)
        head.weight = embedding.weight
        return embedding, head

    def train(embedding: nn.Embedding, head: nn.Linear) -> torch.Tensor:
        optimizer = torch.optim.AdamW(embedding.parameters(), lr=0.1)
        for _ in range(3):
            head(embedding(torch.arange(11))).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return embedding.weight.detach()

    expected = train(*model())
    embedding, head = model()
    adopt(embedding.weight, device, role=Role.PARAMETER)
    assert head.weight.data_ptr() == embedding.weight.data_ptr()
    result = train(embedding, head)
    give_back(head.weight)
    assert torch.equal(result, expected)
    assert not ours(embedding.weight)


def test_adopting_again_moves_to_the_new_placement(device: _native.Device) -> None:
    tensor = torch.randint(255, (20 * MIB,), dtype=torch.uint8)  # more than one staging buffer
    expected = tensor.clone()
    adopt(tensor, device, role=Role.PARAMETER)
    adopt(tensor, device, role=Role.INPUT, advice=Advice.READ_MOSTLY)
    (allocation,) = device.allocations()
    assert (allocation.role, allocation.advice) == (Role.INPUT, Advice.READ_MOSTLY)
    assert torch.equal(tensor, expected)
    del tensor
    assert device.allocations() == []


def test_an_adopted_storage_resizes_in_our_memory(device: _native.Device, route: Callable[..., None]) -> None:
    tensor = torch.arange(4.0)
    adopt(tensor, device)
    route()
    tensor.resize_(1000)
    assert ours(tensor)
    assert torch.equal(tensor[:4], torch.arange(4.0))


def test_memory_from_outside_torch_is_let_go(device: _native.Device) -> None:
    buffer = bytearray(range(100))
    tensor = torch.frombuffer(buffer, dtype=torch.uint8)
    adopt(tensor, device)
    buffer.append(1)  # resizable again: nobody holds its memory any more
    assert torch.equal(tensor, torch.arange(100, dtype=torch.uint8))


def test_a_lazy_copy_gets_bytes_of_its_own(device: _native.Device) -> None:
    original = torch.arange(10.0)
    copy = torch._lazy_clone(original)
    adopt(copy, device)
    copy.add_(1)
    assert torch.equal(original, torch.arange(10.0))
    assert torch.equal(copy, torch.arange(10.0) + 1)


def test_empty_storages_and_ordinary_ones_have_nothing_to_move(device: _native.Device) -> None:
    empty, ordinary = torch.empty(0), torch.ones(3)
    adopt(empty, device)
    give_back(empty)
    address = ordinary.data_ptr()
    give_back(ordinary)
    assert ordinary.data_ptr() == address
    assert device.info().live_allocations == 0


def test_storages_of_other_devices_are_refused(device: _native.Device) -> None:
    tensor = torch.ones(3, device="meta")
    with pytest.raises(NativeError, match="only storages of the CPU") as raised:
        adopt(tensor, device)
    assert raised.value.code == Status.UNSUPPORTED


def test_a_storage_that_does_not_fit_stays_where_it_is(open_device: Callable[..., _native.Device]) -> None:
    device = open_device(16 * MIB)
    device.fail(None, 1)
    tensor = torch.ones(8 * MIB)
    address = tensor.data_ptr()
    with pytest.raises(NativeError):
        adopt(tensor, device)
    device.fail(None, 0)
    assert tensor.data_ptr() == address
    assert device.info().live_allocations == 0


def test_nothing_is_left_after_many_moves(device: _native.Device) -> None:
    tensors = [torch.full((1000 + size,), float(size)) for size in range(50)]
    for _ in range(5):
        for tensor in tensors:
            adopt(tensor, device)
        for tensor in tensors:
            give_back(tensor)
    gc.collect()
    assert device.info().live_allocations == 0
    assert all(bool((tensor == size).all()) for size, tensor in enumerate(tensors))
