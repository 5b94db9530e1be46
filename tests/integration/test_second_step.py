"""The second step told from the first: what a real second step does, op by op and storage by storage."""

import numpy as np
import pytest
import torch
from small_networks import NETWORKS, OPTIMIZERS
from torch import nn
from torch.nn import functional

import umadvise
from umadvise import EmulatedDevice
from umadvise.recording.recorded_step import RecordedStep
from umadvise.recording.second_step import less_what_happens_once
from umadvise.records.enums import Phase, Role
from umadvise.records.trace import Trace

pytestmark = pytest.mark.usefixtures("unpatched")


def recorded(model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[torch.Tensor, ...]) -> list[RecordedStep]:
    """The first two steps of a training, each recorded by itself."""
    found = []
    with umadvise.session(model, optimizer, device=EmulatedDevice("1GiB"), policy="advise") as um:
        recorder = um._open_loop().observer.recorder
        inputs, labels = um.to_device(batch)
        for number in (1, 2):
            recorder.start_step()
            with um.step():
                optimizer.zero_grad()
                functional.cross_entropy(model(inputs), labels).backward()
                optimizer.step()
            recorder.stop_step()
            found.append(recorder.step(number))
    return found


def ops(trace: Trace) -> list[str]:
    return [trace.strings[name] for name in trace.ops.name]


def uses(trace: Trace) -> list[tuple[int, str, int, int, int]]:
    """Op, name of the storage, bytes, and what is done to which of them."""
    table, storages = trace.accesses, trace.storages
    names = [trace.strings[storages.name[each]] for each in table.storage]
    columns = (table.op, storages.role[table.storage], table.offset_bytes, table.bytes, table.flags)
    return [(name, *map(int, row)) for name, row in zip(names, zip(*columns, strict=True), strict=True)]  # type: ignore[misc]


@pytest.mark.parametrize("name", NETWORKS)
def test_with_adam_every_op_and_every_use_is_the_same(name: str) -> None:
    torch.manual_seed(2021)
    model = NETWORKS[name].model()
    first, second = recorded(model, OPTIMIZERS["adamw"](model.parameters()), NETWORKS[name].batch())
    found = less_what_happens_once(first)
    assert found is not None
    assert len(found.trace.ops) < len(first.trace.ops)
    assert ops(found.trace) == ops(second.trace)
    assert uses(found.trace) == uses(second.trace)
    assert abs(found.trace.peak_bytes / second.trace.peak_bytes - 1) < 0.05
    kept = (Role.PARAMETER, Role.GRADIENT, Role.OPTIMIZER_STATE)
    expected = found.first_serials()[np.isin(found.trace.storages.role, kept)]
    there = (second.trace.births < 0) & np.isin(second.trace.storages.role, kept)
    assert set(expected.tolist()) - {0} == set(second.serials[there].tolist())
    assert less_what_happens_once(second) is None


def test_with_momentum_it_is_the_same_up_to_the_optimizer() -> None:
    """Momentum begins as a copy of the gradient, and is multiplied from the second step on."""
    torch.manual_seed(2021)
    model = NETWORKS["mlp"].model()
    first, second = recorded(model, OPTIMIZERS["sgd"](model.parameters()), NETWORKS["mlp"].batch())
    found = less_what_happens_once(first)
    assert found is not None
    ours, theirs = ops(found.trace), ops(second.trace)
    parts = next(place for place, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other)
    assert second.trace.ops.phase[parts] == Phase.OPTIMIZER
    assert parts > len(theirs) // 2


def test_inference_has_nothing_that_happens_once() -> None:
    model = NETWORKS["mlp"].model()
    with umadvise.session(model, device=EmulatedDevice("1GiB"), policy="advise") as um, torch.no_grad():
        recorder = um._open_loop().observer.recorder
        recorder.start_step()
        with um.step():
            model(um.to_device(NETWORKS["mlp"].batch()[0]))
        recorder.stop_step()
        assert less_what_happens_once(recorder.step(1)) is None
