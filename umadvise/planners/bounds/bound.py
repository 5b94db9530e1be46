"""Lower bounds of a step's time in a budget: times below which no plan gets it, whatever planner made that.

`lower_bound` takes the best of four, `optimum` solves the last one with storages that are whole:

- feasibility: an op's working set is on the device at once under every plan;
- compute: ops run one after the other, and the program's own copies between them;
- link: at the point of largest load, what exceeds the budget has left before it and comes back after it;
- a linear programme over time.

The linear programme, and why it bounds every schedule. Take any run of `simulator.swap.simulate_swap` whose steps
repeat, and look at it at the instants at which chosen ops begin to execute ("cells"); between two of them lies a slot
of length d. Look at one byte of a storage in a gap, which is some cells in a row in which the storage has contents that
are needed later, while nothing uses it between the first of them and the last. It is on the device at the use before
the gap, if there is one, and at the use behind it. If it is missing in some of the cells, then:

- it is copied to the device between the last cell in which it is missing and the use, hence in a slot of the gap;
- before that the host got it, by a copy between the last write of the storage and the first cell in which it is
  missing. Let it leave in the slot of the copy where that lies in the gap, and else as soon as the gap begins: so it
  counts as missing in all the cells in which it is, and possibly in more. A copy on the host serves all gaps up to the
  next write. Contents that no step writes, or that a step begins with and no step leaves behind, leave at no cost.

Amounts of bytes, which are no more than a storage has, do in each slot what these bytes do. They keep:

- memory: what is missing in a cell is at least what exceeds the budget, if all that is used, or waits, were there: what
  is on the device takes room, as does a copy to the device for what has come and one to the host up to its end;
- time: d is at least the time of the slot's ops and of the program's own copies in it, and at least what the link needs
  for all that is copied in it, with the slower speed of two directions at once; all slots together are at least as long
  as the engines need with the fixed cost of each copy.

What leaves behind the last op is missing at the first, under the name of the storage's successor. So every run of this
kind gives a point of the programme, whose length is the sum of the d: the least sum is a bound. For a run whose steps
do not repeat it bounds their mean in the long run, as the programme is convex.
Leaving rows out, and looking at fewer cells, only lowers the minimum. `coarse` does: memory is looked at in few ops
only (`bound_search`), copies and times are sums between them, and small storages move freely and take room only where
ops use them.

With `recompute`, a byte may also be lost and made again, with its storage, in the step that wrote it: for the least
time of the ops that must run again (`bound_rerun`), during which no other op runs. If it is made again after it was
last copied to the device in the gap, let it be lost when the gap begins, and made again that once. Else let it be lost
when the gap begins and made again that last time, which comes before the copy to the host that later brings it back, as
what is made again is no longer on the host: then let it leave a second time, as above. Memory of the ops that run again
and the presence of their inputs are left out: valid, and loose for long chains.
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from umadvise.errors import UsageError
from umadvise.planners.bounds.bound_cells import cells
from umadvise.planners.bounds.bound_lp import MS, Programme, facets
from umadvise.planners.bounds.bound_search import COARSE, search
from umadvise.planners.bounds.bound_solver import integer
from umadvise.planners.points import Points
from umadvise.records.device import DeviceProfile
from umadvise.records.trace import Trace

BoundKind: TypeAlias = Literal["feasibility", "compute", "link", "programme", "optimum"]
_TOLERANCE = 1e-6
"""Part by which the solver's minimum is lowered to stay a bound: HiGHS ends within 1e-7 of feasible and optimal."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A time that no plan's step goes below.

    Attributes:
        kind: method that gave the highest bound; "feasibility" where no plan keeps the budget.
        step_ns: least nanoseconds of a step under any plan.
        feasible: whether the storages that any one op uses fit the budget. Plans need not exist even so.
        details: `compute_ns`, `link_ns` and `programme_ns` where known, `needed_bytes` of the largest working set,
            `excess_bytes` of the largest load over the budget, `points` and `chosen` of them, `columns`, `rows`,
            `solve_ns`, and whether plans may `recompute`.
    """

    kind: BoundKind
    step_ns: int
    feasible: bool
    details: dict[str, int | bool] = field(default_factory=dict)


def regret(plan_step_ns: int, bound: Bound) -> float:
    """How much longer than the bound a plan's step is, as a part of the bound: no plan is better by more than that."""
    if bound.step_ns == 0:
        return 0.0 if plan_step_ns == 0 else float("inf")
    return (plan_step_ns - bound.step_ns) / bound.step_ns


def lower_bound(
    trace: Trace, device: DeviceProfile, budget_bytes: int, *, coarse: int | None = COARSE, recompute: bool = False
) -> Bound:
    """The highest lower bound for plans that swap, or that swap and recompute.

    Args:
        trace: one step, which repeats.
        device: profile of the device whose link makes the copies.
        budget_bytes: bytes that tensors may take on the device.
        coarse: number of slices of the step in which the programme looks at memory at first; None looks at every op
            and storage.
        recompute: whether plans may make contents again.

    Raises:
        UsageError: `coarse` is below 1.
        UmadviseError: the solver gives up, or scipy is not installed.
    """
    if coarse is not None and coarse < 1:
        raise UsageError(f"coarse: expected at least one op, found {coarse}")
    known = Points(trace, device)
    simple = _simple(known, device, budget_bytes, recompute)
    if not simple.feasible or simple.details["excess_bytes"] <= 0:
        return simple
    programme, solution = search(known, device, budget_bytes, coarse=coarse, recompute=recompute)
    return _better(simple, "programme", solution.least_ms, solution.seconds, programme)


def optimum(
    trace: Trace,
    device: DeviceProfile,
    budget_bytes: int,
    *,
    recompute: bool = False,
    time_limit_s: float = 60.0,
) -> Bound:
    """The least time in the programme's model with every op, where a storage is on the device whole or not at all.

    For steps of some dozen ops: it takes a choice for each storage at each op. Where time runs out it is the best
    bound that is proved by then.

    Args:
        trace: one step, which repeats.
        device: profile of the device whose link makes the copies.
        budget_bytes: bytes that tensors may take on the device.
        recompute: whether plans may make contents again.
        time_limit_s: seconds that the solver may take.

    Raises:
        UmadviseError: the solver gives up, or scipy is not installed.
    """
    known = Points(trace, device)
    simple = _simple(known, device, budget_bytes, recompute)
    if not simple.feasible or simple.details["excess_bytes"] <= 0:
        return simple
    every = cells(known, np.arange(len(known)), 0, recompute=recompute)
    programme = Programme(known, device, budget_bytes, every, whole=True)
    return _better(simple, "optimum", *integer(programme, time_limit_s), programme)


def _simple(known: Points, device: DeviceProfile, budget_bytes: int, recompute: bool) -> Bound:
    """The bounds that need no solver."""
    needed = int(known.working_set_bytes().max(initial=0))
    excess = int(known.load_bytes().max(initial=0)) - budget_bytes
    compute_ns = int(known.duration_ns.sum())
    link_ns = 0 if recompute else int(_link_ns(known, device, budget_bytes))
    details: dict[str, int | bool] = {
        "compute_ns": compute_ns,
        "link_ns": link_ns,
        "needed_bytes": needed,
        "excess_bytes": excess,
        "points": len(known),
        "recompute": recompute,
    }
    if needed > budget_bytes:
        return Bound("feasibility", compute_ns, False, details)
    return Bound("link" if link_ns > compute_ns else "compute", max(compute_ns, link_ns), True, details)


def _link_ns(known: Points, device: DeviceProfile, budget_bytes: int) -> float:
    """What leaves at the peak comes back; and has been copied out in this step, beyond what is never written.

    The cheapest choice is a fractional knapsack in which a byte of each storage costs the same: the excess decides.
    """
    load = known.load_bytes()
    if not len(load) or int(load.max()) <= budget_bytes:
        return 0.0
    at = int(load.argmax())
    excess = float(load[at] - budget_bytes)
    one = cells(known, np.array([at]), 0)
    clean = one.bytes[(one.waits & ~one.written)[:, 0]]
    dirty = max(excess - float(clean.sum()), 0.0)
    fresh = one.bytes[(one.waits & (one.following < 0)[:, None] & ~one.fetched)[:, 0]]
    back = max(excess - float(fresh.sum()), 0.0)
    return max(a * back + b * dirty for a, b in facets(device))


def _better(simple: Bound, kind: BoundKind, found_ms: float, seconds: float, programme: Programme) -> Bound:
    step_ns = int(found_ms * MS * (1 - _TOLERANCE))
    details = simple.details | {
        "programme_ns": step_ns,
        "chosen": len(programme.chosen),
        "columns": programme.columns,
        "rows": programme.rows.count,
        "solve_ns": int(seconds * 1e9),
    }
    if step_ns <= simple.step_ns:
        return Bound(simple.kind if kind == "programme" else kind, simple.step_ns, True, details)
    return Bound(kind, step_ns, True, details)
