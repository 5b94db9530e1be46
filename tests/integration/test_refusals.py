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


def test_refusals_outside_of_steps_name_budgets_that_run() -> None:
    """Each refusal names more than the one before, until everything runs; an op that was refused never moves back."""

    def run(budget_bytes: int) -> list[torch.Tensor]:
        model = torch.nn.Linear(8, 8)
        with umadvise.session(model, device="emulated", policy="swap", budget=budget_bytes) as um:
            small = um.to_device(torch.arange(MIB, dtype=torch.float32))
            done.append("moved")
            sums = [small + small]
            done.append("added")
            parts = [(small * factor).expand(7, MIB).clone() for factor in (1, 2)]
            sums.append(torch.cat([sums[0], parts[0].view(-1), parts[1].view(-1)]))
            done.append("joined")
            return [each.cpu() for each in sums]

    named, reached = [6 * MIB], list[int]()
    found: list[torch.Tensor] | None = None
    while found is None:
        done = list[str]()
        try:
            found = run(named[-1])
        except torch.OutOfMemoryError as refusal:
            assert "later ops may need more" in str(refusal)
            match = _NAMED.search(str(refusal))
            assert match is not None, str(refusal)
            named.append(int(match[1]))
            reached.append(len(done))
    assert reached[:2] == [1, 2] and reached == sorted(reached), (reached, named)
    assert named == sorted(set(named)) and len(named) <= 5, named
    small = torch.arange(MIB, dtype=torch.float32)
    joined = torch.cat([small + small, small.expand(7, MIB).reshape(-1), (small * 2).expand(7, MIB).reshape(-1)])
    assert torch.equal(found[0], small + small) and torch.equal(found[1], joined)
