"""Fixtures that every tier shares: emulated devices, and a clean slate for routing and interposing after each test."""

import gc
import os
from collections.abc import Callable, Iterator

import pytest
import torch
from budget_watch import BudgetWatch

from umadvise import _native
from umadvise._native.abi import EmulatedOptions, Placement, Route, RouteState
from umadvise.records.enums import Phase

MIB = 1 << 20
os.environ["UMADVISE_PLAN_CACHE"] = "off"  # what a test plans must not depend on the one before
os.environ["UMADVISE_PLAN_SEARCH"] = "off"  # nor on how fast a process beside it is
os.environ["UMADVISE_WATCH_BUDGETS"] = "1"  # also for fixtures of modules, which start processes before any test's own


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not os.environ.get("UMADVISE_FULL"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("long")])
        items[:] = [item for item in items if not item.get_closest_marker("long")]
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu") is not None:  # not `in keywords`: folders count there
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def pytest_collection_finish() -> None:
    """What is there before the first test outlives all of them: no collection that a test asks for looks through it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def budget_watch() -> Iterator[BudgetWatch]:
    """Fails a test in which a loop has exceeded its budget, also in a process that it starts: see budget_watch.py."""
    watch = BudgetWatch()
    watch.begin()
    yield watch
    watch.end()
    assert watch.breaches == []


@pytest.fixture
def open_device() -> Iterator[Callable[..., _native.Device]]:
    """Opens emulated devices of a capacity in bytes, and closes them with everything that a test left switched on."""
    devices: list[_native.Device] = []

    def opened(capacity_bytes: int = 256 * MIB, **options: int) -> _native.Device:
        devices.append(_native.Device.open_emulated(EmulatedOptions(capacity_bytes, **options)))
        return devices[-1]

    yield opened
    _native.interpose(None)
    _native.set_phase(Phase.NONE)
    _native.set_thread_route(Route())
    _native.set_process_route(Route())
    for device in devices:
        device.close()


@pytest.fixture
def device(open_device: Callable[..., _native.Device]) -> _native.Device:
    return open_device()


@pytest.fixture
def route(device: _native.Device) -> Callable[..., None]:
    """Routes this thread's torch allocations to `device` from now on: route(role=..., advice=...)."""
    _native.install_allocator()

    def routed(**placement: int) -> None:
        _native.set_thread_route(Route(RouteState.ON, Placement(**placement), device.handle))

    return routed
