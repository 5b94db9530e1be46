"""How much of a device's memory a plan can be given: what an allocator takes of it, and what of that is live.

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
from umadvise.simulator.swap import CHUNK_BYTES, AllocatorModel, simulate_swap

SCHEMA = "umadvise.fragmentation/1"
STEPS_OF_MEMORY = 32
"""Budgets that are tried are multiples of this part of the memory: 512 MiB of 16 GiB."""
_WITHOUT_END = 1 << 61


class Taken(Record, frozen=True):
    """What a plan takes of the device.

    Attributes:
        budget_bytes: that it was made for.
        allocator: a model of `umadvise.simulator.swap`.
        fits: the step runs in the memory; else the numbers are those of a device that has more.
        peak_live_bytes: the most bytes of storages on the device at once.
        peak_reserved_bytes: the most that the allocator takes.
        fragmentation_bytes: by how much that peak is higher than the other.
    """

    budget_bytes: Count
    allocator: str
    fits: bool
    peak_live_bytes: Count
    peak_reserved_bytes: Count
    fragmentation_bytes: Count


class FragmentedStep(Record, frozen=True):
    """One step in all budgets.

    Attributes:
        name: of its trace.
        peak_bytes: that it takes in unlimited memory.
        rows: by budget from the largest down, and therein by allocator; budgets without a plan have none.
        without_plan: why the largest budget that has no plan has none; None where all have one.
    """

    name: str
    peak_bytes: Count
    rows: tuple[Taken, ...]
    without_plan: str | None

    def fitting(self, allocator: str) -> list[Taken]:
        """What runs with an allocator, from the largest budget down."""
        return [row for row in self.rows if row.allocator == allocator and row.fits]


class Fragmentation(Record, frozen=True, tag_field="schema", tag=SCHEMA):
    """Steps under one planner on one device.

    Attributes:
        device: its name.
        memory_bytes: that allocators may take.
        chunk_bytes: size of a physical chunk.
        planner: with its options.
        allocators: in the order in which they were named.
        umadvise_version: that computed it.
        steps: in the order in which they were named.
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
        device: whose link copies.
        budgets: that plans are made for, in bytes.
        memory_bytes: that an allocator may take.
        planner: of `planners.PLANNERS`, one that swaps.
        options: of the planner.
        allocators: models of `umadvise.simulator.swap`.
        chunk_bytes: of allocator "va_chunks": a multiple of 512.
        progress: is told how many plans are done, and how many there are.

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
        fits, result = False, run(budget_bytes=_WITHOUT_END).result
    return Taken(
        budget_bytes=plan.budget_bytes,
        allocator=allocator,
        fits=fits,
        peak_live_bytes=result.peak_live_bytes,
        peak_reserved_bytes=result.peak_reserved_bytes,
        fragmentation_bytes=result.peak_reserved_bytes - result.peak_live_bytes,
    )
