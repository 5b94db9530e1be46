"""Le et al. (TensorFlow Large Model Support) on a P100, as Hayakawa and Narihira 2020 quote it in their table 1.

They ran on POWER8, which a P100 joins by two NVLink bricks of 20 GB/s each way; the catalogue's P100 is on PCIe. What
IBM claims of the link is 2.8 times PCIe 3, 83 % of its peak. TensorFlow keeps a twentieth of the memory for the system
(common_runtime/gpu/gpu_device.cc, MinSystemMemory), and the tuner a tenth of what is left.
"""

import dataclasses
import functools
import statistics
from collections.abc import Sequence

from replay.changed import faster, with_link
from replay.outcome import FigureOutcome, holds, number, within
from replay.published import Figure
from replay.recording import trace
from replay.step_time import StepTime
from umadvise import planners
from umadvise.devices.catalogue import load_device
from umadvise.errors import BudgetError, NoRoomError
from umadvise.records.plan import Plan
from umadvise.simulator.swap import simulate_swap

METHOD = "lms"
MEDIAN_BOUND = 0.15
WORST_BOUND = 0.30
_LINKS_BYTES_PER_S = (0.83 * 40e9, 40e9)
"""IBM's claim and the peak; nobody measured both directions at once."""
_TENSORFLOW_SHARE = 0.95


def outcome(figure: Figure, figures: Sequence[Figure], device: str, time: StepTime) -> FigureOutcome:
    """One row: speed of a tuned plan, or that there is none.

    Each row may be off by the bound of the worst, if half of the rows in which something moves are within the median's.

    Args:
        figure: the row's figure.
        figures: all rows of the table.
        device: a name of the catalogue.
        time: the time of steps by the roofline, fitted to the same paper's baseline.
    """
    found = _prediction(figure, device, time)
    if found is None or figure.low is None:
        fits = "x" if found is None else "fits"
        return holds(figure, (found is None) == (figure.low is None), fits, "fits or not", note=_options(found))
    note = f"{_options(found)}; out {found.out_bytes / 1e9:.0f} GB, in {found.in_bytes / 1e9:.0f} GB"
    if len(found.plan):
        note += f"; {number(found.at_link_peak)} at the link's peak of 40 GB/s, {number(found.on_pcie)} on PCIe"
    else:
        note += "; the baseline, which calibrates"
    rows = [row for row in figures if row.key[0] == METHOD and row.key[1] == figure.key[1] and row.low is not None]
    predicted = [(row, _prediction(row, device, time)) for row in rows]
    errors = [abs(each.speed / row.middle - 1) for row, each in predicted if each is not None and len(each.plan)]
    median = statistics.median(errors) if errors else 0.0
    bound = WORST_BOUND if median <= MEDIAN_BOUND else MEDIAN_BOUND
    return within(figure, found.speed, bound, f"{note}; median of the rows that swap {median:.1%}")


@dataclasses.dataclass(frozen=True)
class _Prediction:
    """Images a second, over three links; what moves in a step."""

    plan: Plan
    speed: float
    at_link_peak: float
    on_pcie: float
    out_bytes: int
    in_bytes: int


def _options(found: _Prediction | None) -> str:
    if found is None:
        return "no setting of the tuner fits"
    return ", ".join(f"{name} {value}" for name, value in found.plan.options.items())


@functools.cache
def _prediction(figure: Figure, device_name: str, time: StepTime) -> _Prediction | None:
    batch = int(figure.key[-1])
    device = load_device(device_name)
    step = faster(trace("resnet50", batch, device_name), time.efficiency)
    budget_bytes = int(device.memory_bytes * _TENSORFLOW_SHARE)
    fixed_ns = round(time.fixed_s * 1e9 / len(step.ops))
    try:
        plan = planners.run("lms", step, device, budget_bytes)
        results = [
            simulate_swap(step, each, plan, allocator="best_fit", op_sync_ns=fixed_ns, spans=False).result
            for each in (*(with_link(device, speed, both_bytes_per_s=None) for speed in _LINKS_BYTES_PER_S), device)
        ]
    except (BudgetError, NoRoomError):
        return None
    speed, at_link_peak, on_pcie = (batch / result.step_ns * 1e9 for result in results)
    return _Prediction(plan, speed, at_link_peak, on_pcie, results[0].swap_out_bytes, results[0].swap_in_bytes)
