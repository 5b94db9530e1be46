"""What a switch of rungs moves, and what it leaves where it is, counted in bytes of each kind of memory."""

from collections import Counter
from contextlib import nullcontext
from itertools import groupby, pairwise
from typing import Any

import pytest
import torch
from small_networks import different
from torch import nn
from torch.utils.checkpoint import checkpoint

import umadvise
from umadvise import _native
from umadvise._native.abi import Memory
from umadvise.devices.rungs import LADDER
from umadvise.torch_seam import runtime
from umadvise.torch_seam.runtime import address_of
from umadvise.training.policy.governor import Governor, StepRecord, Switch

pytestmark = pytest.mark.usefixtures("unpatched")

MIB = 1 << 20
KIB = 1 << 10


RUNGS = ["window", "swap", "window", "swap"]
STEPS = 24


@pytest.fixture
def switched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A governor that goes to the next of `RUNGS` after each second step that is not recorded, and nowhere else."""
    left, seen = list(RUNGS), []

    def observe(self: Governor, step: StepRecord) -> Switch | None:
        seen.append(step.number)
        return self._to(step.number + 1, left.pop(0), "as the test says") if left and len(seen) % 2 == 0 else None

    monkeypatch.setattr(Governor, "observe", observe)
    monkeypatch.setattr(Governor, "choose", lambda *_: None)
    monkeypatch.setattr(Governor, "go", lambda *_: None)


class Training:
    """Weights of 2 MiB, 256 KiB and 32 KiB, and two halves of one storage; gradients are summed for `every` steps."""

    def __init__(self, every: int = 1) -> None:
        torch.manual_seed(5)
        sizes = (128, 512, 1024, 64, 128)
        self.model = nn.Sequential(*(nn.Linear(*pair, bias=False) for pair in pairwise(sizes)))
        self.both = torch.randn(2, 256 * KIB)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.every, self.count = every, 0
        self.losses: list[float] = []

    def step(self) -> None:
        self.count += 1
        first, second = self.both
        first.mul_(0.5).add_(second)
        loss = self.model(torch.randn(32, 128)).square().mean() + first.mean()
        loss.backward()
        if self.count % self.every == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.losses.append(loss.item())

    def live(self) -> dict[str, torch.Tensor]:
        found = dict(self.model.named_parameters())
        for name, parameter in self.model.named_parameters():
            averages = ((key, each) for key, each in self.optimizer.state[parameter].items() if each.numel() > 1)
            found.update({f"{name}.{key}": each for key, each in averages})
        return {**found, "first half": self.both[0], "second half": self.both[1]}

    def copies(self) -> dict[str, torch.Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self.live().items()}

    def bytes_by_memory(self) -> dict[Memory, int]:
        """Of storages: two views of one are one."""
        found: Counter[Memory] = Counter()
        for tensor in {each.untyped_storage()._cdata: each for each in self.live().values()}.values():
            placed = _native.allocation_at(runtime.storage_address(tensor.untyped_storage()))
            assert placed is not None
            found[Memory(placed.memory)] += placed.bytes
        return dict(found)


def vanilla(every: int) -> Training:
    training = Training(every)
    for _ in range(STEPS):
        training.step()
    return training


@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize("every", [1, 7])
def test_what_lives_goes_there_and_back_with_its_bits(every: int) -> None:
    """With `every` of 7 the optimizer's state is born in chunks, when its parameters have come there."""
    expected, training = vanilla(every), Training(every)
    weights = (128 * 512 + 512 * 1024 + 1024 * 64 + 64 * 128) * 4
    rungs = []
    with umadvise.session(
        training.model, training.optimizer, device=umadvise.EmulatedDevice("64MiB"), budget="14MiB", policy="auto"
    ) as um:
        training.both = um.to_device(training.both)
        for number in range(1, STEPS + 1):
            with um.step():
                training.step()
                rungs.append(um.rung)
                copies = 1 if number < every else 3
                expected_bytes = {LADDER[um.rung].memory: copies * weights + 2 * MIB}
                assert training.bytes_by_memory() == expected_bytes, (number, um.rung)
        first, second = training.both
        assert address_of(second) - address_of(first) == MIB
    assert [rung for rung, _ in groupby(rungs)] == ["advise", *RUNGS]
    assert LADDER[rungs[every - 1]].memory == (Memory.CHUNKED if every > 1 else Memory.MANAGED)
    assert training.losses == expected.losses
    assert different(training.copies(), expected.copies()) == []


@pytest.mark.usefixtures("switched")
def test_an_address_that_left_torch_finds_its_tensor_after_switches() -> None:
    """A raw pointer, an array of numpy's and a capsule of DLPack's, each of a tensor that would move."""
    expected, training = vanilla(1), Training()
    rungs = []
    with umadvise.session(
        training.model, training.optimizer, device=umadvise.EmulatedDevice("64MiB"), budget="24MiB", policy="auto"
    ) as um:
        training.both = um.to_device(training.both)
        weights = [layer.weight for layer in training.model]
        array, capsule = weights[0].detach().numpy(), torch.utils.dlpack.to_dlpack(weights[1].detach())
        pointer = weights[2].data_ptr()
        before = [address_of(each) for each in weights]
        for _ in range(STEPS):
            with um.step():
                training.step()
                rungs.append(um.rung)
                found = [_native.allocation_at(address_of(each)) for each in weights]
                memories = [Memory(each.memory) for each in found if each is not None]
                assert memories == [Memory.MANAGED] * 3 + [LADDER[um.rung].memory]
        assert [rung for rung, _ in groupby(rungs)] == ["advise", *RUNGS]
        assert [address_of(each) for each in weights[:3]] == before[:3]
        assert pointer == before[2]
        assert (array == weights[0].detach().numpy()).all()
        assert torch.equal(torch.from_dlpack(capsule), weights[1].detach())
    assert training.losses == expected.losses
    assert different(training.copies(), expected.copies()) == []


class Blocks(nn.Module):
    """Six blocks, each a region that may run again where they are marked."""

    def __init__(self, *, marked: bool) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256), nn.ReLU()) for _ in range(6)
        )
        self.marked = marked

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            rows = checkpoint(block, rows, use_reentrant=False) if self.marked else block(rows)
        return rows


@pytest.mark.parametrize("marked", [False, True])
def test_ops_run_again_where_the_user_has_marked_regions(*, marked: bool) -> None:
    """On `swap` steps stand still for longer than the threshold: that is all it takes to try the next rung."""
    steps = 14

    def train(**options: Any) -> tuple[list[float], list[str]]:
        model = Blocks(marked=marked)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses, rungs = [], []
        with umadvise.session(model, optimizer, **options) if options else nullcontext() as um:
            for _ in range(steps):
                with um.step() if um is not None else nullcontext():
                    rungs.append("" if um is None else um.rung)
                    loss = model(torch.randn(1024, 256)).square().mean()
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    losses.append(loss.item())
        return losses, rungs

    device = umadvise.EmulatedDevice("16MiB", clock="v100-16gb")
    losses, rungs = train(device=device, policy="auto", fault_threshold=0.01)
    assert "swap" in rungs
    assert (rungs.count("swap+recompute") > 3) is marked  # it is not left before it has been measured
    assert losses == train()[0]
