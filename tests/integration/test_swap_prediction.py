"""Sessions driven by plans do in a steady step what the simulator says of the same plan, and keep their budgets.

When copies end is up to the machine. A swap-in that comes while the storage is still leaving copies nothing; what of
the room that is becoming free goes to an op, and what to a swap-in that waits, decides whether one spare more leaves.
So the simulator is asked for copies of several speeds: what is the same with all of them must be that in the run, and
everything else lie between. UMADVISE_FULL=1 looks at three times as many sessions.
"""

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
import torch
from fast_networks import FAST_NETWORKS
from floors import floor_bytes, need_bytes
from msgspec.structs import replace
from small_networks import MIB
from torch import nn
from training_variants import Around, train

import umadvise
from umadvise._native.abi import SwapResult
from umadvise.records.counters import SwapCounters
from umadvise.records.device import DeviceProfile, LinkDirection
from umadvise.torch_seam import runtime
from umadvise.training.plans.device import planning_device
from umadvise.training.plans.prediction import predict_swaps

STEPS, STEADY = 8, 3
"""The first steps make the optimizer's state, are recorded, and start the plan's cycle."""
PEAK = 0.05
SPEEDS = (0.1, 1.0, 1000.0)
"""Of copies, over what is measured: a machine has other things to do, or none."""
CHUNK_BYTES = 2 * MIB
CASES = [
    ("mlp", "swap", 0.5),
    ("lstm", "swap:window", 0.5),
    ("embedding", "swap", 0.8),
    ("resnet", "swap", 0.5),
    ("tied", "belady", 0.5),
    ("cnn", "swap", 0.5),
    # Where many small tensors of many sizes share chunks, how many these are is history: there spares are no example.
    ("transformer", "belady", 0.5),
]
if os.environ.get("UMADVISE_FULL"):
    networks = ("mlp", "lstm", "embedding", "resnet", "tied")
    CASES = [
        *((network, "swap", share) for network in networks for share in (0.5, 0.8)),
        *((network, "swap:window", 0.5) for network in networks),
        *((network, "belady", 0.5) for network in ("mlp", "resnet", "tied", "transformer", "bert")),
        *((network, "swap", 0.5) for network in ("cnn", "densenet")),
    ]


@pytest.fixture(autouse=True)
def unpatched() -> Iterator[None]:
    yield
    if runtime.is_patched():
        umadvise.unpatch()


@functools.lru_cache(maxsize=1)
def needs(network: str) -> tuple[int, int]:
    """Bytes of chunks that all tensors of a step take at once, and the smallest budget."""
    sessions: list[umadvise.session] = []

    @contextmanager
    def opened(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Around]:
        with umadvise.session(
            model, optimizer, device="emulated", capacity="512MiB", policy="advise", record=True
        ) as um:
            sessions.append(um)
            yield um.step

    train(FAST_NETWORKS[network], "adamw", "plain", opened)
    trace = sessions[0].trace()
    return need_bytes(trace), floor_bytes(trace)


def with_speed(device: DeviceProfile, factor: float) -> DeviceProfile:
    """A device whose link is that much faster."""

    def faster(way: LinkDirection) -> LinkDirection:
        both = way.both_bytes_per_s
        return replace(
            way,
            bytes_per_s=replace(way.bytes_per_s, value=way.bytes_per_s.value * factor),
            both_bytes_per_s=replace(both, value=None if both.value is None else both.value * factor),
        )

    return replace(device, link=replace(device.link, h2d=faster(device.link.h2d), d2h=faster(device.link.d2h)))


class Observed:
    """What a session's steps did, and what the simulator says of them: first at the speed that was measured."""

    def __init__(self, network: str, policy: str, budget_bytes: int) -> None:
        self.counters: list[SwapCounters] = []
        self.predicted: list[SwapResult] = []
        self.budget_bytes = budget_bytes

        @contextmanager
        def opened(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Around]:
            device = umadvise.EmulatedDevice(capacity="512MiB")
            with umadvise.session(model, optimizer, device=device, policy=policy, budget=budget_bytes) as um:

                @contextmanager
                def step() -> Iterator[None]:
                    with um.step():
                        yield
                    self.counters.append(um.swap_counters())

                yield step
                self._predict(um)

        train(FAST_NETWORKS[network], "adamw", "plain", opened, count=STEPS)

    def _predict(self, um: umadvise.session) -> None:
        predicted, step, plan = um.predicted_step(), um.planned_step, um.plan
        assert predicted is not None
        assert step is not None
        assert plan is not None
        self.predicted.append(predicted.result)
        profile = planning_device(runtime.current().device).profile
        for speed in SPEEDS:
            device = with_speed(profile, speed)
            made = predict_swaps(step, plan, device, budget_bytes=self.budget_bytes, chunk_bytes=CHUNK_BYTES)
            self.predicted.append(made.result)

    def steady(self, *names: str) -> list[int]:
        """Of the sum of some counters, in each of the last steps."""
        sums = [sum(getattr(each, name) for name in names) for each in self.counters]
        return [after - before for before, after in pairwise(sums)][-STEADY:]

    def expected(self, *names: str) -> list[int]:
        """The same of the simulations."""
        return [sum(getattr(each, name) for name in names) for each in self.predicted]


@pytest.mark.parametrize(("network", "policy", "share"), CASES)
def test_a_run_is_what_the_simulator_says(network: str, policy: str, share: float) -> None:
    needed, floor = needs(network)
    budget_bytes = max(floor, int(needed * share) // CHUNK_BYTES * CHUNK_BYTES)
    run = Observed(network, policy, budget_bytes)
    assert run.steady("programs_followed") == [1] * STEADY
    sums = [("evictions",), ("swap_outs",), ("swap_out_bytes",), ("clean_drops",), ("swap_ins", "cancelled")]
    if not any(run.steady("cancelled")) and not any(run.expected("cancelled")):
        sums += [("swap_in_bytes",), ("on_demand_swap_ins",)]
    for names in sums:
        least, most = min(run.expected(*names)), max(run.expected(*names))
        assert all(least <= each <= most for each in run.steady(*names)), (names, run.steady(*names), least, most)
    peak_bytes = run.predicted[0].peak_reserved_bytes
    for counted in run.counters[-STEADY:]:
        assert counted.used_peak_bytes <= budget_bytes
        assert abs(counted.used_peak_bytes - peak_bytes) <= max(PEAK * peak_bytes, CHUNK_BYTES)
