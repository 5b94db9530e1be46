"""Runs random programs under umadvise until they differ from vanilla PyTorch, and shrinks the first that does.

    python tools/fuzz.py [--minutes 20] [--seed N] [--length 60]

Each program runs twice with the same seeds: once plain, once in a session with a random policy, budget, delays of
copies, and under "random" with plans that are random too. Everything that both leave is compared bit for bit, and so
is what they raised. The exit status is 1 where something differs; the seed that is printed gives the case again.
"""

import functools
import random
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, replace

import fuzz_outside_ops  # noqa: F401 - its instructions too
import torch
from fuzz_instructions import INSTRUCTIONS
from fuzz_plan import random_plan
from fuzz_program import SteppedProgram, World, program_of, run
from harness import command_line

import umadvise
from umadvise import planners

CAPACITY = "256MiB"
BUDGETS_MIB = (40, 48, 64, 96)
"""The first holds any op of a program, and what is small."""
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
    """Under what a program runs."""

    policy: str
    budget_bytes: int
    delay_us: int

    @classmethod
    def of(cls, seed: int) -> "Setting":
        """The random one of a seed."""
        choose = random.Random(~seed)
        return cls(choose.choice(POLICIES), choose.choice(BUDGETS_MIB) << 20, choose.choice((0, 0, 30, 200)))


Found = dict[str, torch.Tensor | list[str]]


def _results(world: World) -> Found:
    found: Found = {f"weight {index}": weight.detach().clone().cpu() for index, weight in enumerate(world.weights)}
    found.update({f"kept {index}": kept.detach().clone().cpu() for index, kept in enumerate(world.kept)})
    return {**found, "log": list(world.log)}


def run_in(program: SteppedProgram, setting: Setting | None) -> Found:
    """What a program gives in a session; None: in vanilla PyTorch."""
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
        return _results(world)


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


def trouble(program: SteppedProgram, setting: Setting) -> str | None:
    """How a program's two runs differ; None where they do not."""
    expected = run_in(program, None)
    register_random_planner(program.seed)
    try:
        wrong = differences(run_in(program, setting), expected)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return f"differs from vanilla in {', '.join(wrong)}" if wrong else None


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


def fuzz(seeds: range, seconds: float, length: int = LENGTH) -> tuple[int, str | None]:
    """How many programs ran, and what is wrong with the last one."""
    end, count = time.monotonic() + seconds, 0
    for seed in seeds:
        if time.monotonic() > end:
            break
        program, setting = program_of(seed, length, INSTRUCTIONS), Setting.of(seed)
        count += 1
        print(f"\rseed {seed} ", end="", file=sys.stderr, flush=True)  # what a crash leaves
        if (message := trouble(program, setting)) is not None:
            return count, f"seed {seed}, {setting}: {message}"
    return count, None


def main(words: list[str] | None = None) -> int:
    """Prints what it found."""
    parser = command_line(__doc__)
    parser.add_argument("--minutes", type=float, default=20, help="how long new programs begin (default 20)")
    parser.add_argument("--seed", type=int, default=0, help="of the first program (default 0)")
    parser.add_argument("--length", type=int, default=LENGTH, help="instructions in a step")
    given = parser.parse_args(words)
    torch.set_num_threads(2)
    count, message = fuzz(range(given.seed, given.seed + 10_000_000), 60 * given.minutes, given.length)
    if message is None:
        print(f"{count} programs, no difference")
        return 0
    seed = given.seed + count - 1
    program, setting = program_of(seed, given.length, INSTRUCTIONS), Setting.of(seed)
    print(message, file=sys.stderr)
    smallest = shrink(program, lambda shorter: trouble(shorter, setting) is not None)
    print(f"the smallest part that fails: {trouble(smallest, setting)}", *smallest.body, sep="\n  ")
    return 1


if __name__ == "__main__":
    sys.exit(main())
