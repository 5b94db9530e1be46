"""How well steps that change are driven, in the emulated device's virtual time.

    python tools/benchmark_changing.py [--programs NAME,...] [--of largest,median] [--steps 16] [--clock v100-16gb]
                                       [--policy swap] [--json FILE]

Each program of tools/changing_programs.py runs on half of the chunks that its largest step needs, and on half of what
its median step does. From the fourth step on it says which part of the swap-ins was ordered, by a plan or a prediction,
at least one op before the use, and was used, and how much longer a step took than the same step takes when it comes
again and again, in a session of its own, driven by a plan that is made for it: the median and the worst. "alone" is the
part that was ordered ahead in these sessions: where memory is too full to bring something sooner, no plan can. Where
a step took more than a tenth longer, "foreseen" is how much longer it takes when it and all that come after it are
planned as one step, so that nothing is left to guess: what the steps before it left on the device is in the way of any
plan. Losses must be those of plain PyTorch, to the bit.
"""

import math
import statistics
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from unittest import mock

import msgspec
import torch
from changing_programs import NEVER_REPEAT, PROGRAMS, STEPS, Changing
from harness import add_results, command_line, write_results

import umadvise
from umadvise import _native
from umadvise.errors import BudgetError
from umadvise.records.counters import SwapCounters, Swaps
from umadvise.records.units import format_bytes

FIRST = 3
"""Index of the first step that is looked at."""
_REFERENCES = 3
"""Steps of a program, evenly spread, that are planned for themselves."""
_REFERENCE_STEPS = 12
_ROOMY = 4 << 30
_PLANNED, _PLANNED_OF_NEW_SIZES = 0.95, 0.8
"""Parts of the swap-ins that are to be ordered ahead; the second where sizes never repeat."""
_LONGER = 1.1
"""How much longer a step may take than when it is planned for itself."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step in virtual time.

    Attributes:
        loss: what it returned, as a number; NaN where it was foreseen.
        ops_ns: nanoseconds of its ops.
        swaps: what was swapped in it.
        used_peak_bytes: chunks that it used.
        unplanned: swap-ins on demand, those ordered for the op that had begun, and those that came for nothing.
    """

    loss: float
    ops_ns: int
    swaps: Swaps
    used_peak_bytes: int
    unplanned: int = 0

    @property
    def ns(self) -> int:
        """How long it took."""
        return self.ops_ns + self.swaps.wait_copy_ns + self.swaps.wait_room_ns


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One program on one budget.

    Attributes:
        program: name of the program.
        of: the "largest" step or the "median" one: the budget is half of what it needs.
        budget_bytes: bytes of the budget.
        steps: steps in virtual time.
        references_ns: nanoseconds of some steps that were planned for themselves, by their number.
        planned: part of the swap-ins that were ordered ahead.
        references_planned: part of the swap-ins that was ordered ahead in the steps that were planned for themselves.
        ratios: times of those steps in the program, as multiples of these.
        foreseen: the same of steps that took too long, when all that comes from them on is known, by their number.
        bits: whether its losses are those of plain PyTorch.
        refused: words of the refusal where no step could run.
    """

    program: str
    of: str
    budget_bytes: int
    steps: list[Step] = []
    references_ns: dict[int, int] = {}
    planned: float = 0.0
    references_planned: float = 0.0
    ratios: list[float] = []
    foreseen: dict[int, float] = {}
    bits: bool = False
    refused: str | None = None


@contextmanager
def _op_times() -> Iterator[list[int]]:
    """What ops are told to take, summed in its one element."""
    told, tell = [0], _native.op_took

    def add(duration_ns: int) -> None:
        told[0] += duration_ns
        tell(duration_ns)

    with mock.patch.object(_native, "op_took", add):
        yield told


def run(
    build: Callable[[], Changing],
    budget_bytes: int,
    numbers: Sequence[int],
    *,
    policy: str = "swap",
    clock: str,
    foreseen: Sequence[int] = (),
) -> list[Step]:
    """Runs the steps of these numbers, each in its turn, and then those that are foreseen, planned ahead as one step.

    Raises:
        BudgetError: an op finds no room; or torch.OutOfMemoryError, at the end of the step.
    """
    torch.manual_seed(1)
    device = umadvise.EmulatedDevice(budget_bytes + (512 << 20), clock=clock)
    program, steps = build(), []
    with (
        _op_times() as told,
        umadvise.session(program.modules, program.optimizers, device=device, policy=policy, budget=budget_bytes) as um,
    ):
        before, before_ns = um.swap_counters(), told[0]

        def note(loss: torch.Tensor | None = None) -> None:
            nonlocal before, before_ns
            after = um.swap_counters()
            swaps = msgspec.convert(after, Swaps, from_attributes=True).minus(before)
            steps.append(
                Step(
                    loss=math.nan if loss is None else float(loss.double().sum()),
                    ops_ns=told[0] - before_ns,
                    swaps=swaps,
                    used_peak_bytes=after.used_peak_bytes,
                    unplanned=_unplanned(after) - _unplanned(before),
                )
            )
            before, before_ns = um.swap_counters(), told[0]

        for number in numbers:
            with um.step():
                loss = program.step(number)
            note(loss)
        if foreseen:
            um.plan_ahead(lambda: [program.step(number) for number in foreseen])
            with um.step():
                for number in foreseen:
                    program.step(number)
                    note()  # reading the loss would be an op that nobody planned
    return steps


def _unplanned(counters: SwapCounters) -> int:
    return counters.on_demand_swap_ins + counters.late_swap_ins + counters.unused_swap_ins


def plain(build: Callable[[], Changing], count: int) -> list[float]:
    """The losses of plain PyTorch."""
    torch.manual_seed(1)
    program = build()
    return [float(program.step(number).double().sum()) for number in range(count)]


def measure(name: str, of: str, budget_bytes: int, losses: list[float], *, policy: str, clock: str) -> Row:
    """One row; of as many steps as there are losses of plain PyTorch."""
    taken, count = partial(run, PROGRAMS[name], budget_bytes, policy=policy, clock=clock), len(losses)
    try:
        steps = taken(range(count))
    except (BudgetError, torch.OutOfMemoryError) as error:
        return Row(program=name, of=of, budget_bytes=budget_bytes, refused=str(error))
    spread = [FIRST + (count - 1 - FIRST) * index // (_REFERENCES - 1) for index in range(_REFERENCES)]
    references = {number: taken([number] * _REFERENCE_STEPS)[-1] for number in spread}
    ratios = {number: steps[number].ns / reference.ns for number, reference in references.items()}
    late = [number for number, ratio in ratios.items() if ratio > _LONGER]
    foreseen = {number: taken(range(number), foreseen=range(number, count))[number] for number in late}
    return Row(
        program=name,
        of=of,
        budget_bytes=budget_bytes,
        steps=steps,
        references_ns={number: step.ns for number, step in references.items()},
        planned=_planned(steps[FIRST:]),
        references_planned=_planned(references.values()),
        ratios=list(ratios.values()),
        foreseen={number: step.ns / references[number].ns for number, step in foreseen.items()},
        bits=[step.loss for step in steps] == losses,
    )


def _planned(steps: Collection[Step]) -> float:
    """The part of the swap-ins of these steps that was ordered ahead and was used."""
    arrived = sum(step.swaps.swap_ins for step in steps)
    return 1 - sum(step.unplanned for step in steps) / arrived if arrived else 1.0


def text(row: Row) -> str:
    """One line."""
    goal = _PLANNED_OF_NEW_SIZES if row.program in NEVER_REPEAT else _PLANNED
    start = f"{row.program:26} {row.of:8} {format_bytes(row.budget_bytes):>10}"
    if row.refused is not None:
        return f"{start}  refused: {row.refused}"
    mark = "" if row.planned >= goal and max(row.ratios) <= _LONGER and row.bits else "  !"
    foreseen = f", foreseen x{max(row.foreseen.values()):.2f}" if row.foreseen else ""
    return (
        f"{start}  planned {row.planned:6.1%}, alone {row.references_planned:6.1%}"
        f"  step x{statistics.median(row.ratios):.2f}, worst x{max(row.ratios):.2f}{foreseen}"
        f"  {'equal' if row.bits else 'OTHER LOSSES'}{mark}"
    )


def main(words: list[str] | None = None) -> int:
    """Prints what it measured."""
    parser = command_line(__doc__)
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="names, with commas (default: all)")
    parser.add_argument("--of", default="largest,median", help="whose need is halved (default: largest,median)")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"steps to run (default {STEPS})")
    parser.add_argument("--clock", default="v100-16gb", help="device whose times count (default v100-16gb)")
    parser.add_argument("--policy", default="swap", help="policy of the sessions (default swap)")
    add_results(parser)
    given = parser.parse_args(words)
    how = {"policy": given.policy, "clock": given.clock}
    rows = []
    for name in given.programs.split(","):
        losses = plain(PROGRAMS[name], given.steps)
        roomy = run(PROGRAMS[name], _ROOMY, range(given.steps), **how)
        needs = [step.used_peak_bytes for step in roomy]
        halves = {"largest": max(needs) // 2, "median": int(statistics.median(needs)) // 2}
        for of in given.of.split(","):
            rows.append(measure(name, of, halves[of], losses, **how))
            print(text(rows[-1]), flush=True)
    ratios = {f"{row.program} {row.of}": row.planned for row in rows}
    write_results(given, "umadvise-changing/1", ratios, rows=[msgspec.to_builtins(row) for row in rows])
    return int(any(not row.bits for row in rows))


if __name__ == "__main__":
    sys.exit(main())
