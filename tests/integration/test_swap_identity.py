"""Sessions under every policy, down to the smallest budget, give the bits that vanilla PyTorch gives.

Twelve networks, every rung of the ladder and every planner that a session takes, optimizers of all three kinds, and
training loops with everything that a recorded plan must survive. A set of cases runs always in which each rung and each
budget meets every network, variant and optimizer, and each planner a few networks. UMADVISE_FULL=1 runs every network
with every policy, budget and variant.
"""

import functools
import gc
import itertools
import os
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import product

import pytest
import torch
from fast_networks import FAST_NETWORKS
from floors import CHUNK_BYTES, floor_bytes, need_bytes
from pairwise import Case, covering
from small_networks import MIB, different
from torch import nn
from training_variants import IMPOSSIBLE, OPTIMIZERS, OTHER_BRANCH_STEP, VARIANTS, Around, train
from usable_policies import RUNGS, SESSION_PLANNERS

import umadvise
from umadvise import _native
from umadvise.records.trace import Trace
from umadvise.torch_seam import runtime
from umadvise.training.session import Session

ALL = bool(os.environ.get("UMADVISE_FULL"))
DELAY_US = 30
PAGED = ("resident", "advise", "window", "advice", "um-window")
"""Policies without chunks."""
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
PROMISED = ("policy", "budget")
"""Occur with each value of the other factors, which make up plain PyTorch's program."""


def possible(case: Case) -> bool:
    if not ALL and (case.get("network"), case.get("variant")) == ("transformer", "autocast"):
        return False  # takes three times as long as another one; other networks meet autocast
    if case.get("policy") == "resident" and case.get("budget", "plenty") != "plenty":
        return False
    return (case.get("network"), case.get("variant")) not in IMPOSSIBLE


def all_cases() -> list[Case]:
    """Every combination of the factors that the promise names; the others change from case to case."""
    promised = ["network", "policy", "budget", "variant"]
    free = {name: values for name, values in RUNG_FACTORS.items() if name not in promised}
    others = itertools.cycle(random.Random(0).sample(list(product(*free.values())), 30))
    values = product(FAST_NETWORKS, [*RUNGS, *SESSION_PLANNERS], RUNG_FACTORS["budget"], VARIANTS)
    found = [dict(zip([*promised, *free], (*value, *next(others)), strict=True)) for value in values]
    return [case for case in found if possible(case)]


def cases() -> list[Case]:
    factors = (RUNG_FACTORS, PLANNER_FACTORS)
    chosen = all_cases() if ALL else [case for each in factors for case in covering(each, possible, PROMISED)]
    return sorted(chosen, key=lambda case: [case[name] for name in ("network", "optimizer", "variant")])


def name_of(case: Case) -> str:
    return "-".join(map(str, case.values()))


def opened_by(
    sessions: list[Session], before: Callable[[], object] = lambda: None, **options: object
) -> Callable[[nn.Module, torch.optim.Optimizer], AbstractContextManager[Around]]:
    """What opens a session for `train`, with a model that lies in ordinary memory, and leaves it in the list."""

    @contextmanager
    def opened(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Around]:
        before()
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
    count = OTHER_BRANCH_STEP + 1 if variant == "other-branch" else 2  # the second step has the optimizer's state
    train(FAST_NETWORKS[network], optimizer, variant, opened, count)
    return sessions[0].trace()


@pytest.mark.parametrize("factors", [RUNG_FACTORS, PLANNER_FACTORS], ids=["rungs", "planners"])
def test_every_possible_pair_is_covered(factors: dict[str, list[object]]) -> None:
    found = covering(factors, possible, PROMISED)
    assert all(map(possible, found))
    for (one, values), (other, seconds) in product(factors.items(), repeat=2):
        if one not in PROMISED or one == other:
            continue
        wanted = {
            (value, second) for value, second in product(values, seconds) if possible({one: value, other: second})
        }
        assert {(case[one], case[other]) for case in found} == wanted
    assert len(found) < 90


@pytest.mark.parametrize("case", cases(), ids=name_of)
def test_equals_vanilla(case: Case, patched: Callable[..., _native.Device], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMADVISE_PLAN_CACHE", "off")
    expected, needed, floor = vanilla(case["network"], case["optimizer"], case["variant"])
    if case["policy"] not in PAGED:  # a small tensor that lives long may keep a chunk that others shared with it
        floor += CHUNK_BYTES
    budget_bytes = {"floor": floor, "half": max(floor, needed // 2), "plenty": 2 * needed}[case["budget"]]
    sessions: list[Session] = []
    options = {"delays": case["delays"], "delay_seed": len(name_of(case))}
    patch = functools.partial(patched, budget_bytes + 32 * MIB, **options)
    opened = opened_by(sessions, patch, policy=case["policy"], budget=budget_bytes)
    trained = train(FAST_NETWORKS[case["network"]], case["optimizer"], case["variant"], opened)
    assert not any(map(umadvise.on_device, trained.model.parameters()))
    assert different({name: tensor.cpu() for name, tensor in trained.tensors().items()}, expected) == []
    device = runtime.current().device
    check_counters(case, device, sessions[0], budget_bytes, tight=needed > 1.5 * floor)
    del trained, sessions, opened
    gc.collect()
    assert device.allocations() == []


def check_counters(case: Case, device: _native.Device, session: Session, budget_bytes: int, *, tight: bool) -> None:
    swaps, paged = device.swap_counters(), device.counters().bytes_d2h
    assert swaps.silent_writes == 0
    assert swaps.used_peak_bytes <= budget_bytes
    if case["budget"] == "floor" and tight:  # something had to leave
        assert swaps.swap_outs + swaps.clean_drops + paged.eviction + paged.user > 0
    plans = session.rung.startswith("swap") and case["policy"] != "auto"  # which may have come there in the last step
    if plans and case["variant"] == "plain" and case["network"] != "experts":
        assert session.swap_counters().programs_followed > 0
