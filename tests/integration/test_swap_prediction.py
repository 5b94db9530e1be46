"""In virtual time a session's driven steps do exactly what is predicted of them: the engine runs in both.

Predicted is on a simulated device, which knows the step as it was recorded and its plan; counted is on the emulated
one, which trains. Every step that the plan drove is compared, with its waits to the nanosecond, though the device has a
past by then that the simulated one lacks. UMADVISE_FULL=1 looks at more sessions and at 200 random programs.
"""

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
import torch
from fast_networks import FAST_NETWORKS
from floors import floor_bytes, need_bytes
from fuzz import register_random_planner
from fuzz_instructions import INSTRUCTIONS
from fuzz_program import Choose, SteppedProgram, World, program_of, run
from small_networks import MIB
from torch import nn
from training_variants import Around, train

import umadvise
from umadvise._native.abi import GpuStep, ProgramStatus
from umadvise.records.counters import SwapCounters
from umadvise.torch_seam import runtime
from umadvise.training.loop import plan_cycle

pytestmark = pytest.mark.usefixtures("unpatched")

STEPS = 14
CHUNK_BYTES = 2 * MIB
TOTALS = (
    *("swap_ins", "swap_outs", "swap_in_bytes", "swap_out_bytes", "evictions", "clean_drops", "cancelled"),
    *("on_demand_swap_ins", "wait_copy_ns", "wait_room_ns", "actions", "skipped_actions", "programs_followed"),
)
CASES = [
    ("mlp", "swap", 0.5),
    ("lstm", "swap:window", 0.5),
    ("embedding", "swap", 0.8),
    ("resnet", "swap", 0.5),
    ("tied", "belady", 0.5),
    ("transformer", "belady", 0.5),
]
FULL = bool(os.environ.get("UMADVISE_FULL"))
if FULL:
    networks = ("mlp", "lstm", "embedding", "resnet", "tied", "transformer", "bert", "cnn", "densenet")
    CASES = [
        (network, policy, share)
        for network in networks
        for policy in ("swap", "swap:window", "belady")
        for share in (0.4, 0.5, 0.8)
    ]
BUDGETS_MIB = (40, 48, 64, 96)
SEEDS = range(200) if FULL else (0, 1, 5, 30, 44, 49, 76)
"""In the last five it takes little for what was before to decide how a step goes on, or what lies idle on the
device."""
LENGTH = 60
OPS_ALONE = ("make", "combine", "multiply", "join", "change_type", "write", "write_lists", "view", "drop", "backward")
"""Instructions that do the same to memory in each step; of others a plan does not know."""
POLICIES = ("swap:random", "swap", "belady", "swap:lru", "swap:window")


@pytest.fixture(autouse=True)
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prediction begins with the recorded step: no plan of what the first one told drives that here."""
    monkeypatch.setattr(plan_cycle, "less_what_happens_once", lambda _first: None)


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


class Observed:
    """What a session counts in each step, and, when it is over, what is predicted of the steps that its plan drove."""

    def __init__(self, um: umadvise.session) -> None:
        self.counters: list[SwapCounters] = []
        self.predicted: list[GpuStep] = []
        self._um = um
        self._first: int | None = None

    @contextmanager
    def step(self) -> Iterator[None]:
        with self._um.step():
            yield
        self.counters.append(self._um.swap_counters())
        if self._first is None and self._um.plan is not None:
            self._first = len(self.counters) - 1

    def predict(self) -> None:
        """While the session is open."""
        assert self._first is not None
        simulation = self._um._open_loop().predicted()
        assert simulation is not None
        assert self._um.predicted_step() == simulation.steps[-1]
        self.predicted = simulation.steps[1:]

    def check(self) -> None:
        assert self._first is not None
        assert self.counters[-1].program == ProgramStatus.WAITING
        predicted = self.predicted + self.predicted[-1:] * STEPS  # it ends when steps are all alike
        for (before, after), step in zip(pairwise(self.counters[self._first - 1 :]), predicted, strict=False):
            counted = {name: getattr(after, name) - getattr(before, name) for name in TOTALS}
            assert counted == {name: getattr(step.swaps, name) for name in TOTALS}
            assert after.used_peak_bytes == step.swaps.used_peak_bytes


@pytest.mark.parametrize(("network", "policy", "share"), CASES)
def test_a_run_is_what_is_predicted(network: str, policy: str, share: float) -> None:
    needed, floor = needs(network)
    budget_bytes = max(floor, int(needed * share) // CHUNK_BYTES * CHUNK_BYTES)
    runs: list[Observed] = []

    @contextmanager
    def opened(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Callable[[], Around]]:
        device = umadvise.EmulatedDevice(capacity="512MiB", clock="h100-sxm-80gb")
        with umadvise.session(model, optimizer, device=device, policy=policy, budget=budget_bytes) as um:
            runs.append(Observed(um))
            yield runs[0].step
            runs[0].predict()

    train(FAST_NETWORKS[network], "adamw", "plain", opened, count=9)
    runs[0].check()


class Repeating(SteppedProgram):
    """A program without a step that is another."""

    @property
    def other_step(self) -> int | None:
        return None


class Disorderly(World):
    """Lets go of what is left of a step in another order in each, as hash tables of addresses do.

    So does torch: where a backward raises, what other nodes had been given goes in the order of the nodes' addresses.
    """

    def __init__(self) -> None:
        super().__init__()
        self._orders = Choose(5)

    def let_go(self, _choose: Choose) -> None:
        super().let_go(self._orders)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_program_is_what_is_predicted(seed: int) -> None:
    policy, budget_bytes = POLICIES[seed % 5], BUDGETS_MIB[seed // 5 % 4] << 20
    instructions = {name: INSTRUCTIONS[name] for name in OPS_ALONE}
    program = Repeating(seed, program_of(seed, LENGTH, instructions).body, STEPS)
    register_random_planner(seed)
    world = Disorderly()
    optimizer = torch.optim.SGD(world.weights, lr=0.01, momentum=0.9, foreach=bool(seed % 2))
    device = umadvise.EmulatedDevice("256MiB", clock="v100-16gb")
    with umadvise.session(world.weights, optimizer, device=device, budget=budget_bytes, policy=policy) as um:
        run_of = Observed(um)
        run(program, instructions, world, optimizer, run_of.step)
        run_of.predict()
    run_of.check()


def test_a_session_in_virtual_time_repeats() -> None:
    def run_once() -> list[SwapCounters]:
        torch.manual_seed(3)
        found: list[SwapCounters] = []

        @contextmanager
        def opened(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Callable[[], Around]]:
            device = umadvise.EmulatedDevice(capacity="512MiB", clock="v100-16gb")
            with umadvise.session(model, optimizer, device=device, policy="belady", budget="20MiB") as um:

                @contextmanager
                def step() -> Iterator[None]:
                    with um.step():
                        yield
                    found.append(um.swap_counters())

                yield step

        train(FAST_NETWORKS["tied"], "adamw", "plain", opened, count=5)
        umadvise.unpatch() if runtime.is_patched() else None
        return found

    once = run_once()
    assert once == run_once()
    assert once[-1].wait_copy_ns > 0 and once[-1].swap_ins > 0
