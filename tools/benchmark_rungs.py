"""How far `policy="auto"` is from the best rung, in the emulated device's virtual time.

    python tools/benchmark_rungs.py [--networks NAME,...] [--parts 75,50,33] [--clocks v100-16gb,h100-80gb]
                                    [--steps 24] [--jobs 1] [--json FILE]

Ten small networks, each on three budgets, parts of the bytes that its step asks for, and by two links. Each rung
trains alone, and so does `auto`. A row compares the second half of the steps of `auto` (their median) with that of the
best rung, and its first five steps with those of `advise`; whatever faults, copies and waits take is counted, and so
are switches. Steps in chunks are not all alike, as each begins with what the last one has left: the row also says how
far that rung's own steps lie around their median. A rung that is far behind after nine steps runs no further.
Losses must be those of plain PyTorch, to the bit. Exit codes: 0 all rows keep the goals, 1 one does not, 3 losses
differ.
"""

import statistics
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context

import msgspec
import torch
from changing_programs import Changing, mixture_of_experts, packed_sequences
from harness import add_results, command_line, write_results
from networks import NETWORKS as FACTORIES

import umadvise
from umadvise.errors import BudgetError
from umadvise.records.units import format_bytes
from umadvise.torch_seam import runtime

RUNGS = ("advise", "window", "swap")
FIRST = 5
"""Steps at the beginning that are compared with those of `advise`."""
_TRIAL_STEPS = 9
"""Of each rung: those that are recorded, planned and laid out, and as many that follow."""
_FAR = 1.25
"""A rung that takes so many times as long as another one by then is not the best."""
_ROOMY = 4 << 30
STEADY_GOAL, FIRST_GOAL = 1.05, 1.15


def _factory(name: str, batch: int, **options: object) -> Callable[[], Changing]:
    def build() -> Changing:
        workload = FACTORIES[name](batch, **options)
        return Changing(list(workload.modules), list(workload.optimizers), lambda _: workload.step())  # type: ignore[arg-type, return-value]

    return build


NETWORKS: dict[str, Callable[[], Changing]] = {
    "bert": _factory("bert_large", 4, length=64, layers=2, hidden=512, heads=8, vocabulary=4000, attention="sdpa"),
    "gpt2": _factory("gpt2", 2, length=128, layers=2, width=512, heads=8, vocabulary=4000),
    "vit": _factory("vit_b16", 8, image=96, width=384, heads=6, layers=3, classes=100),
    "resnet50": _factory("resnet50", 8, image=64, width=32, classes=100, layers=(2, 2, 2, 2)),
    "densenet121": _factory("densenet121", 8, image=64, classes=100, blocks=(3, 6, 8, 6)),
    "unet": _factory("unet", 1, image=188, width=32),
    "deeplab": _factory("deeplabv3plus", 2, image=65, middle_blocks=2),
    "alexnet": _factory("alexnet", 16, width=32, classes=100),
    "lstm": packed_sequences,
    "experts": mixture_of_experts,
}
"""Each step is the same."""


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """A training on one policy.

    Attributes:
        steps_ns: virtual nanoseconds of each step, with what was done before it.
        losses: loss of each step.
        rungs: rung that each step ran on.
        refused: words of the refusal where an op found no room.
    """

    steps_ns: list[int]
    losses: list[float]
    rungs: list[str]
    refused: str | None = None

    @property
    def steady_steps_ns(self) -> list[int]:
        """The second half of the steps."""
        return self.steps_ns[-(len(self.steps_ns) // 2) :]

    @property
    def steady_ns(self) -> float:
        """The median of those."""
        return statistics.median(self.steady_steps_ns)

    @property
    def path(self) -> str:
        """The rungs in order."""
        changes = [rung for number, rung in enumerate(self.rungs) if number == 0 or self.rungs[number - 1] != rung]
        return " > ".join(changes)


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One network on one budget and link: the run on each rung, and on `auto`."""

    network: str
    percent: int
    clock: str
    budget_bytes: int
    rungs: dict[str, Trained]
    auto: Trained
    bits: bool

    @property
    def best(self) -> Trained:
        """The run on the best rung."""
        return min((run for run in self.rungs.values() if run.refused is None), key=lambda run: run.steady_ns)

    @property
    def steady(self) -> float:
        """A steady step of `auto`, as a multiple of that on the best rung."""
        return self.auto.steady_ns / self.best.steady_ns

    @property
    def first(self) -> float:
        """The first steps of `auto`, as a multiple of those on `advise`."""
        return sum(self.auto.steps_ns[:FIRST]) / sum(self.rungs["advise"].steps_ns[:FIRST])

    @property
    def keeps_goals(self) -> bool:
        """Whether it does."""
        return self.auto.refused is None and self.steady <= STEADY_GOAL and self.first <= FIRST_GOAL


def train(network: str, policy: str, budget_bytes: int, clock: str, count: int) -> tuple[Trained, int]:
    """Trains so many steps; also returns the most bytes that tensors asked for in the last."""
    torch.manual_seed(1)
    program = NETWORKS[network]()
    device = umadvise.EmulatedDevice(budget_bytes, clock=clock)
    losses, rungs, ends_ns, refused = [], [], [], None
    torch.manual_seed(2)
    with umadvise.session(program.modules, program.optimizers, device=device, policy=policy) as um:
        native = runtime.current().device
        begun_ns = native.now_ns()
        try:
            for _ in range(count):
                with um.step():
                    rungs.append(um.rung)
                    losses.append(float(program.step(0)))
                ends_ns.append(native.now_ns())
        except (torch.OutOfMemoryError, BudgetError) as error:
            refused = str(error)
        needed_bytes = um.memory_stats().requested_peak_bytes
    times_ns = [end - begin for begin, end in pairwise((begun_ns, *ends_ns))]
    return Trained(steps_ns=times_ns, losses=losses, rungs=rungs, refused=refused), needed_bytes


def plain(network: str, count: int) -> list[float]:
    """The losses of plain PyTorch."""
    torch.manual_seed(1)
    program = NETWORKS[network]()
    torch.manual_seed(2)
    return [float(program.step(0)) for _ in range(count)]


def measure(network: str, percent: int, clock: str, count: int) -> Comparison:
    """One row."""
    torch.set_num_threads(1)
    _, needed_bytes = train(network, "advise", _ROOMY, clock, 2)
    budget_bytes = max(-(-needed_bytes * percent // 100 // (2 << 20)) * (2 << 20), 16 << 20)
    expected = plain(network, count)
    rungs = {rung: train(network, rung, budget_bytes, clock, _TRIAL_STEPS)[0] for rung in RUNGS}
    fast_ns = _FAR * min(run.steady_ns for run in rungs.values() if run.refused is None)
    for rung, trial in rungs.items():
        if trial.refused is None and trial.steady_ns <= fast_ns:
            rungs[rung], _ = train(network, rung, budget_bytes, clock, count)
    auto, _ = train(network, "auto", budget_bytes, clock, count)
    runs = (auto, *rungs.values())
    bits = all(run.losses == expected[: len(run.losses)] for run in runs)
    return Comparison(
        network=network, percent=percent, clock=clock, budget_bytes=budget_bytes, rungs=rungs, auto=auto, bits=bits
    )


def text(row: Comparison) -> str:
    """One line."""
    times = "  ".join(
        f"{rung} {'refused' if run.refused is not None else f'{run.steady_ns / 1e6:.2f}'}"
        for rung, run in row.rungs.items()
    )
    start = f"{row.network:12} {row.percent:3}% {row.clock:10} {format_bytes(row.budget_bytes):>10}  {times}"
    if row.auto.refused is not None:
        return f"{start}  auto refused: {row.auto.refused}  !"
    mark = ("" if row.keeps_goals else "  !") + ("" if row.bits else "  OTHER LOSSES")
    own = f"auto {row.auto.steady_ns / 1e6:.2f} ms, x{row.steady:.3f}, first x{row.first:.2f} by {row.auto.path}"
    least, most = (bound(row.best.steady_steps_ns) / row.best.steady_ns for bound in (min, max))
    return f"{start}  {own}; steps of {row.best.rungs[-1]} x{least:.2f} to x{most:.2f}{mark}"


def rows(tasks: list[tuple[str, int, str, int]], jobs: int) -> Iterable[Comparison]:
    """All rows, in order."""
    if jobs == 1:
        yield from (measure(*task) for task in tasks)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(_measured, tasks)


def _measured(task: tuple[str, int, str, int]) -> Comparison:
    return measure(*task)


def main(words: list[str] | None = None) -> int:
    """Prints a line for each row; see the exit codes above."""
    parser = command_line(__doc__)
    parser.add_argument("--networks", default=",".join(NETWORKS), help="names, with commas (default: all)")
    parser.add_argument("--parts", default="75,50,33", help="percent of what a step asks for (default 75,50,33)")
    parser.add_argument("--clocks", default="v100-16gb,h100-80gb", help="devices whose times count")
    parser.add_argument("--steps", type=int, default=24, help="steps of `auto`, and of a good rung (default 24)")
    parser.add_argument("--jobs", type=int, default=1, help="rows at a time (default 1)")
    add_results(parser)
    given = parser.parse_args(words)
    tasks = [
        (network, int(percent), clock, given.steps)
        for network in given.networks.split(",")
        for clock in given.clocks.split(",")
        for percent in given.parts.split(",")
    ]
    found = []
    for row in rows(tasks, given.jobs):
        found.append(row)
        print(text(row), flush=True)
    kept = sum(row.keeps_goals for row in found)
    print(f"{kept} of {len(found)} rows keep the goals: steady x{STEADY_GOAL}, first {FIRST} steps x{FIRST_GOAL}")
    ratios = {f"{row.network} {row.percent}% {row.clock}": row.steady for row in found}
    write_results(given, "umadvise-rungs/1", ratios, rows=[msgspec.to_builtins(row) for row in found])
    if not all(row.bits for row in found):
        return 3
    return 0 if kept == len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
