"""`policy="auto"`: live tensors follow it from rung to rung on the emulated device, and no bit changes for that."""

import logging
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from small_networks import different
from torch import nn
from torch.nn import functional

import umadvise
from umadvise import _native
from umadvise._native.abi import Memory
from umadvise.devices.rungs import LADDER
from umadvise.records.enums import Role
from umadvise.torch_seam import runtime
from umadvise.torch_seam.runtime import address_of
from umadvise.training.policy.governor import Governor, StepRecord, Switch

pytestmark = pytest.mark.usefixtures("unpatched")

MIB = 1 << 20
WIDTH = 1024  # a weight is 4 MiB, two chunks


class Training:
    """Three layers with AdamW: weights of 4 MiB, and biases and a norm that are too small to be swapped."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)), nn.BatchNorm1d(WIDTH))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.losses: list[float] = []

    def step(self, rows: int = 16) -> None:
        loss = functional.mse_loss(self.model(torch.randn(rows, WIDTH)), torch.zeros(rows, WIDTH))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())

    def live(self) -> dict[str, torch.Tensor]:
        found = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        for name, parameter in self.model.named_parameters():
            found.update({f"{name}.{key}": value for key, value in self.optimizer.state[parameter].items()})
            if parameter.grad is not None:
                found[f"{name}.grad"] = parameter.grad
        return found

    def copies(self) -> dict[str, torch.Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self.live().items()}


def vanilla(count: int) -> Training:
    training = Training()
    for _ in range(count):
        training.step()
    return training


def assert_same(found: Training, expected: Training) -> None:
    assert found.losses == expected.losses
    assert different(found.copies(), expected.copies()) == []


def scripted(monkeypatch: pytest.MonkeyPatch, rungs: Sequence[str]) -> None:
    """A governor that goes to the next of these rungs after step 3, 5, 7 and so on, and nowhere else."""
    left = list(rungs)

    def observe(self: Governor, step: StepRecord) -> Switch | None:
        if step.number % 2 == 0 or step.number == 1 or not left:
            return None
        return self._to(step.number + 1, left.pop(0), "as the test says")

    monkeypatch.setattr(Governor, "observe", observe)
    monkeypatch.setattr(Governor, "choose", lambda *_: None)
    monkeypatch.setattr(Governor, "go", lambda *_: None)


@pytest.mark.parametrize(
    ("rungs", "budget"),
    [
        (("swap", "window", "swap"), "40MiB"),
        (("swap+recompute", "advise", "resident", "swap", "advise"), "100MiB"),
        (("swap", "resident"), "100MiB"),
    ],
)
def test_live_tensors_follow_a_switch(monkeypatch: pytest.MonkeyPatch, rungs: tuple[str, ...], budget: str) -> None:
    scripted(monkeypatch, rungs)
    count = 2 * len(rungs) + 5
    expected, training = vanilla(count), Training()
    device = umadvise.EmulatedDevice(capacity="128MiB")
    with umadvise.session(training.model, training.optimizer, device=device, budget=budget, policy="auto") as um:
        for number in range(1, count + 1):
            with um.step():
                before = {name: _native.allocation_at(address_of(each)) for name, each in training.live().items()}
                training.step()
            rung = um.rung
            found = {name: _native.allocation_at(address_of(each)) for name, each in training.live().items()}
            memories = {Memory(each.memory) for each in found.values() if each is not None}
            if rung == "resident":
                assert memories <= {Memory.DEVICE, Memory.PREFER_DEVICE, Memory.MANAGED}
            else:
                assert memories == {LADDER[rung].memory}, (number, rung)
            if number > 2:  # the optimizer's state is labelled when a step has made it
                assert {
                    name: (each.role, each.name)
                    for name, each in before.items()
                    if each is not None and not name.endswith("grad")
                } == {
                    name: (each.role, each.name)
                    for name, each in found.items()
                    if each is not None and not name.endswith("grad")
                }
        assert um.rung == rungs[-1]
        plans = {"swap", "swap+recompute", "window"}
        assert (um.plan is not None) is (rungs[-1] in plans)
        assert [change.rung for change in um.profile().rungs] == ["advise", *rungs]
    assert_same(training, expected)
    assert not any(runtime.on_device(each) for each in training.live().values())


def test_what_the_user_placed_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, ["swap"])
    umadvise.patch(device=umadvise.EmulatedDevice(capacity="128MiB"))
    training = Training()
    training.model[1].to("cuda:noadvise")
    shared = training.model[0].weight.detach().numpy()
    with umadvise.session(training.model, training.optimizer, budget="60MiB", policy="auto") as um:
        for _ in range(4):
            with um.step():
                training.step()
        assert um.rung == "swap"

        def memory(tensor: torch.Tensor) -> int | None:
            found = _native.allocation_at(address_of(tensor))
            return None if found is None else found.memory

        assert memory(training.model[1].weight) == Memory.MANAGED
        assert memory(training.model[2].weight) == Memory.CHUNKED
        placed = _native.allocation_at(address_of(training.model[2].weight))
        assert placed is not None
        assert Role(placed.role) == Role.PARAMETER
        exported = training.model[2].bias.detach().numpy()
    assert shared.shape == (WIDTH, WIDTH)
    assert exported.shape == (WIDTH,)


def test_auto_begins_in_unified_memory_and_decides_when_a_step_is_known(caplog: pytest.LogCaptureFixture) -> None:
    """Parameters of 12 MiB, as much of gradients, and twice that of AdamW's averages, of 40 MiB."""
    expected, training = vanilla(6), Training()
    with (
        caplog.at_level(logging.INFO, logger="umadvise"),
        umadvise.session(
            training.model, training.optimizer, device="emulated", capacity="64MiB", budget="40MiB", policy="auto"
        ) as um,
    ):
        assert um.rung == "advise"
        for _ in range(6):
            with um.step():
                training.step()
        rungs = um.profile().rungs
    assert (rungs[0].step, rungs[0].rung) == (1, "advise")
    assert "is not known before it has run" in rungs[0].reason
    assert rungs[1].step == 3
    assert {"advise", "window", "swap"} <= set(rungs[1].reason.split())
    assert_same(training, expected)


def test_a_step_that_chunks_cannot_hold_is_run_in_unified_memory() -> None:
    """The weight of 64 MiB alone is more than there is: no swapping rung can run this step."""

    def train(steps: int, **options: Any) -> tuple[list[float], str]:
        torch.manual_seed(0)
        model = nn.Linear(4096, 4096)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []

        def step() -> None:
            loss = model(torch.randn(4, 4096)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

        if not options:
            for _ in range(steps):
                step()
            return losses, ""
        with umadvise.session(model, optimizer, device="emulated", policy="auto", **options) as um:
            for _ in range(steps):
                with um.step():
                    step()
            return losses, um.rung

    losses, rung = train(8, capacity="48MiB")
    assert losses == train(8)[0]
    assert rung in ("advise", "window")


@pytest.mark.parametrize("rows", [1024, 3072])
def test_a_larger_step_that_chunks_cannot_hold_ends_in_unified_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, rows: int
) -> None:
    """Activations of 4 or 12 MiB beside weights of 4, in 20 MiB: what the op is given has no room, or what it makes."""
    scripted(monkeypatch, ["swap"])

    def run(training: Training, number: int) -> None:
        training.step(rows if number in (7, 9) else 16)

    expected = Training()
    for number in range(1, 12):
        run(expected, number)
    training = Training()
    with umadvise.session(training.model, training.optimizer, device="emulated", capacity="20MiB", policy="auto") as um:
        rungs = []
        for number in range(1, 12):
            with um.step():
                run(training, number)
            rungs.append(um.rung)
    assert rungs[5] == "swap"
    if rows > 1024:
        assert rungs[6:] == ["advise"] * 5
        assert "an op does not fit in chunks: it and the rest of its step run in unified memory" in caplog.text
        assert um.profile().rungs[-1].reason == "step 7 did not fit in chunks"
    assert_same(training, expected)


def test_ops_that_need_more_than_there_is_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """A sum of 12 MiB into 12 MiB, in 16 MiB and in 32 MiB."""
    for capacity, warnings in (("16MiB", 1), ("32MiB", 0)):
        caplog.clear()
        values = torch.zeros(3 << 20)
        with umadvise.session(nn.Linear(2, 2), device="emulated", capacity=capacity, policy="advise") as um:
            for _ in range(3):
                with um.step():
                    moved = um.to_device(values)
                    made = moved + 1
                    del moved, made
        said = [each.getMessage() for each in caplog.records if "more memory than" in each.getMessage()]
        assert len(said) == warnings
        assert all(f"of {float(capacity[:2]):.2f} MiB in all" in each for each in said)


def test_a_step_that_outgrows_plain_memory_keeps_the_budget() -> None:
    """Some 97 MiB go to `resident`, in 112 MiB; batches that make 16 MiB a layer need twice that, and are paged."""
    rows, expected = [16] * 6 + [4096] * 2, Training()
    for each in rows:
        expected.step(each)
    budget_bytes, largest_op_bytes = 112 * MIB, 4 * 16 * MIB  # an op that fits alone, but not beside plain memory
    device, training = umadvise.EmulatedDevice(capacity="512MiB"), Training()
    with umadvise.session(training.model, training.optimizer, device=device, budget=budget_bytes, policy="auto") as um:
        for number, each in enumerate(rows):
            with um.step():
                training.step(each)
            memory = um.memory_stats()
            if number == 5:
                assert um.rung == "resident", (memory, um.profile().rungs)
                assert (_native.split_limit(runtime.current().device) or 0) >= budget_bytes // 3  # whole-model ops stay
        assert memory.requested_peak_bytes > budget_bytes + largest_op_bytes // 2
        assert memory.resident_peak_bytes is not None
        assert memory.resident_peak_bytes <= budget_bytes, memory
    assert_same(training, expected)
