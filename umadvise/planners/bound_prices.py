"""What memory and the link are worth over a step, by the linear programme of `umadvise.planners.bound`."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from umadvise.device_profile import DeviceProfile
from umadvise.planners.bound_points import TO_DEVICE, TO_HOST, points
from umadvise.planners.bound_search import COARSE, search
from umadvise.trace.schema import Trace


@dataclass(frozen=True, eq=False)
class Prices:
    """What each byte costs at each op, in nanoseconds of the least step.

    A byte that is away over some ops saves the sum of their `memory_ns`, and costs the `to_host_ns` of the op during
    which it leaves (unless the host has it) and the `to_device_ns` of that during which it comes back. Where that saves
    more than it costs, it is away in every optimum of the programme; where it saves less, in none.

    Attributes:
        memory_ns: of memory while the op runs; 0 where the programme does not look.
        to_device_ns: of a copy to the device while the op runs.
        to_host_ns: likewise, to the host.
    """

    memory_ns: NDArray[np.float64]
    to_device_ns: NDArray[np.float64]
    to_host_ns: NDArray[np.float64]


def prices(
    trace: Trace, device: DeviceProfile, budget_bytes: int, *, coarse: int | None = COARSE, recompute: bool = False
) -> Prices:
    """The prices in a budget; all 0 where everything fits.

    Args:
        trace: one step, which repeats.
        device: whose link copies.
        budget_bytes: of device memory: at least the largest working set.
        coarse: see `umadvise.planners.bound.lower_bound`.
        recompute: whether plans may make contents again.

    Raises:
        UmadviseError: the solver gives up, as where a working set does not fit, or scipy is not installed.
    """
    known = points(trace, device)
    if int(known.load_bytes().max(initial=0)) <= budget_bytes:
        return Prices(*np.zeros((3, len(trace.ops))))
    programme, solution = search(known, device, budget_bytes, coarse=coarse, recompute=recompute)
    at_op = np.flatnonzero(known.op >= 0)
    memory = np.zeros(len(known))
    memory[programme.chosen] = programme.memory_ns(solution.column_prices)
    slot = np.searchsorted(programme.chosen, at_op, "right") - 1  # it begins at a chosen point, the first at 0
    link = programme.link_ns(solution.row_prices)[:, slot]
    return Prices(memory[at_op], link[TO_DEVICE], link[TO_HOST])
