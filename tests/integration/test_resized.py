"""Storages that are resized to nothing and back, as FSDP does between two layers, outside of ops."""

from collections.abc import Callable

import pytest
import torch

import umadvise
from umadvise import _native

BYTES = 4 << 20


@pytest.mark.parametrize("policy", ["resident", "advise", "swap"])
def test_what_was_on_the_device_comes_back_to_it(policy: str) -> None:
    with umadvise.session([], device="emulated", capacity="64MiB", policy=policy) as um:
        tensor = um.to_device(torch.ones(BYTES // 4))
        storage = tensor.untyped_storage()
        before = sum(each.bytes for each in um._runtime.device.allocations())  # type: ignore[union-attr]
        for _ in range(2):
            storage.resize_(0)
            after = sum(each.bytes for each in um._runtime.device.allocations())  # type: ignore[union-attr]
            assert before - after == BYTES
            storage.resize_(BYTES)
            assert umadvise.on_device(tensor)
            tensor.fill_(2.0)
            assert tensor.sum().item() == BYTES / 2
        storage.resize_(2 * BYTES)  # what it holds is kept
        assert umadvise.on_device(tensor)
        assert tensor.sum().item() == BYTES / 2


def test_what_was_not_stays_where_it_is(patched: Callable[..., _native.Device]) -> None:
    patched()
    ordinary = torch.ones(4).cpu()
    ordinary.untyped_storage().resize_(0)
    ordinary.untyped_storage().resize_(16)
    assert not umadvise.on_device(ordinary)
