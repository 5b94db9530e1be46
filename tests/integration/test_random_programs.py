"""Random programs over tensors, numpy arrays and advice: a device that is too small gives the values of any other.

Those of tools/fuzz.py run here in their short form, as steps of sessions under random policies and plans.
"""

import os
import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from budget_watch import BudgetWatch
from fuzz import POLICIES, Setting, differences, shrink, trouble
from fuzz_halving import trouble as trouble_of_halving
from fuzz_instructions import INSTRUCTIONS
from fuzz_plan import random_plan
from fuzz_program import SteppedProgram, program_of
from small_networks import same_bits
from traces import layers

import umadvise
from umadvise import _native
from umadvise.records.advice import PAPER_WORDS

MIB = 1 << 20
PROGRAMS = 400 if os.environ.get("UMADVISE_FULL") else 6
LENGTH = 60
SIDE = 700  # of a square matrix of 1.9 MiB: most share a page with a neighbour


class Program:
    """One random program. Choices come from `chooser` alone, so that both runs take the same."""

    def __init__(self, seed: int, *, emulated: bool) -> None:
        self.chooser = random.Random(seed)
        self.emulated = emulated
        self.tensors = [torch.linspace(-1, 1, SIDE * SIDE).reshape(SIDE, SIDE) for _ in range(3)]
        self.arrays: list[np.ndarray] = []

    def pick(self) -> torch.Tensor:
        return self.chooser.choice(self.tensors)

    def place(self, tensor: torch.Tensor, word: str, *, copy: bool = False) -> torch.Tensor:
        return tensor.to(f"cuda:{word}", copy=copy) if self.emulated else tensor.clone()

    def steps(self) -> list[Callable[[], None]]:
        return [
            self.make, self.make, self.write, self.write, self.drop, self.drop,
            self.read, self.advise, self.move, self.out_and_in, self.share, self.unshare, self.write_array, self.cut,
        ]  # fmt: skip

    def run(self) -> dict[str, torch.Tensor]:
        for _ in range(LENGTH):
            self.chooser.choice(self.steps())()
        found = {f"tensor {index}": tensor for index, tensor in enumerate(self.tensors)}
        found.update({f"array {index}": torch.from_numpy(array.copy()) for index, array in enumerate(self.arrays)})
        return found

    def make(self) -> None:
        one, other = self.pick(), self.pick()
        work = self.chooser.choice([torch.add, torch.mul, torch.maximum, lambda a, b: torch.cat([a, b])[: len(a)]])
        self.tensors.append(work(one, other).tanh())

    def write(self) -> None:
        target, source = self.pick(), self.pick()
        work = self.chooser.randrange(4)
        if work == 0:
            target.mul_(0.5).add_(1)
        elif work == 1:
            target.t()[3:50, ::7].copy_(source.t()[3:50, ::7].clone())
        elif work == 2:
            target.cumsum_(1).tanh_()
        else:
            target.index_fill_(0, torch.tensor([1, 5, SIDE - 1]), 0.25)

    def drop(self) -> None:
        if len(self.tensors) > 3:
            self.tensors.pop(self.chooser.randrange(len(self.tensors)))

    def read(self) -> None:
        self.tensors.append(torch.full((SIDE, SIDE), self.pick().diagonal().sum().tanh().item()))

    def advise(self) -> None:
        word = self.chooser.choice(list(PAPER_WORDS))
        if self.emulated:
            torch.cuda.set_unified(word)

    def move(self) -> None:
        self.tensors.append(self.place(self.pick(), self.chooser.choice(list(PAPER_WORDS)), copy=True))

    def out_and_in(self) -> None:
        outside = self.pick().cpu() if self.emulated else self.pick().clone()
        outside.mul_(-0.5)
        self.tensors.append(self.place(outside, "preferredlocation"))

    def share(self) -> None:
        if len(self.arrays) < 2:  # each pins its pages
            self.arrays.append(self.pick().numpy())

    def unshare(self) -> None:
        if self.arrays:
            self.arrays.pop(0)

    def write_array(self) -> None:
        if self.arrays:
            np.tanh(self.arrays[-1], out=self.arrays[-1])
            self.arrays[-1][5] = 0.125

    def cut(self) -> None:
        if len(self.tensors) > 8:
            del self.tensors[:4]


@pytest.fixture(autouse=True, scope="module")
def two_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("counting", ["ordered", "raw"])
def test_random_programs(counting: str, patched: Callable[..., _native.Device]) -> None:
    for seed in range(PROGRAMS):
        expected = Program(seed, emulated=False).run()
        budget = "12MiB" if seed % 2 else None
        device = patched("16MiB", budget=budget, counting=counting, delays=20 * (seed % 3), delay_seed=seed)
        program = Program(seed, emulated=True)
        found = program.run()
        wrong = [name for name, tensor in found.items() if not same_bits(tensor.cpu(), expected[name])]
        assert (wrong, found.keys()) == ([], expected.keys()), f"seed {seed}"
        assert device.counters().bytes_d2h.eviction + device.counters().bytes_d2h.user > 0
        del program, found
        assert device.allocations() == [], f"seed {seed}"
        umadvise.unpatch()


# ---- programs in steps, under sessions: tools/fuzz.py ----------------------------------------------------------------


@pytest.mark.parametrize("seed", range(300 if os.environ.get("UMADVISE_FULL") else 12))
def test_a_random_session(seed: int) -> None:
    every = [*dict.fromkeys(POLICIES)]
    budget_bytes = (40, 48, 64, 96)[seed // 2 % 4] << 20  # without a session that measures the need: devices are few
    setting = Setting(every[seed % len(every)], (0, 30, 200)[seed // len(every) % 3], budget_bytes)
    assert trouble(program_of(seed, LENGTH, INSTRUCTIONS), setting) is None


def test_a_refusal_where_chunks_share_the_budget_names_more_than_all_of_it(budget_watch: BudgetWatch) -> None:
    """`auto` divides 10 MiB between unified memory and chunks; an op whose operands stay in chunks needs 8 MiB.

    The third step goes on in unified memory while its chunks hold arrays, and takes 16 MiB: docs/limits.md.
    """
    assert trouble(program_of(7002, LENGTH, INSTRUCTIONS), Setting("auto", 0, 10 << 20)) is None
    assert all("(advise, after step 3)" in each for each in budget_watch.breaches)
    budget_watch.breaches.clear()


@pytest.mark.parametrize("seed", range(60 if os.environ.get("UMADVISE_FULL") else 2))
def test_a_batch_that_is_halved_until_it_fits(seed: int) -> None:
    assert trouble_of_halving(seed) is None


def test_a_failing_program_is_shrunk() -> None:
    program = program_of(3, 40, INSTRUCTIONS)
    needed = {program.body[7], program.body[30]}

    def is_wrong(shorter: SteppedProgram) -> bool:
        return needed <= set(shorter.body)

    assert shrink(program, is_wrong).body == (program.body[7], program.body[30])


def test_random_plans_can_be_executed() -> None:
    trace = layers(6)
    for seed in range(20):
        plan = random_plan(trace, None, 0, seed=seed, share=1.0)  # it checks itself against the trace
        assert plan.trace_digest == trace.structure_digest
    assert len(plan) > 10


def test_differences_are_seen() -> None:
    zero = torch.zeros(3)
    assert differences({"x": zero, "log": ["a"]}, {"x": zero.clone(), "log": ["a"]}) == []
    assert differences({"x": -zero}, {"x": zero}) == ["x"]
    assert differences({"log": ["a"]}, {"log": ["a", "b"]}) == ["log 1: b != its end"]
    assert differences({"log": ["a", "c"]}, {"log": ["a", "b"]}) == ["log 1: b != c"]
