"""A charged link changes the clock of a training step, and nothing else."""

import time

import torch

import umadvise
from umadvise.devices import catalogue
from umadvise.records.counters import Counters


def _train(link: str | None) -> tuple[list[float], Counters, float]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(12)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    batch, losses = torch.randn(16, 512), []
    device = umadvise.EmulatedDevice(capacity="16MiB", link=link)
    with umadvise.session(model, optimizer, device=device) as um:
        start = time.perf_counter()
        for _ in range(2):
            with um.step():
                optimizer.zero_grad()
                loss = model(batch).square().mean()
                loss.backward()
                optimizer.step()
            losses.append(loss.item())
        took = time.perf_counter() - start
        return losses, um.counters(), took


def test_only_the_clock_tells_a_link() -> None:
    losses, counters, _ = _train(None)
    charged_losses, charged_counters, took = _train("v100-16gb")
    assert charged_losses == losses
    for field in counters.__struct_fields__:
        if field != "fault_service_ns":
            assert getattr(charged_counters, field) == getattr(counters, field), field
    # Every block that came took at least its copy.
    moved = counters.bytes_h2d
    assert moved is not None
    assert moved.total is not None
    assert moved.total > 0
    assert took >= moved.total / catalogue.load_device("v100-16gb").bandwidth_h2d
