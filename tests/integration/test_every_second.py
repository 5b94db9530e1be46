"""What steps spend their time on: all of it is explained, and the tables add up to it."""

import time

import pytest
import torch
from torch import nn

import umadvise
from umadvise import _native
from umadvise.records.fault_profile import FaultProfile

pytestmark = pytest.mark.usefixtures("unpatched")

WIDTH = 512
MOST_UNEXPLAINED = 0.02


def profile(
    policy: str, clock: str | None = None, *, capacity: str = "256MiB", budget: str | None = "24MiB"
) -> FaultProfile:
    torch.manual_seed(2)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(8)))
    optimizer = torch.optim.AdamW(model.parameters())
    device = umadvise.EmulatedDevice(capacity, clock=clock)
    with umadvise.session(model, optimizer, device=device, budget=budget, policy=policy) as um:
        for _ in range(6):
            with um.step():
                optimizer.zero_grad()
                model(um.to_device(torch.ones(64, WIDTH))).square().mean().backward()
                optimizer.step()
        return um.profile()


@pytest.mark.parametrize("policy", ["advise", "window", "swap", "auto"])
@pytest.mark.parametrize("clock", [None, "v100-16gb"])
def test_every_step_is_explained(policy: str, clock: str | None) -> None:
    found = profile(policy, clock)
    assert len(found.steps) == 6
    for step in found.steps:
        assert step.times is not None
        assert 0 <= step.duration_ns - step.times.sum_ns <= MOST_UNEXPLAINED * step.duration_ns
        assert step.times.compute_ns > 0


@pytest.mark.parametrize("policy", ["advise", "swap"])
def test_the_tables_add_up_to_it(policy: str) -> None:
    found = profile(policy, "v100-16gb")
    times, tables = found.times, found.tables
    assert times is not None
    assert tables is not None
    for table in (tables.phase, tables.module, tables.op):
        assert sum(row.compute_ns for row in table.rows) == times.compute_ns
        assert sum(row.wait_room_ns for row in table.rows) == times.room_ns
        assert sum(row.wait_copy_ns for row in table.rows) == times.swap_in_ns + times.on_demand_ns
        assert sum(row.on_demand_wait_ns for row in table.rows) == times.on_demand_ns
        served = times.first_touch_ns + times.migration_ns + times.fault_room_ns
        assert sum(row.service_ns for row in table.rows) == served == found.counters.fault_service_ns
    assert (served > 0) == (policy == "advise")
    assert (times.room_ns > 0) == (policy == "swap")


def test_a_step_ends_when_its_times_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine much time passes between two readings of a clock, wherever a step begins or ends."""
    now_ns = _native.Device.now_ns

    def late(device: _native.Device) -> int:
        time.sleep(0.01)
        at_ns = now_ns(device)
        time.sleep(0.01)
        return at_ns

    monkeypatch.setattr(_native.Device, "now_ns", late)
    found = profile("window")
    for step in found.steps:
        assert step.times is not None
        assert 0 <= step.duration_ns - step.times.sum_ns <= MOST_UNEXPLAINED * step.duration_ns


def test_what_faults_evict_is_told_from_what_they_bring() -> None:
    """The device itself is full: without a budget nobody makes room ahead of the faults."""
    torch.manual_seed(2)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(16)))
    device = umadvise.EmulatedDevice("24MiB", clock="v100-16gb")
    with umadvise.session(model, device=device, policy="advise") as um:
        for _ in range(3):
            with um.step():
                model(um.to_device(torch.ones(64, WIDTH))).square().mean().backward()
        times = um.profile().times
    assert times is not None
    assert min(times.migration_ns, times.fault_room_ns) > 0


def test_what_new_memory_has_the_driver_do_is_no_time_of_ops() -> None:
    """All fits, so that each new tensor is prefetched by a call of the driver while an op runs."""
    found = profile("advise", "v100-16gb", budget=None)
    plain = profile("resident", "v100-16gb", budget=None)
    last, plain_last = found.steps[-1].times, plain.steps[-1].times
    assert last is not None
    assert plain_last is not None
    assert last.compute_ns == plain_last.compute_ns
    assert last.guard_ns > 10 * 1000
    assert found.tables is not None
    assert found.times is not None
    assert sum(row.compute_ns for row in found.tables.op.rows) == found.times.compute_ns


def test_planning_and_observing_are_the_sessions_own() -> None:
    times = profile("swap").times
    assert times is not None
    assert min(times.planning_ns, times.observing_ns, times.guard_ns, times.script_ns) > 0
