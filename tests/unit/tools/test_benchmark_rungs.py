"""The benchmark of rungs: which run is the best one, and what is counted as its steady step."""

import pytest
from benchmark_rungs import Comparison, Trained, text

MS = 10**6
UNEVEN = [7, 8] * 6
"""Milliseconds of steps of which none is like the one before."""


def trained(rung: str, steps_ms: list[int], *, refused: str | None = None) -> Trained:
    return Trained(
        steps_ns=[each * MS for each in steps_ms],
        losses=[0.0] * len(steps_ms),
        rungs=[rung] * len(steps_ms),
        refused=refused,
    )


def comparison(auto: Trained, **rungs: Trained) -> Comparison:
    return Comparison(
        network="unet", percent=50, clock="v100-16gb", budget_bytes=1 << 30, rungs=rungs, auto=auto, bits=True
    )


def test_a_steady_step_is_the_median_of_the_second_half() -> None:
    assert trained("swap", [90, 50, 20, *UNEVEN[:3]]).steady_ns == 7 * MS
    assert trained("swap", [90] * 12 + UNEVEN).steady_ns == 7.5 * MS
    assert trained("swap", [90, 50, 30, 20, 10, 7, 7, 8, 8]).steady_ns == 7.5 * MS  # a trial of nine


def test_the_best_rung_is_one_that_ran() -> None:
    row = comparison(
        trained("swap", [40, 60, *[11] * 22]),
        advise=trained("advise", [40] * 9),
        window=trained("window", [40] * 4 + [10] * 20),
        swap=trained("swap", [1, 1], refused="no room"),
    )
    assert row.best.rungs[-1] == "window"
    assert row.steady == pytest.approx(1.1)
    assert row.first == pytest.approx((40 + 60 + 3 * 11) / 200)
    assert not row.keeps_goals
    assert "x1.100, first x0.67 by swap; steps of window x1.00 to x1.00  !" in text(row)


def test_a_row_says_how_far_steps_of_the_best_rung_are_apart() -> None:
    row = comparison(
        trained("swap", [40] * 12 + UNEVEN),
        advise=trained("advise", [40] * 9),
        swap=trained("swap", [40] * 12 + UNEVEN),
    )
    assert row.keeps_goals
    assert text(row).endswith("x1.000, first x1.00 by swap; steps of swap x0.93 to x1.07")
