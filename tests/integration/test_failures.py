"""Every driver call of a training run made to fail, one by one: a clean exception, nothing leaked, and on it goes."""

import gc
import io
import os
from collections.abc import Callable

import pytest
import torch
from small_networks import same_bits
from torch import nn
from torch.nn import functional

import umadvise
from umadvise import _native
from umadvise.errors import NativeError, UmadviseError
from umadvise.torch_seam import runtime

pytestmark = pytest.mark.usefixtures("unpatched")

ALL = bool(os.environ.get("UMADVISE_FULL"))
SAMPLES = 25  # of the calls of each scenario, when not all are tried

MIB = 1 << 20


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(256, 1024), nn.BatchNorm1d(1024), nn.Linear(1024, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(functional.relu(self.norm(self.first(x))))


Devices = list[_native.Device]
Scenario = Callable[[umadvise.EmulatedDevice | None, Devices], list[torch.Tensor]]


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def in_a_session(device: umadvise.EmulatedDevice | None, opened: Devices) -> list[torch.Tensor]:
    """With a budget, so that there are prefetches to the host too."""
    torch.manual_seed(11)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    batches = torch.randn(2, 64, 256)
    if device is None:
        losses = [learn(model, optimizer, x) for x in batches]
        return [*losses, *model.state_dict().values()]
    losses = []
    with umadvise.session(model, optimizer, device=device, budget="8MiB", policy="advise") as um:
        opened.append(runtime.current().device)
        for x in batches:
            with um.step():
                losses.append(learn(model, optimizer, um.to_device(x)).cpu())
    return [*losses, *model.state_dict().values()]


def by_hand(device: umadvise.EmulatedDevice | None, opened: Devices) -> list[torch.Tensor]:
    """The two lines, the doors, and advice of every kind."""
    torch.manual_seed(12)
    model = Net()
    x = torch.randn(64, 256)
    if device is None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return [learn(model, optimizer, x), *model.state_dict().values()]
    umadvise.patch(device=device)
    opened.append(runtime.current().device)
    torch.cuda.set_unified("prefetch")
    model.first.to("cuda:readmostly")
    model.norm.to("cuda:accessby")
    model.last.to("cuda:preferredlocation")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.cuda.set_unified("readmostly")
    loss = learn(model, optimizer, x.to("cuda:noadvise"))
    loss.numpy()
    torch.save(model.state_dict(), io.BytesIO())
    model.cpu()
    copied = loss.cpu()
    umadvise.unpatch()
    return [copied, *model.state_dict().values()]


def emptied(device: _native.Device) -> bool:
    """Whether a closed device has given everything back: then nothing is known of it any more."""
    try:
        device.memory()
    except NativeError as error:
        return "closed" in error.message
    return False


def calls_of(scenario: Scenario) -> int:
    opened: Devices = []
    counts: list[int] = []

    class Counted(umadvise.EmulatedDevice):
        def open(self) -> _native.Device:
            device = super().open()
            close = device.close

            def counting_close() -> None:
                counts.append(device.calls())
                close()

            device.close = counting_close  # type: ignore[method-assign]
            return device

    scenario(Counted(capacity="16MiB"), opened)
    return counts[0]


@pytest.mark.parametrize("scenario", [in_a_session, pytest.param(by_hand, marks=pytest.mark.long)])
def test_any_driver_call_may_fail(scenario: Scenario) -> None:
    expected = scenario(None, [])
    total = calls_of(scenario)
    assert total > 60
    numbers = range(1, total + 1) if ALL else sorted({*range(1, 12), *range(1, total + 1, max(1, total // SAMPLES))})
    failures = 0
    for number in numbers:
        opened: Devices = []
        found = None
        try:
            found = scenario(umadvise.EmulatedDevice(capacity="16MiB", fail_call=(None, number)), opened)
        except (UmadviseError, RuntimeError) as error:  # RuntimeError is torch's, for what happens inside an op
            failures += 1
            assert str(error), f"call {number}"
        if runtime.is_patched():
            umadvise.unpatch()
        gc.collect()
        # A free that fails is no error of anybody's: training goes on.
        assert found is None or all(map(same_bits, found, expected)), f"call {number}"
        del found
        gc.collect()
        assert all(map(emptied, opened)), f"call {number}"
        assert not umadvise.on_device(torch.ones(3)), f"call {number}"
    assert failures > len(list(numbers)) // 2
    assert all(map(same_bits, scenario(umadvise.EmulatedDevice(capacity="16MiB"), []), expected))
