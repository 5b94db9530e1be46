"""Rows of Hayakawa and Narihira 2020 in which the window planner works on ResNet-50.

Their framework (Neural Network Libraries) updates one parameter at a time. Planned is by the scheduler as released,
which is what was measured; what section 3 of the paper gives to the letter is shown beside it, and what comes out with
the 50 GB/s that the paper states for the link, where the catalogue has the 68 GB/s that others measured.
"""

import functools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from networks import NETWORKS

from replay.changed import with_durations, with_link
from replay.outcome import FigureOutcome, calibration, holds, number, within
from replay.published import Figure
from replay.recording import one_at_a_time
from replay.step_time import StepTime
from replay.window_runs import GIB, Costs, largest_plan, step_s
from umadvise.devices.catalogue import load_device
from umadvise.errors import FormatError
from umadvise.recording.dry import recorder as dry
from umadvise.records.plan import Plan
from umadvise.records.trace import Trace
from umadvise.simulator.swap import AllocatorModel

OWN_LINK_BYTES_PER_S = 50e9


@dataclass(frozen=True)
class Method:
    """How a method is replayed: its allocator, the batch whose row calibrates a cost, and its bounds."""

    allocator: AllocatorModel
    calibrating_batch: int
    median_bound: float
    worst_bound: float


METHODS = {
    "schedule": Method("best_fit", 190, 0.06, 0.15),
    "schedule_va": Method("va_chunks", 190, 0.10, 0.20),
}
_MAY_BE_FIRST_OUT_OF_MEMORY = (1120, 1248)
"""Batches of which one is the first that `schedule` cannot train; the table has its x at 1120."""
_DEAREST_NS = 1_000_000.0
"""No cost that is calibrated is larger."""


@functools.cache
def resnet(batch: int, device: str) -> Trace:
    """A step of ResNet-50 whose optimizer takes one parameter at a time."""
    return dry.record(lambda: one_at_a_time(NETWORKS["resnet50"](batch)), target="cuda", device=device)


class WindowRows:
    """The rows of one device.

    Args:
        figures: all rows of the table.
        gpu: the GPU of the rows, by the table's name.
        device: a name of the catalogue.
        time: the time of steps by the roofline, fitted to the same paper's baseline.
    """

    def __init__(self, figures: Sequence[Figure], gpu: str, device: str, time: StepTime) -> None:
        self._figures = [figure for figure in figures if figure.key[0] in METHODS and figure.key[1] == gpu]
        self._name, self._time = device, time
        self._device = load_device(device)

    def outcome(self, figure: Figure) -> FigureOutcome:
        """One row. Any may be off by the worst's bound if the median of the method's judged rows is within its own."""
        name, _, batch = figure.key
        method = METHODS[name]
        if figure.low is None:
            return self._first_out_of_memory(figure)
        plan = self._plan(int(batch), method.allocator)
        if plan is None:
            return holds(figure, False, "x", "trains")
        speed, note = self._speed(name, int(batch), plan), self._note(name, int(batch), plan)
        if int(batch) == method.calibrating_batch:
            return calibration(figure, speed, f"{note}; {self._calibrated(name)} from this row")
        median = self._median(name)
        bound = method.worst_bound if median <= method.median_bound else method.median_bound
        return within(figure, speed, bound, f"{note}; median of the method {median:.1%}")

    def _note(self, name: str, batch: int, plan: Plan) -> str:
        own_link = self._speed(name, batch, plan, link=OWN_LINK_BYTES_PER_S)
        letter = self._plan(batch, METHODS[name].allocator, refined=False)
        by_letter = "x" if letter is None else number(self._speed(name, batch, letter))
        return (
            f"budget {plan.budget_bytes / GIB:g} GiB; {number(own_link)} at the paper's "
            f"{OWN_LINK_BYTES_PER_S / 1e9:.0f} GB/s; {by_letter} by section 3 to the letter"
        )

    def _first_out_of_memory(self, figure: Figure) -> FigureOutcome:
        allocator = METHODS[figure.key[0]].allocator
        plans = {batch: self._plan(batch, allocator) for batch in _MAY_BE_FIRST_OUT_OF_MEMORY}
        first = next((batch for batch, plan in plans.items() if plan is None), None)
        says = "trains" if first is None else f"first x at {first}"
        either = " or ".join(str(batch) for batch in _MAY_BE_FIRST_OUT_OF_MEMORY)
        return holds(figure, first is not None, says, f"first x at {either}")

    def _median(self, name: str) -> float:
        errors = []
        for figure in self._figures:
            batch = int(figure.key[2])
            if figure.key[0] != name or figure.low is None or batch == METHODS[name].calibrating_batch:
                continue
            plan = self._plan(batch, METHODS[name].allocator)
            if plan is not None:
                errors.append(abs(self._speed(name, batch, plan) / figure.middle - 1))
        return statistics.median(errors) if errors else 0.0

    # ---- predictions -------------------------------------------------------------------------------------------------

    @functools.cache  # noqa: B019  # one object a table
    def _step(self, batch: int) -> Trace:
        step = resnet(batch, self._name)
        fixed_ns = self._time.fixed_s * 1e9 / len(step.ops)
        return with_durations(step, np.maximum(step.ops.duration_ns, 0) / self._time.efficiency + fixed_ns)

    @functools.cache  # noqa: B019
    def _plan(self, batch: int, allocator: AllocatorModel, refined: bool = True) -> Plan | None:
        return largest_plan(self._step(batch), self._device, allocator, refined=refined)

    def _speed(self, name: str, batch: int, plan: Plan, *, link: float | None = None) -> float:
        device = self._device if link is None else with_link(self._device, link)
        return batch / step_s(self._step(batch), device, plan, self._costs(name))

    # ---- calibration -------------------------------------------------------------------------------------------------

    @functools.cache  # noqa: B019
    def _costs(self, name: str) -> Costs:
        """Each method's own cost from its own row; VA chunks come on top of the scheduler's cost."""
        if name == "schedule":
            return Costs(op_sync_ns=self._solve(name, lambda cost_ns: Costs(op_sync_ns=cost_ns)))
        sync_ns = self._costs("schedule").op_sync_ns
        return Costs(sync_ns, self._solve(name, lambda cost_ns: Costs(sync_ns, cost_ns)))

    def _solve(self, name: str, costs: Callable[[float], Costs]) -> float:
        """The cost with which the calibrating row comes out as published; 0 where that is too slow without."""
        method = METHODS[name]
        batch = method.calibrating_batch
        rows = [row for row in self._figures if (row.key[0], row.key[2]) == (name, str(batch))]
        plan = self._plan(batch, method.allocator)
        if len(rows) != 1 or plan is None:
            raise FormatError(f"expected one row {name} with batch {batch}, which calibrates, found {len(rows)}")
        published_s = batch / rows[0].middle
        low, high = 0.0, _DEAREST_NS
        while high - low > 100:
            middle = (low + high) / 2
            if step_s(self._step(batch), self._device, plan, costs(middle)) < published_s:
                low = middle
            else:
                high = middle
        return low

    def _calibrated(self, name: str) -> str:
        costs = self._costs(name)
        if name == "schedule":
            return f"{costs.op_sync_ns / 1e3:.1f} us an op of the scheduler"
        return f"{costs.map_ns_per_chunk / 1e3:.1f} us a chunk that is mapped"
