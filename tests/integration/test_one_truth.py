"""What the emulated device observes in real training, and what the simulator predicts from its trace: one truth.

Ordered counting must equal the guard's prediction, and raw counting the replay of its recorded service order, in every
counter. Raw counting against the prediction is an error figure, which is bounded here. Random programs in both ways:
csrc/tests/replay/unified.cpp. Every network and every advice runs with every limit, and with raw counting in one;
UMADVISE_FULL=1 looks at every network with every advice in every limit.
"""

from collections.abc import Callable
from itertools import product

import msgspec
import pytest
import small_networks
import torch
from pairwise import by_turns
from small_networks import NETWORKS, OPTIMIZERS

import umadvise
from umadvise._native.abi import Service
from umadvise.devices import rungs as roles
from umadvise.devices.rungs import Policy
from umadvise.records.counters import Counters, add
from umadvise.records.enums import Advice, Role
from umadvise.records.trace import EventKind, Trace
from umadvise.simulator.unified import simulate_unified

DEVICE = "v100-pcie-16gb"  # any that pages: what its link and driver cost is in no counter
MIB = 1 << 20
ADVICE: dict[str, dict[Role, Advice]] = {
    "none": dict.fromkeys(roles.ARENA_ROLES, Advice.NONE),
    "preferred_location": dict.fromkeys(roles.ARENA_ROLES, Advice.PREFERRED_LOCATION),
    "accessed_by": dict.fromkeys(roles.ARENA_ROLES, Advice.ACCESSED_BY),
    "read_mostly": dict.fromkeys(roles.ARENA_ROLES, Advice.READ_MOSTLY),
    "recommended": roles.ADVISE.advice,  # all three of preferred location, read-mostly and prefetch
}
CAPACITY_MIB = {"mlp": 80, "cnn": 88, "lstm": 184, "transformer": 64, "unet": 120, "embedding": 224}
"""Each holds its network's largest op, and about half of what the network needs in all. An op that does not fit, or
that the guard's budget does not hold, faults as its threads will, which nobody can predict."""
LIMITS: dict[str, Callable[[int], tuple[int, int | None]]] = {
    "capacity": lambda capacity: (capacity, None),
    "budget": lambda capacity: (4 * capacity, capacity),
    "both": lambda capacity: (capacity * 9 // 8, capacity),
}
Limits = tuple[int, int | None]
CASES = [(name, advice, within) for (name, within), advice in by_turns(product(NETWORKS, LIMITS), ADVICE)]


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Trace, Counters]]:
    """Steps of a small network on the emulated device: what it taped from the first tensor on, and its counters."""

    def run(name: str, advice: str, limits: Limits, counting: str, steps: int = 1) -> tuple[Trace, Counters]:
        monkeypatch.setitem(roles.LADDER, "advise", Policy("advise", advice=ADVICE[advice]))
        network, (capacity, budget) = NETWORKS[name], limits
        torch.manual_seed(7)
        model = network.model()
        optimizer = OPTIMIZERS["adamw"](model.parameters())
        device = umadvise.EmulatedDevice(capacity=capacity * MIB, counting=counting)
        budget_bytes = None if budget is None else budget * MIB
        with umadvise.session(model, optimizer, device=device, budget=budget_bytes, policy="advise", record=True) as um:
            for _ in range(steps):
                with um.step():
                    list(small_networks.steps(network, model, optimizer, 1, um.to_device))
            return um.trace(), um.counters()

    return run


def predicted(trace: Trace, advice: str, limits: Limits, service: Service) -> Counters:
    capacity, budget = limits
    simulation = simulate_unified(
        trace,
        DEVICE,
        capacity_bytes=capacity * MIB,
        budget_bytes=None if budget is None else budget * MIB,
        advice=ADVICE[advice],
        iterations=1,
        service=service,
    )
    return add(simulation.setup.counters, simulation.steps[0].counters)


def comparable(counters: Counters) -> Counters:
    """Without what the emulated device cannot see, and without what takes real time there."""
    return msgspec.structs.replace(counters, remote_accesses=None, fault_service_ns=None)


@pytest.mark.parametrize(("name", "advice", "within"), CASES)
def test_ordered_counters_are_the_predicted_ones(train: Callable, name: str, advice: str, within: str) -> None:
    limits = LIMITS[within](CAPACITY_MIB[name])
    trace, observed = train(name, advice, limits, "ordered", steps=2 if within == "both" else 1)
    assert comparable(predicted(trace, advice, limits, Service.GUARD)) == comparable(observed)
    assert observed.op_count == len(trace.ops)
    assert observed.fault_groups > 0 or advice == "recommended"


@pytest.mark.parametrize(("name", "advice"), by_turns(NETWORKS, ADVICE))
def test_raw_counters_are_the_replay_of_their_services(train: Callable, name: str, advice: str) -> None:
    limits = LIMITS["both"](CAPACITY_MIB[name])
    trace, observed = train(name, advice, limits, "raw")
    assert (trace.events.kind >= EventKind.SERVICE_READ).any()
    assert comparable(predicted(trace, advice, limits, Service.RECORDED)) == comparable(observed)
    # The guard's order is not that of two threads: the figures differ, and how much is known.
    guessed = predicted(trace, advice, limits, Service.GUARD)
    assert guessed.fault_groups == pytest.approx(observed.fault_groups, rel=0.5, abs=64)
