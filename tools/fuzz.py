"""Runs random programs under umadvise until they differ from vanilla PyTorch, and shrinks the first that does.

    python tools/fuzz.py [--minutes 20] [--seed N] [--length 60]

Each program runs twice with the same seeds: once plain, once in a session with a random policy, delays of copies, and
under "random" with plans that are random too. The budget is 30 % of the memory that the program was measured to need,
or, where a step is refused in that, the budget that the refusal names, which has to run. Where an op outside of steps
is refused, each next refusal has to name more. Everything that both runs leave is compared bit for bit, and so is what
they raised. Every eighth seed is a training that halves its batch until it fits (fuzz_halving.py). The exit status is 1
where something differs; the seed that is printed gives the case again.
"""

import functools
import gc
import random
import re
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, replace

import fuzz_halving
import fuzz_outside_ops  # noqa: F401 - its instructions too
import torch
from fuzz_instructions import INSTRUCTIONS
from fuzz_plan import random_plan
from fuzz_program import SteppedProgram, World, program_of, run
from harness import command_line

import umadvise
from umadvise import planners
from umadvise.errors import BudgetError

CAPACITY = "256MiB"
SHARE = 0.3
"""Budget, in parts of what a program needs."""
LEAST_BYTES = 4 << 20
"""The smallest budget that a session accepts, two chunks."""
_NAMED = re.compile(r"a budget of .+? \((\d+) bytes\) does")
"""The budget that a refusal names."""
_FOR_AN_OP = "later ops may need more"
"""A refusal says so if it knows no whole step but one op, as outside of steps: the next one has to name more."""
HALVING = 8
"""Every so many seeds are trainings that halve their batch."""
POLICIES = ("swap:random", "swap:random", "swap:lru", "swap", "window", "auto", "advise")
"""Random plans more often than others."""
LENGTH = 60


def register_random_planner(seed: int) -> None:
    """Lets sessions plan at random: the planner "random"."""
    module = types.ModuleType("umadvise.planners.random")
    module.random_plan = functools.partial(random_plan, seed=seed)  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    planners.PLANNERS["random"] = "random:random_plan"


@dataclass(frozen=True)
class Setting:
    """Under what a program runs: a budget in parts of its need, or in bytes."""

    policy: str
    delay_us: int
    budget_bytes: int | None = None

    @classmethod
    def of(cls, seed: int) -> "Setting":
        """The random one of a seed."""
        choose = random.Random(~seed)
        return cls(choose.choice(POLICIES), choose.choice((0, 0, 30, 200)))


@dataclass
class RunCounts:
    """How programs ran: all of them, those in a budget that a refusal named, and those whose tensors moved."""

    programs: int = 0
    refused: int = 0
    refused_again: int = 0
    moved: int = 0

    def __str__(self) -> str:
        refused = f"{self.refused} refused in {SHARE:.0%}, {self.refused_again} of them again in the first named budget"
        return f"{self.programs} programs: {refused}, {self.moved} moved tensors or pages"


Found = dict[str, torch.Tensor | list[str]]


def _results(world: World) -> Found:
    found: Found = {f"weight {index}": weight.detach().clone().cpu() for index, weight in enumerate(world.weights)}
    found.update({f"kept {index}": kept.detach().clone().cpu() for index, kept in enumerate(world.kept)})
    return {**found, "log": list(world.log)}


def run_in(program: SteppedProgram, setting: Setting | None, tally: RunCounts | None = None) -> Found:
    """What a program gives in a session; None: in plain PyTorch.

    Args:
        program: the random program to run.
        setting: the session's policy, delays and budget.
        tally: counts to which a run that moved something is added.
    """
    world = World()
    optimizer = torch.optim.SGD(world.weights, lr=0.01, momentum=0.9, foreach=bool(program.seed % 2))
    if setting is None:
        run(program, INSTRUCTIONS, world, optimizer)
        return _results(world)
    device = umadvise.EmulatedDevice(CAPACITY, delays=setting.delay_us, delay_seed=program.seed)
    with umadvise.session(
        world.weights, optimizer, device=device, budget=setting.budget_bytes, policy=setting.policy
    ) as um:
        run(program, INSTRUCTIONS, world, optimizer, um.step)
        if tally is not None:
            paged = um.counters().bytes_d2h
            paged_bytes = 0 if paged is None else (paged.eviction or 0) + (paged.user or 0)
            tally.moved += um.swap_counters().swap_outs + paged_bytes > 0
        return _results(world)


def run_in_enough(program: SteppedProgram, setting: Setting, tally: RunCounts) -> tuple[Found, Setting]:
    """What a program gives in its budget or in one that a refusal names, with the setting that it ran in.

    A refusal that knows a whole step names a budget that runs. One that knows one op alone may be followed by others,
    each of which names more.

    Raises:
        torch.OutOfMemoryError, BudgetError: a refusal does not keep to that.
    """
    last, tries = False, 0
    while True:
        try:
            return run_in(program, setting, tally), setting
        except (torch.OutOfMemoryError, BudgetError) as refusal:
            enough_bytes = named_bytes(refusal)
            if last or enough_bytes is None or enough_bytes <= (setting.budget_bytes or 0):
                raise
            last, tries = _FOR_AN_OP not in str(refusal), tries + 1
            tally.refused += tries == 1
            tally.refused_again += tries == 2
            setting = replace(setting, budget_bytes=enough_bytes)


def need_bytes(program: SteppedProgram) -> int:
    """What a program asks of the device at most, with all of it."""
    world = World()
    optimizer = torch.optim.SGD(world.weights, lr=0.01, momentum=0.9, foreach=bool(program.seed % 2))
    with umadvise.session(world.weights, optimizer, device=umadvise.EmulatedDevice("1GiB"), policy="resident") as um:
        run(program, INSTRUCTIONS, world, optimizer, um.step)
        return um.memory_stats().requested_peak_bytes


def named_bytes(refusal: BaseException) -> int | None:
    """The budget that a refusal names; None where it names none."""
    found = _NAMED.search(str(refusal))
    return None if found is None else int(found[1])


def differences(found: Found, expected: Found) -> list[str]:
    """The names of what differs, and the first line of the log that does."""
    wrong = []
    for name, value in expected.items():
        other = found[name]
        if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor):
            if not torch.equal(value.view(torch.uint8), other.view(torch.uint8)):
                wrong.append(name)
        elif value != other:
            pairs = zip([*value, "its end"], [*other, "its end"], strict=False)
            wrong.append(next(f"{name} {line}: {a} != {b}" for line, (a, b) in enumerate(pairs) if str(a) != str(b)))
    return wrong


def trouble(program: SteppedProgram, setting: Setting, tally: RunCounts | None = None) -> str | None:
    """How a program's two runs differ; None where they do not."""
    gc.collect()  # what an error's frames keep alive keeps its device open, of which a process may have sixteen
    expected = run_in(program, None)
    register_random_planner(program.seed)
    if setting.budget_bytes is None:
        setting = replace(setting, budget_bytes=max(int(need_bytes(program) * SHARE) >> 21 << 21, LEAST_BYTES))
    tally = tally or RunCounts()
    tally.programs += 1
    try:
        found, setting = run_in_enough(program, setting, tally)
        wrong = differences(found, expected)
    except Exception as error:
        return f"{setting}: {type(error).__name__}: {error}"
    return f"{setting}: differs from plain PyTorch in {', '.join(wrong)}" if wrong else None


def shrink(program: SteppedProgram, is_wrong: Callable[[SteppedProgram], bool]) -> SteppedProgram:
    """A part of a program that is wrong too: first without its end, then without whatever can be left out."""
    body = program.body
    size = len(body) // 2
    while size > 0:
        for start in range(len(body) - size, -1, -size):
            shorter = replace(program, body=body[:start] + body[start + size :])
            if is_wrong(shorter):
                body = shorter.body
        size //= 2
    return replace(program, body=body)


def trouble_of(seed: int, length: int = LENGTH, tally: RunCounts | None = None) -> str | None:
    """What is wrong with the program of a seed."""
    if seed % HALVING == HALVING - 1:
        return fuzz_halving.trouble(seed)
    return trouble(program_of(seed, length, INSTRUCTIONS), Setting.of(seed), tally)


def fuzz(seeds: range, seconds: float, length: int = LENGTH) -> tuple[int, str | None, RunCounts]:
    """How many programs ran, what is wrong with the last one, and how they ran."""
    end, count, tally = time.monotonic() + seconds, 0, RunCounts()
    for seed in seeds:
        if time.monotonic() > end:
            break
        count += 1
        print(f"\rseed {seed} ", end="", file=sys.stderr, flush=True)  # what a crash leaves
        if (message := trouble_of(seed, length, tally)) is not None:
            return count, f"seed {seed}: {message}", tally
    return count, None, tally


def main(words: list[str] | None = None) -> int:
    """Prints what it found."""
    parser = command_line(__doc__)
    parser.add_argument("--minutes", type=float, default=20, help="how long new programs begin (default 20)")
    parser.add_argument("--seed", type=int, default=0, help="of the first program (default 0)")
    parser.add_argument("--length", type=int, default=LENGTH, help="instructions in a step")
    given = parser.parse_args(words)
    torch.set_num_threads(2)
    count, message, tally = fuzz(range(given.seed, given.seed + 10_000_000), 60 * given.minutes, given.length)
    print(tally)
    if message is None:
        print(f"{count} seeds, no difference")
        return 0
    print(message, file=sys.stderr)
    seed = given.seed + count - 1
    if seed % HALVING == HALVING - 1:
        return 1
    program, setting = program_of(seed, given.length, INSTRUCTIONS), Setting.of(seed)
    smallest = shrink(program, lambda shorter: trouble(shorter, setting) is not None)
    print(f"the smallest part that fails: {trouble(smallest, setting)}", *smallest.body, sep="\n  ")
    return 1


if __name__ == "__main__":
    sys.exit(main())
