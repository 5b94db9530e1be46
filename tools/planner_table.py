"""Comparisons of planners as tables in Markdown, and what they say of `best`: pure functions of comparisons."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from umadvise.planners.judging.comparison import PlannerComparison
from umadvise.planners.judging.score import Score
from umadvise.records.units import format_bytes, format_duration_ns

BEST = "best"
PUBLISHED = (
    "advice",
    "window",
    "lms",
    "vdnn-all",
    "vdnn-conv",
    "vdnn-dyn",
    "superneurons",
    "sqrt-recompute",
    "dqn",
)
"""Planners of papers."""
MOST_OF_PUBLISHED = 0.5
"""Part of the best published planner's overhead that `best` may have at half the peak; else `NEAR` is what holds."""
NEAR = 0.05
MEDIAN_REGRET, WORST_REGRET = 0.05, 0.20


def planner_of(name: str) -> str:
    """Of a competitor with options, the planner."""
    return name.partition(":")[0]


def by_budget(comparison: PlannerComparison) -> Iterator[tuple[int, list[Score]]]:
    """From the largest budget down."""
    for budget_bytes, scores in groupby(comparison.scores, key=lambda score: score.budget_bytes):
        yield budget_bytes, list(scores)


def table(network: str, comparison: PlannerComparison) -> str:
    """A row a planner: its overhead in each budget, and the longest that it took to plan; below, the least regrets."""
    budgets = list(by_budget(comparison))
    heads = [f"{format_bytes(size)} ({size / max(comparison.peak_bytes, 1):.0%})" for size, _ in budgets]
    lines = [
        f"### {network} on {comparison.device}",
        "",
        f"{format_bytes(comparison.peak_bytes)} and {format_duration_ns(comparison.unlimited_ns)} in unlimited memory; "
        "overhead over that, x where it cannot.",
        "",
        _row("planner", *heads, "planning"),
        _row("---", *["--:"] * (len(heads) + 1)),
    ]
    for name in dict.fromkeys(score.planner for score in comparison.scores):
        scores = [score for _, group in budgets for score in group if score.planner == name]
        planning = [score.planning_ns for score in scores if score.planning_ns is not None]
        lines.append(_row(name, *map(_overhead, scores), format_duration_ns(max(planning)) if planning else "-"))
    lines.append(_row("*least regret*", *(_least_regret(group) for _, group in budgets), ""))
    return "\n".join([*lines, ""])


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _overhead(score: Score) -> str:
    return "x" if score.overhead is None else f"{score.overhead:.1%}"


def _least_regret(scores: Sequence[Score]) -> str:
    """Of `best` where that is there, else of the fastest plan that a bound judges."""
    judged = [score for score in scores if score.regret is not None and score.step_ns is not None]
    ours = [score for score in judged if planner_of(score.planner) == BEST]
    score = min(ours or judged, key=lambda each: each.step_ns or 0, default=None)
    return "-" if score is None else f"{score.regret:.1%} {score.planner} ({score.bound})"


@dataclass(frozen=True, slots=True)
class Claim:
    """Something that is to hold, whether it does, and by what.

    Attributes:
        words: what is to hold.
        holds: None where nothing is there to judge it by.
        because: numbers, or the cases against it.
    """

    words: str
    holds: bool | None
    because: str

    def __str__(self) -> str:
        verdict = {True: "holds", False: "FAILS", None: "open"}[self.holds]
        return f"- {self.words}: {verdict}. {self.because}"


def claims(comparisons: Sequence[tuple[str, PlannerComparison]]) -> list[Claim]:
    """What is to hold of `best` in all comparisons."""
    cases = [
        (f"{network} in {format_bytes(size)}", scores)
        for network, comparison in comparisons
        for size, scores in by_budget(comparison)
    ]
    with_best = [(where, best, scores) for where, scores in cases if (best := _best(scores)) is not None]
    return [
        _never_slower(with_best),
        _feasible(with_best),
        _regrets(with_best),
        *(_half(network, comparison) for network, comparison in comparisons),
    ]


def _best(scores: Sequence[Score]) -> Score | None:
    return next((score for score in scores if planner_of(score.planner) == BEST), None)


Case = tuple[str, Score, list[Score]]


def _never_slower(cases: Sequence[Case]) -> Claim:
    slower = []
    for where, best, scores in cases:
        faster = [each for each in scores if each.step_ns is not None and each.step_ns < (best.step_ns or 0)]
        slower += [f"{each.planner} is faster on {where}" for each in faster]
    return _judged("`best` is never slower than any other", cases, slower)


def _feasible(cases: Sequence[Case]) -> Claim:
    missing = []
    for where, best, scores in cases:
        others = [each.planner for each in scores if each.problem is None]
        missing += [f"{where}, where {', '.join(others)} can"] if best.problem is not None and others else []
    return _judged("`best` is feasible wherever any is", cases, missing)


def _judged(words: str, cases: Sequence[Case], against: Sequence[str]) -> Claim:
    if not cases:
        return Claim(words, None, "`best` took no part.")
    return Claim(words, not against, "; ".join(against) + "." if against else f"{len(cases)} cases.")


def _regrets(cases: Sequence[Case]) -> Claim:
    words = f"`best`'s regret is at most {MEDIAN_REGRET:.0%} at the median and {WORST_REGRET:.0%} at the worst"
    regrets = [(best.regret, f"{where}, {best.bound}") for where, best, _ in cases if best.regret is not None]
    if not regrets:
        return Claim(words, None, "No bound judged it.")
    median = statistics.median(regret for regret, _ in regrets)
    worst, where = max(regrets)
    holds = median <= MEDIAN_REGRET and worst <= WORST_REGRET
    return Claim(words, holds, f"{median:.1%} and {worst:.1%} ({where}), of {len(regrets)}.")


def _half(network: str, comparison: PlannerComparison) -> Claim:
    """At the budget nearest to half the peak."""
    words = f"{network}: at half the peak `best` has half the overhead of the best published, or {NEAR:.0%} regret"
    cases = [(abs(size - comparison.peak_bytes / 2), size, scores) for size, scores in by_budget(comparison)]
    distance, size, scores = min(cases, default=(0, 0, []))
    best = _best(scores)
    published = [
        (each.overhead, each.planner)
        for each in scores
        if planner_of(each.planner) in PUBLISHED and each.overhead is not None
    ]
    if distance > comparison.peak_bytes / 20:
        return Claim(words, None, "No budget is near that.")
    if not published:
        return Claim(words, None, f"No published planner runs in {format_bytes(size)}.")
    overhead, planner = min(published)
    theirs = f"{planner} {overhead:.1%}"
    if best is None:
        return Claim(words, None, f"{theirs}; `best` took no part.")
    if best.overhead is None:
        return Claim(words, False, f"{theirs}; `best` cannot.")
    holds = best.overhead <= MOST_OF_PUBLISHED * overhead or (best.regret is not None and best.regret <= NEAR)
    regret = "not judged" if best.regret is None else f"{best.regret:.1%}"
    return Claim(words, holds, f"{best.overhead:.1%} against {theirs}; regret {regret}.")
