"""Training in unified memory gives the bits that vanilla PyTorch gives: losses, parameters, buffers, gradients, state.

A pairwise covering set of networks, optimizers, advices, capacities and ways to count runs always; UMADVISE_FULL=1 runs
every network with every optimizer, advice for intermediates and capacity.
"""

import functools
import gc
import itertools
import os
import random
from collections.abc import Callable
from itertools import combinations, product

import pytest
import torch
from pairwise import Case, covering
from small_networks import MIB, NETWORKS, OPTIMIZERS, Cnn, Network, PeakOfStorages, different, steps, train

import umadvise
from umadvise import _native
from umadvise.records.advice import PAPER_WORDS

ALL = bool(os.environ.get("UMADVISE_FULL"))
STEPS = 3 if ALL else 2  # the second is the first with optimizer state
LEAST_NEED_BYTES = 128 * MIB
DELAY_US = 30
ADVICES = list(PAPER_WORDS)
FACTORS = {
    "network": list(NETWORKS),
    "optimizer": list(OPTIMIZERS),
    "intermediates": ADVICES,
    "parameters": ADVICES,
    "inputs": ADVICES,
    "percent": [25, 50, 100],
    "counting": ["raw", "ordered"],
}


def all_cases() -> list[Case]:
    """Every combination of the four factors that the promise names; the others change from case to case."""
    promised = ["network", "optimizer", "intermediates", "percent"]
    free = [list(values) for name, values in FACTORS.items() if name not in promised]
    others = itertools.cycle(random.Random(0).sample(list(product(*free)), 50))
    names = [*promised, *(name for name in FACTORS if name not in promised)]
    return [
        dict(zip(names, (*values, *next(others)), strict=True))
        for values in product(*(FACTORS[name] for name in promised))
    ]


def cases() -> list[Case]:
    chosen = all_cases() if ALL else covering(FACTORS)
    return sorted(chosen, key=lambda case: (case["network"], case["optimizer"]))  # vanilla runs once for each


def name_of(case: Case) -> str:
    return "-".join(map(str, case.values()))


@functools.lru_cache(maxsize=1)
def vanilla(network: str, optimizer: str) -> tuple[dict[str, torch.Tensor], int]:
    """Everything that a run without umadvise leaves, and the bytes that it needed."""
    with PeakOfStorages() as peak:
        trained = train(NETWORKS[network], optimizer, STEPS)
    return trained.tensors(), peak.peak_bytes


def test_every_pair_is_covered() -> None:
    found = covering(FACTORS)
    for (one, values), (other, seconds) in combinations(FACTORS.items(), 2):
        assert {(case[one], case[other]) for case in found} == set(product(values, seconds))
    assert len(found) < 60


@pytest.mark.parametrize("case", cases(), ids=name_of)
def test_equals_vanilla(case: Case, patched: Callable[..., _native.Device]) -> None:
    expected, need_bytes = vanilla(case["network"], case["optimizer"])
    assert need_bytes >= LEAST_NEED_BYTES
    capacity_bytes = need_bytes * case["percent"] // 100
    device = patched(capacity_bytes, counting=case["counting"], delays=DELAY_US, delay_seed=len(name_of(case)))
    torch.cuda.set_unified(case["intermediates"])
    trained = train(
        NETWORKS[case["network"]],
        case["optimizer"],
        STEPS,
        move_model=lambda model: model.to(f"cuda:{case['parameters']}"),
        move=lambda tensor: tensor.to(f"cuda:{case['inputs']}"),
    )
    assert all(map(umadvise.on_device, trained.model.parameters()))
    assert different({name: tensor.cpu() for name, tensor in trained.tensors().items()}, expected) == []
    evicted_bytes = device.counters().bytes_d2h.eviction
    assert case["percent"] > 25 or evicted_bytes > 0
    del trained
    gc.collect()
    assert device.allocations() == []


def test_before_inside_and_after(patched: Callable[..., _native.Device]) -> None:
    """One model, ten times in and out again: the optimizer's state and the model are used on both sides."""
    network = Network("cnn", lambda: Cnn(4, 2), lambda: (torch.randn(4, 3, 128, 128), torch.arange(4)))

    def run(switch: Callable[[int], None]) -> dict[str, torch.Tensor]:
        torch.manual_seed(3)
        model = network.model()
        optimizer = OPTIMIZERS["adamw"](model.parameters())
        losses = []
        for turn in range(30):
            switch(turn)
            losses += list(steps(network, model, optimizer, 1))
        found = {f"loss {turn}": loss for turn, loss in enumerate(losses)}
        found.update(model.state_dict())
        return {name: tensor.detach() for name, tensor in found.items()}

    def in_and_out(turn: int) -> None:
        if turn % 3 == 1:
            patched("24MiB", delays=DELAY_US)
        elif turn % 3 == 2:
            umadvise.unpatch()

    expected = run(lambda _turn: None)
    assert different(run(in_and_out), expected) == []
