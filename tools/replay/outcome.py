"""What became of a published figure: the prediction beside it, and whether it lies within the bound."""

from dataclasses import dataclass
from enum import Enum

from replay.published import Figure


class Verdict(Enum):
    """Of one figure."""

    PASS = "PASS"
    FAIL = "FAIL"
    PENDING = "pending"  # waits for a part that is not built
    CALIBRATION = "calibration"  # something was set from it, so it judges nothing


@dataclass(frozen=True)
class FigureOutcome:
    """A figure and its prediction.

    Attributes:
        figure: what the paper says.
        status: the verdict on it.
        predicted: the prediction in words, with the figure's unit; empty where there is none.
        error: relative to the figure, signed; None where it is not a matter of degree.
        bound: the bound in words.
        note: what it waits for, what was set from it, or how the prediction came about.
    """

    figure: Figure
    status: Verdict
    predicted: str = ""
    error: float | None = None
    bound: str = ""
    note: str = ""


def within(figure: Figure, predicted: float, share: float, note: str = "") -> FigureOutcome:
    """The prediction may be off by a share of the published number."""
    error = predicted / figure.middle - 1
    status = Verdict.PASS if abs(error) <= share else Verdict.FAIL
    return FigureOutcome(figure, status, number(predicted), error, f"{share:.0%}", note)


def holds(
    figure: Figure, condition: bool, predicted: str, bound: str, *, error: float | None = None, note: str = ""
) -> FigureOutcome:
    """The prediction must meet a condition, which `bound` says in words; `error` is shown and judges nothing."""
    return FigureOutcome(figure, Verdict.PASS if condition else Verdict.FAIL, predicted, error, bound, note)


def calibration(figure: Figure, predicted: float, note: str) -> FigureOutcome:
    """Something was set from this figure; what is left of it is shown and judges nothing."""
    return FigureOutcome(figure, Verdict.CALIBRATION, number(predicted), predicted / figure.middle - 1, "", note)


def pending(figure: Figure, needs: str) -> FigureOutcome:
    """Nothing can be predicted yet."""
    return FigureOutcome(figure, Verdict.PENDING, note=f"waits for {needs}")


def number(value: float) -> str:
    """With four digits, or whole where it is large."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
