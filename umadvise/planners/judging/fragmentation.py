"""How large a budget a device's memory allows: what allocators take of the memory for a plan, and what of that is live.

A step is planned for budgets from large to small, and each plan is executed with each model of allocation. Hayakawa and
Narihira 2020 show the same in figure 3: the largest budget with which their scheduler runs, and what it then takes.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from umadvise import planners
from umadvise._version import __version__
from umadvise.errors import BudgetError, NoRoomError, UsageError
from umadvise.planners.judging.score import pages
from umadvise.records.counters import Count, Record
from umadvise.records.device import DeviceProfile
from umadvise.records.plan import Option, Plan
from umadvise.records.trace import Trace
from umadvise.simulator.swap import CHUNK_BYTES, WITHOUT_END, AllocatorModel, simulate_swap

SCHEMA = "umadvise.fragmentation/1"
STEPS_OF_MEMORY = 32
"""Number of budgets that are tried, at equal distances up to the whole memory: for 16 GiB multiples of 512 MiB."""


class Taken(Record, frozen=True):
    """What an allocator takes of the device for one plan.

    Attributes:
        budget_bytes: budget that the plan was made for.
        allocator: name of the allocator's model, one of `umadvise.simulator.swap.ALLOCATOR_MODELS`.
        fits: whether the step runs in the memory; else the numbers are those of a device that has more.
        peak_live_bytes: most bytes of storages on the device at once.
        peak_reserved_bytes: most bytes that the allocator takes.
        fragmentation_bytes: difference of the two peaks: `peak_reserved_bytes` less `peak_live_bytes`.
    """

    budget_bytes: Count
    allocator: str
    fits: bool
    peak_live_bytes: Count
    peak_reserved_bytes: Count
    fragmentation_bytes: Count


class FragmentedStep(Record, frozen=True):
    """What plans for one step take of the device's memory, in all budgets.

    Attributes:
        name: name of the step, as the caller gave it.
        peak_bytes: most bytes of the step that live at once in unlimited memory.
        rows: results by budget from the largest down, and for each by allocator; budgets without a plan have none.
        without_plan: why the largest budget that has no plan has none; None where all have one.
    """

    name: str
    peak_bytes: Count
    rows: tuple[Taken, ...]
    without_plan: str | None

    def fitting(self, allocator: str) -> list[Taken]:
        """Rows of the plans that run with an allocator, from the largest budget down."""
        return [row for row in self.rows if row.allocator == allocator and row.fits]


class Fragmentation(Record, frozen=True, tag_field="schema", tag=SCHEMA):
    """How large a budget a device's memory allows for some steps, with one planner.

    Attributes:
        device: name of the device.
        memory_bytes: device memory that an allocator may take.
        chunk_bytes: size of a physical chunk.
        planner: name of the planner, and its options as NAME=VALUE.
        allocators: names of the allocators' models, as the caller ordered them.
        umadvise_version: version of this package that computed the numbers.
        steps: results of each step, as the caller ordered them.
    """

    device: str
    memory_bytes: Count
    chunk_bytes: Count
    planner: str
    allocators: tuple[str, ...]
    umadvise_version: str
    steps: tuple[FragmentedStep, ...]


def fragmentation(
    traces: Mapping[str, Trace],
    device: DeviceProfile,
    budgets: Sequence[int],
    *,
    memory_bytes: int,
    planner: str = "window",
    options: Mapping[str, Option] | None = None,
    allocators: Sequence[AllocatorModel] = ("best_fit", "va_chunks", "caching"),
    chunk_bytes: int = CHUNK_BYTES,
    progress: planners.Progress = lambda _done, _all: None,
) -> Fragmentation:
    """Plans and executes steps in several budgets.

    Args:
        traces: the steps by name, with the durations of the device.
        device: profile of the device whose link makes the copies.
        budgets: budgets that plans are made for, in bytes.
        memory_bytes: device memory that an allocator may take.
        planner: name of a planner that swaps, one of `planners.PLANNERS`.
        options: the planner's own options, by name; None for none.
        allocators: models of `umadvise.simulator.swap`.
        chunk_bytes: size of a physical chunk for the allocator "va_chunks": a multiple of 512.
        progress: callback that gets the number of plans that are done, and the number of all of them.

    Raises:
        PolicyError: no such planner.
        UsageError: an option is wrong, or the planner plans for unified memory, where the driver allocates.
    """
    given = dict(options or {})
    ordered = sorted(set(budgets), reverse=True)
    steps = []
    for done, (name, trace) in enumerate(traces.items()):
        rows: list[Taken] = []
        without_plan = None
        for number, budget_bytes in enumerate(ordered):
            progress(done * len(ordered) + number, len(traces) * len(ordered))
            try:
                plan = planners.run(planner, trace, device, budget_bytes, **given)
            except BudgetError as error:
                without_plan = without_plan or str(error)
                continue
            if pages(plan):
                raise UsageError(f"planner {planner} plans for unified memory: expected one that swaps, such as window")
            rows += (_taken(trace, device, plan, each, memory_bytes, chunk_bytes) for each in allocators)
        steps.append(
            FragmentedStep(name=name, peak_bytes=trace.peak_bytes, rows=tuple(rows), without_plan=without_plan)
        )
    progress(len(traces) * len(ordered), len(traces) * len(ordered))
    return Fragmentation(
        device=device.name,
        memory_bytes=memory_bytes,
        chunk_bytes=chunk_bytes,
        planner=" ".join([planner, *(f"{name}={value}" for name, value in given.items())]),
        allocators=tuple(allocators),
        umadvise_version=__version__,
        steps=tuple(steps),
    )


def _taken(
    trace: Trace, device: DeviceProfile, plan: Plan, allocator: AllocatorModel, memory_bytes: int, chunk_bytes: int
) -> Taken:
    run = partial(simulate_swap, trace, device, plan, allocator=allocator, chunk_bytes=chunk_bytes, spans=False)
    try:
        fits, result = True, run(budget_bytes=memory_bytes).result
    except NoRoomError:
        fits, result = False, run(budget_bytes=WITHOUT_END).result
    return Taken(
        budget_bytes=plan.budget_bytes,
        allocator=allocator,
        fits=fits,
        peak_live_bytes=result.peak_live_bytes,
        peak_reserved_bytes=result.peak_reserved_bytes,
        fragmentation_bytes=result.peak_reserved_bytes - result.peak_live_bytes,
    )
