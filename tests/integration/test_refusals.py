"""A budget that is too small is refused once: the error names one that does, for the step, and for a resumed run."""

import re
from pathlib import Path

import pytest
import torch
from accelerate.utils.memory import should_reduce_batch_size
from floor_networks import NETWORKS, FloorTraining

import umadvise

pytestmark = pytest.mark.usefixtures("unpatched")

MIB = 1 << 20
_NAMED = re.compile(r"a budget of .+? \((\d+) bytes\) does")


def _made(network: str) -> FloorTraining:
    torch.manual_seed(0)
    return NETWORKS[network](small=True)


def _step(training: FloorTraining, number: int) -> torch.Tensor:
    torch.manual_seed(number)  # what dropout drops does not depend on the steps before
    loss = training.loss(number)
    loss.backward()
    training.optimizer.step()
    training.optimizer.zero_grad()
    return loss.detach().cpu().clone()


def _train(network: str, budget_bytes: int, resumed: Path | None = None) -> list[torch.Tensor]:
    training = _made(network)
    with umadvise.session(
        training.model, training.optimizer, device="emulated", policy="swap", budget=budget_bytes
    ) as um:
        if resumed is not None:
            state = torch.load(resumed)
            training.model.load_state_dict(state["model"])
            training.optimizer.load_state_dict(state["optimizer"])
        found = []
        for number in range(2 if resumed is not None else 0, 4):
            with um.step():
                found.append(_step(training, number))
        return found


@pytest.mark.parametrize("network", NETWORKS)
def test_the_budget_that_a_refusal_names_does(network: str, tmp_path: Path) -> None:
    plain = _made(network)
    expected = [_step(plain, number) for number in range(2)]
    torch.save({"model": plain.model.state_dict(), "optimizer": plain.optimizer.state_dict()}, tmp_path / "state")
    expected += [_step(plain, number) for number in range(2, 4)]
    with pytest.raises(torch.OutOfMemoryError, match="no room for") as refused:
        _train(network, 4 * MIB)
    assert should_reduce_batch_size(refused.value)
    named = _NAMED.search(str(refused.value))
    assert named is not None, str(refused.value)
    for found in (_train(network, int(named[1])), _train(network, int(named[1]), tmp_path / "state")):
        assert all(map(torch.equal, found, expected[-len(found) :]))
