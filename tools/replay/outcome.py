"""What became of a published figure: the prediction beside it, and whether it lies within the bound."""

from dataclasses import dataclass
from enum import Enum

from replay.published import Figure


class Status(Enum):
    """Of one figure."""

    PASS = "PASS"
    FAIL = "FAIL"
    PENDING = "pending"  # waits for a part that is not built
    CALIBRATION = "calibration"  # something was set from it, so it judges nothing


@dataclass(frozen=True)
class Outcome:
    """A figure and its prediction.

    Attributes:
        figure: what the paper says.
        status: see Status.
        predicted: in words, with the figure's unit; empty where there is none.
        error: relative to the figure, signed; None where it is not a matter of degree.
        bound: in words.
        note: what it waits for, what was set from it, or how the prediction came about.
    """

    figure: Figure
    status: Status
    predicted: str = ""
    error: float | None = None
    bound: str = ""
    note: str = ""


def within(figure: Figure, predicted: float, share: float, note: str = "") -> Outcome:
    """The prediction may be off by a share of the published number."""
    error = predicted / figure.middle - 1
    status = Status.PASS if abs(error) <= share else Status.FAIL
    return Outcome(figure, status, number(predicted), error, f"{share:.0%}", note)


def holds(
    figure: Figure, condition: bool, predicted: str, bound: str, *, error: float | None = None, note: str = ""
) -> Outcome:
    """The prediction must meet a condition, which `bound` says in words; `error` is shown and judges nothing."""
    return Outcome(figure, Status.PASS if condition else Status.FAIL, predicted, error, bound, note)


def calibration(figure: Figure, predicted: float, note: str) -> Outcome:
    """Something was set from this figure; what is left of it is shown and judges nothing."""
    return Outcome(figure, Status.CALIBRATION, number(predicted), predicted / figure.middle - 1, "", note)


def pending(figure: Figure, needs: str) -> Outcome:
    """Nothing can be predicted yet."""
    return Outcome(figure, Status.PENDING, note=f"waits for {needs}")


def number(value: float) -> str:
    """With four digits, or whole where it is large."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
