"""What an op takes in virtual time: what the dry recorder's roofline says of the same step, op by op."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from umadvise import _native
from umadvise.devices.catalogue import load_device
from umadvise.recording.dry.recorder import record
from umadvise.recording.op_timer import OpTimer
from umadvise.recording.workload import Workload, training_step

DEVICE = load_device("v100-16gb")


def workload() -> Workload:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)

    def loss(network: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(network(images), labels)

    return training_step(model, optimizer, loss, torch.ones(4, 3, 8, 8), torch.tensor([1, 2, 3, 4]))


def test_ops_take_what_the_roofline_says(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = record(workload, target="cpu", device=DEVICE)
    timed: list[int] = []
    monkeypatch.setattr(_native, "op_took", timed.append)
    real = workload()
    real.step()  # gradients and state are there, as where it is recorded
    with OpTimer(DEVICE):
        real.step()
    assert timed == trace.ops.duration_ns.tolist()
    assert max(timed) > min(timed)


def test_composite_ops_are_timed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[int] = []
    monkeypatch.setattr(_native, "op_took", timed.append)
    one = torch.rand(64, 64)
    with torch.inference_mode(), OpTimer(DEVICE):
        functional.linear(one, one)
        one.view(-1)
    launch_ns = DEVICE.launch_ns.value
    assert len(timed) in (1, 2) and all(each > launch_ns for each in timed)  # a product; its transposed view is free
