"""Solving a bound's programme by scipy's HiGHS."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from umadvise.errors import UmadviseError
from umadvise.planners.bounds.bound_lp import Programme

_LARGE = 20_000
"""Columns above which interior points, with a crossover to a vertex, are faster than the dual simplex method."""


@dataclass(frozen=True, eq=False)
class Solution:
    """The solution of a linear programme.

    Attributes:
        least_ms: minimum of the programme: the least sum of the slots.
        row_prices: rise of that minimum with the least value of each row (dual values).
        column_prices: rise of that minimum with the least value of each column (reduced costs).
        seconds: wall-clock time that the solver took.
    """

    least_ms: float
    row_prices: NDArray[np.float64]
    column_prices: NDArray[np.float64]
    seconds: float


def linear(programme: Programme) -> Solution:
    """The solution of a programme whose columns may have any value within their limits.

    Raises:
        UmadviseError: the solver gives up, or scipy is not installed.
    """
    optimize = _scipy()
    begin = time.perf_counter()
    cost, matrix, low = programme.matrices()
    method = "highs-ipm" if programme.columns > _LARGE else "highs-ds"
    solved = optimize.linprog(cost, A_ub=-matrix, b_ub=-low, bounds=np.stack(programme.limits(), axis=1), method=method)
    if solved.status != 0:
        raise UmadviseError(f"the solver found no bound: {solved.message}")
    seconds = time.perf_counter() - begin
    return Solution(float(solved.fun), -solved.ineqlin.marginals, solved.lower.marginals, seconds)


def integer(programme: Programme, time_limit_s: float) -> tuple[float, float]:
    """A proved lower bound of the optimum with whole storages, in milliseconds, and the seconds that proving it took.

    Raises:
        UmadviseError: the solver gives up, or scipy is not installed.
    """
    optimize = _scipy()
    begin = time.perf_counter()
    cost, matrix, low = programme.matrices()
    whole = np.zeros(programme.columns)
    whole[np.array(programme.gone, np.int64)] = 1
    solved = optimize.milp(
        cost,
        integrality=whole,
        bounds=optimize.Bounds(*programme.limits()),
        constraints=optimize.LinearConstraint(matrix, lb=low),
        options={"time_limit": time_limit_s, "mip_rel_gap": 0.0},
    )
    if solved.mip_dual_bound is None:
        raise UmadviseError(f"the solver found no bound: {solved.message}")
    return float(solved.mip_dual_bound), time.perf_counter() - begin


def _scipy() -> Any:
    try:
        import scipy.optimize
    except ImportError as error:
        raise UmadviseError(
            "the lower bound needs scipy's solver, which is not installed: pip install 'umadvise[plan]'"
        ) from error
    return scipy.optimize
