"""Predicted beside measured as text: a pure function of comparisons."""

import math
from collections.abc import Iterator, Sequence
from itertools import groupby

from replay.columns import aligned
from replay.measured import QUANTITIES, MeasuredRow

_HEADINGS = {
    "step_ns": ("step, ms", 1e6),
    "peak_bytes": ("peak, MiB", 1 << 20),
    "bytes_h2d": ("to the device, MiB", 1 << 20),
    "bytes_d2h": ("to the host, MiB", 1 << 20),
    "fault_groups": ("faults", 1),
    "evictions": ("evictions", 1),
}


def lines(comparisons: Sequence[MeasuredRow]) -> Iterator[str]:
    """A block a network, a line a row: predicted / measured and the error; then the mean error of each quantity."""
    for network, group in groupby(comparisons, key=lambda each: each.network):
        members = list(group)
        rows = [("row", *(_HEADINGS[name][0] for name in QUANTITIES)), *map(_cells, members)]
        yield f"{network}: predicted / measured"
        yield from map(str.rstrip, aligned(rows))
        for each in members:
            if each.problem is not None:
                yield f"  {each.row}: {each.problem.splitlines()[0]}"
            elif each.calibrates:
                yield f"  {each.row}: its step calibrates, and judges nothing"
        yield ""
    yield from _means(comparisons)


def errors(comparisons: Sequence[MeasuredRow], quantity: str) -> list[float]:
    """Predicted over measured, where both are there, neither is nothing, and the row was not calibrated with it."""
    found = []
    for each in comparisons:
        predicted, measured = each.predicted.get(quantity), each.measured.get(quantity)
        if predicted and measured and not (each.calibrates and quantity == "step_ns"):
            found.append(predicted / measured)
    return found


def geometric_mean_error(ratios: Sequence[float]) -> float:
    """The factor, less 1, by which predictions are off in the mean, whichever way."""
    return math.exp(math.fsum(abs(math.log(ratio)) for ratio in ratios) / len(ratios)) - 1


def _means(comparisons: Sequence[MeasuredRow]) -> Iterator[str]:
    for quantity in QUANTITIES:
        ratios = errors(comparisons, quantity)
        said = f"{geometric_mean_error(ratios):.1%} over {len(ratios)} rows" if ratios else "nothing to compare"
        yield f"geometric-mean error of {_HEADINGS[quantity][0].partition(',')[0]}: {said}"


def _cells(each: MeasuredRow) -> tuple[str, ...]:
    return (each.row, *(_cell(each, quantity) for quantity in QUANTITIES))


def _cell(each: MeasuredRow, quantity: str) -> str:
    predicted, measured = each.predicted.get(quantity), each.measured.get(quantity)
    if predicted is None and measured is None:
        return "-"
    unit = _HEADINGS[quantity][1]
    numbers = " / ".join("-" if value is None else f"{value / unit:,.1f}" for value in (predicted, measured))
    if not predicted or not measured:
        return numbers
    return f"{numbers} {predicted / measured - 1:+.0%}"
