"""What happens to each storage at and between the points at which a bound looks."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from umadvise.planners.bounds.bound_rerun import rerun_ns
from umadvise.planners.points import Points
from umadvise.planners.step_graph import NONE


@dataclass(frozen=True)
class Cells:
    """Tables with a row for each storage and a column for each chosen point, and for the slot from it to the next one.

    Attributes:
        bytes: size of the storage of each row.
        chosen: points of the columns, ascending.
        waits: whether the point does not use the storage, while its contents are needed later.
        fetched: whether the first use in the slot, the next chosen point included, needs contents.
        touched: whether there is any use in the slot, the next chosen point included.
        written: whether contents change in the slot, from the beginning of this point's op to that of the next one's.
        following: row of each storage in the step that follows, or NONE.
        rerun_ns: least time to make the contents again from this point on; infinite where that cannot be.
    """

    bytes: NDArray[np.int64]
    chosen: NDArray[np.int64]
    waits: NDArray[np.bool_]
    fetched: NDArray[np.bool_]
    touched: NDArray[np.bool_]
    written: NDArray[np.bool_]
    following: NDArray[np.int64]
    rerun_ns: NDArray[np.float64]


def cells(points: Points, chosen: NDArray[np.int64], least_bytes: int, *, recompute: bool = False) -> Cells:
    """What happens to each storage of at least so many bytes at and between the chosen points."""
    width, count = len(points) + 1, len(points.bytes)
    everyone = np.arange(count)
    key = np.append(points.storage * width + points.at, count * width)
    needs, point = np.append(points.needs, False), np.append(points.at, width)
    writes = np.concatenate([[0], np.cumsum(points.writes), [0]])
    writes[-1] = writes[-2]
    first, end = points.first[:-1, None], points.first[1:, None]
    place = everyone[:, None] * width + chosen[None, :]
    here = np.searchsorted(key, place, "left")
    later = np.searchsorted(key, place, "right")
    at = (here < end) & (key[here] == place)
    opening = points.opening[:, None]
    opens = opening >= 0
    waits = ~at & np.where(here < end, needs[here], opens & needs[opening])
    until = np.append(chosen[1:], width)[None, :]
    own = (later < end) & (point[later] <= until)
    last = np.arange(len(chosen)) == len(chosen) - 1
    heirs = last[None, :] & ~own & opens & (point[opening] <= chosen[0])
    stop = np.concatenate([here[:, 1:], end], axis=1)
    heir = np.maximum(points.graph.heir, 0)
    carried = np.where(points.graph.heir >= 0, writes[here[heir, 0]] - writes[first[heir, 0]], 0)
    changes = writes[stop] - writes[here]
    changes[:, -1] += carried
    keep = np.flatnonzero((points.bytes >= max(least_bytes, 1)) & waits.any(axis=1))
    row = np.full(count + 1, NONE, np.int64)
    row[keep] = np.arange(len(keep))
    return Cells(
        bytes=points.bytes[keep],
        chosen=chosen,
        waits=waits[keep],
        fetched=np.where(own, needs[later], heirs & needs[opening])[keep],
        touched=(own | heirs)[keep],
        written=changes[keep] > 0,
        following=row[points.graph.heir[keep]],
        rerun_ns=rerun_ns(points, keep, chosen, here[keep]) if recompute else np.full((len(keep), len(chosen)), np.inf),
    )
