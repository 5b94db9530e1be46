"""In which gaps storages leave: enough for every op to find room, and those that hide their copies best."""

import numpy as np
from numpy.typing import NDArray

from umadvise.planners.gaps import Gaps
from umadvise.planners.swap_schedule import Times


def slack_ns(gaps: Gaps, times: Times) -> NDArray[np.float64]:
    """How much longer than its copies each gap lasts; below 0 for one that is too short to win anything."""
    begin_ns, link = times.two_steps_ns, gaps.device.link
    copies_ns = gaps.bytes * (1e9 / link.d2h.bytes_per_s.value + 1e9 / link.h2d.bytes_per_s.value)
    result: NDArray[np.float64] = begin_ns[gaps.end] - begin_ns[gaps.begin + 1] - copies_ns
    return result


def enough(
    gaps: Gaps, leaves: NDArray[np.bool_], budget_bytes: int, worth: NDArray[np.float64]
) -> NDArray[np.bool_] | None:
    """Adds gaps until every point finds room, were copies to the host to take no time; None where that cannot be.

    At the fullest point those gaps are next which are worth most, and of what exceeds the excess there that which is
    worth most for what it takes away of it.

    Args:
        gaps: of the step.
        leaves: in which gaps storages leave already.
        budget_bytes: of device memory.
        worth: of each gap; below 0 it comes after all others.
    """
    leaves = leaves & gaps.needed
    rows = np.flatnonzero(leaves)
    count = len(gaps.points)
    used = gaps.kept_bytes - gaps.bytes_in(rows, gaps.begin[rows] + 1, gaps.end[rows])
    waiting = gaps.needed & ~leaves
    while len(used) and int(used.max()) > budget_bytes:
        point = int(used.argmax())
        inside = ((gaps.begin < point) & (point < gaps.end)) | (point + count < gaps.end)
        found = np.flatnonzero(waiting & inside)
        if not len(found):
            return None
        excess = int(used[point]) - budget_bytes
        ranked = found[np.argsort(-worth[found], kind="stable")]
        whole = int(np.searchsorted(np.cumsum(gaps.bytes[ranked]), excess, "right"))
        chosen, rest = ranked[:whole], ranked[whole:]
        excess -= int(gaps.bytes[chosen].sum())
        if excess > 0 and len(rest):
            share = np.minimum(gaps.bytes[rest], excess) / gaps.bytes[rest]
            chosen = np.append(chosen, rest[np.where(worth[rest] > 0, worth[rest] * share, worth[rest]).argmax()])
        leaves[chosen], waiting[chosen] = True, False
        for begin, end, size in zip(
            (gaps.begin[chosen] + 1).tolist(), gaps.end[chosen].tolist(), gaps.bytes[chosen].tolist(), strict=True
        ):
            used[begin : min(end, count)] -= size
            used[: max(end - count, 0)] -= size
    return leaves
