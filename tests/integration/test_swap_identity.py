"""Sessions under every policy, down to the smallest budget, give the bits that vanilla PyTorch gives.

Twelve networks, every rung of the ladder and every planner that a session takes, optimizers of all three kinds, and
training loops with everything that a recorded plan must survive. A pairwise covering set of the rungs, and each planner
on a few networks, run always; UMADVISE_FULL=1 runs every network with every policy, budget and variant.
"""

import functools
import gc
import itertools
import os
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import combinations, product

import pytest
import torch
from fast_networks import FAST_NETWORKS
from floors import floor_bytes, need_bytes
from pairwise import Case, covering
from small_networks import MIB, different
from torch import nn
from training_variants import IMPOSSIBLE, OPTIMIZERS, VARIANTS, Around, train
from usable_policies import RUNGS, SESSION_PLANNERS

import umadvise
from umadvise import _native
from umadvise._abi import Cause
from umadvise.trace.schema import Trace
from umadvise.training_session import Session

ALL = bool(os.environ.get("UMADVISE_FULL"))
DELAY_US = 30
RUNG_FACTORS = {
    "network": list(FAST_NETWORKS),
    "variant": list(VARIANTS),
    "policy": RUNGS,
    "budget": ["floor", "half", "plenty"],
    "optimizer": list(OPTIMIZERS),
    "delays": [DELAY_US, 0],
}
PLANNER_FACTORS = RUNG_FACTORS | {
    "network": ["mlp", "resnet", "transformer"],
    "policy": SESSION_PLANNERS,
    "variant": ["plain", "other-branch", "accumulation"],
    "optimizer": ["adamw", "sgd-fused"],
}


def possible(case: Case) -> bool:
    if case.get("policy") == "resident" and case.get("budget", "plenty") != "plenty":
        return False
    return (case.get("network"), case.get("variant")) not in IMPOSSIBLE


def all_cases() -> list[Case]:
    """Every combination of the factors that the promise names; the two others change from case to case."""
    promised = ["network", "policy", "budget", "variant"]
    others = itertools.cycle(random.Random(0).sample(list(product(OPTIMIZERS, RUNG_FACTORS["delays"])), 12))
    values = product(FAST_NETWORKS, [*RUNGS, *SESSION_PLANNERS], RUNG_FACTORS["budget"], VARIANTS)
    found = [dict(zip([*promised, "optimizer", "delays"], (*value, *next(others)), strict=True)) for value in values]
    return [case for case in found if possible(case)]


def cases() -> list[Case]:
    chosen = all_cases() if ALL else covering(RUNG_FACTORS, possible)
    if SESSION_PLANNERS and not ALL:
        chosen += covering(PLANNER_FACTORS, possible)
    return sorted(chosen, key=lambda case: [case[name] for name in ("network", "optimizer", "variant")])


def name_of(case: Case) -> str:
    return "-".join(map(str, case.values()))


def opened_by(
    sessions: list[Session], **options: object
) -> Callable[[nn.Module, torch.optim.Optimizer], AbstractContextManager[Around]]:
    """What opens a session for `train`, and leaves it in the list."""

    @contextmanager
    def opened(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Around]:
        with umadvise.session(model, optimizer, **options) as um:  # type: ignore[arg-type]
            sessions.append(um)
            yield um.step

    return opened


@functools.lru_cache(maxsize=1)
def vanilla(network: str, optimizer: str, variant: str) -> tuple[dict[str, torch.Tensor], int, int]:
    """Everything that a run without umadvise leaves, and what it needs: at once, and with swapping."""
    expected = train(FAST_NETWORKS[network], optimizer, variant).tensors()
    trace = recorded(network, optimizer, variant)
    return expected, need_bytes(trace), floor_bytes(trace)


def recorded(network: str, optimizer: str, variant: str) -> Trace:
    sessions: list[Session] = []
    opened = opened_by(sessions, device="emulated", capacity="512MiB", policy="advise", record=True)
    train(FAST_NETWORKS[network], optimizer, variant, opened)
    return sessions[0].trace()


@pytest.mark.parametrize("factors", [RUNG_FACTORS, PLANNER_FACTORS], ids=["rungs", "planners"])
def test_every_possible_pair_is_covered(factors: dict[str, list[object]]) -> None:
    if not all(factors.values()):
        pytest.skip("a session takes no planner by name yet")
    found = covering(factors, possible)
    assert all(map(possible, found))
    for (one, values), (other, seconds) in combinations(factors.items(), 2):
        wanted = {
            (value, second) for value, second in product(values, seconds) if possible({one: value, other: second})
        }
        assert {(case[one], case[other]) for case in found} == wanted
    assert len(found) < 200


@pytest.mark.parametrize("case", cases(), ids=name_of)
def test_equals_vanilla(case: Case, patched: Callable[..., _native.Device]) -> None:
    expected, needed, floor = vanilla(case["network"], case["optimizer"], case["variant"])
    budget_bytes = {"floor": floor, "half": max(floor, needed // 2), "plenty": 2 * needed}[case["budget"]]
    capacity_bytes = budget_bytes + 32 * MIB
    device = patched(capacity_bytes, delays=case["delays"], delay_seed=len(name_of(case)))
    sessions: list[Session] = []
    opened = opened_by(sessions, policy=case["policy"], budget=budget_bytes)
    trained = train(FAST_NETWORKS[case["network"]], case["optimizer"], case["variant"], opened)
    assert not any(map(umadvise.on_device, trained.model.parameters()))
    assert different({name: tensor.cpu() for name, tensor in trained.tensors().items()}, expected) == []
    if case["budget"] == "floor" and case["policy"] == "advise" and needed > 1.5 * floor:
        assert device.counters().bytes_d2h[Cause.EVICTION] + device.counters().bytes_d2h[Cause.USER] > 0
    del trained, sessions, opened
    gc.collect()
    assert device.allocations() == []
