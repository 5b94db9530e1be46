"""The governor of `policy="auto"`: which rung of the ladder the next step runs on, and why.

A pure state machine over records of steps: it touches no device. It begins with what simulation says and then believes
the counters. A rung on which faults, or waits for copies, took more than a threshold for two steps in a row is left for
the one above it, and not returned to unless the step's structure changes: no pair of rungs is ever taken in turns.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from umadvise.errors import UsageError
from umadvise.roles import RUNGS

FAULT_THRESHOLD = 0.05
"""Part of a step that may go into stalls."""
PATIENCE = 2
"""Steps in a row above the threshold that make a rung one to leave."""
WORTH = 0.02
"""A higher rung is chosen where its predicted step is shorter by more than this part."""


@dataclass(frozen=True)
class StepRecord:
    """One step as the governor sees it.

    Attributes:
        number: of the step: 1, 2, ...
        duration_ns: from its begin to its end.
        stall_ns: of those, in fault services and in waits for copies or for room.
        fault_groups: blocks of 2 MiB served; None where nobody can count them.
        typical: the step ran as the rung means it to. One that was recorded without a plan, or that left its plan, says
            nothing about the rung.
    """

    number: int
    duration_ns: int
    stall_ns: int
    fault_groups: int | None
    typical: bool = True


@dataclass(frozen=True)
class Switch:
    """From one rung to another before the step of that number, or a reason to stay on the one that it is.

    Attributes:
        step: the first one on the new rung.
        before: the rung until then; None at the beginning, and the same one where it stays.
        rung: the one from then on.
        reason: with the numbers that it follows from.
    """

    step: int
    before: str | None
    rung: str
    reason: str


def check_threshold(threshold: float) -> float:
    """Returns a threshold that can be one: a share of the step (a float), or fault groups a step (an int).

    Raises:
        UsageError: it is neither.
    """
    if isinstance(threshold, int) and not isinstance(threshold, bool) and threshold >= 0:
        return threshold
    if isinstance(threshold, float) and 0.0 <= threshold <= 1.0:
        return threshold
    raise UsageError(
        f"fault_threshold {threshold!r}: expected a part of the step from 0.0 to 1.0, or a whole number of fault groups"
    )


class Governor:
    """Chooses among the rungs that there are.

    Attributes:
        rung: the one in force.
        history: every switch, the first choice included.
    """

    def __init__(
        self, rung: str, reason: str, *, rungs: Sequence[str] = RUNGS, threshold: float = FAULT_THRESHOLD
    ) -> None:
        """Starts on a rung.

        Args:
            rung: the first one.
            reason: why it is that.
            rungs: those that the device has, from the lowest up.
            threshold: see `check_threshold`.

        Raises:
            UsageError: the threshold is none, or the rung is none of `rungs`.
        """
        if rung not in rungs:
            raise UsageError(f"no rung {rung!r} here: expected one of {', '.join(rungs)}")
        self.rung = rung
        self.history = [Switch(1, None, rung, reason)]
        self._rungs = tuple(rungs)
        self._threshold = check_threshold(threshold)
        self._over = 0
        self._left: set[str] = set()
        self._impossible: set[str] = set()

    def observe(self, step: StepRecord) -> Switch | None:
        """Takes note of a step; returns the switch that its successor runs after, if there is one."""
        if not step.typical:
            return None
        excess = self._excess(step)
        self._over = self._over + 1 if excess is not None else 0
        if excess is None or self._over < PATIENCE:
            return None
        above = [rung for rung in self._possible() if self._rungs.index(rung) > self._rungs.index(self.rung)]
        if not above:
            return None
        self._left.add(self.rung)
        return self._to(step.number + 1, above[0], f"{excess}, {self._over} steps in a row")

    def choose(self, step: int, predicted_ns: Mapping[str, int], reason: str = "") -> Switch | None:
        """Goes to, or stays on, the rung whose predicted step is the shortest; among those nearly as short, the lowest.

        Args:
            step: that runs there first.
            predicted_ns: step times by rung; those that are not there cannot be chosen.
            reason: beside the predictions.
        """
        known = [rung for rung in self._possible() if rung in predicted_ns]
        if not known:
            return None
        best_ns = min(predicted_ns[rung] for rung in known)
        chosen = next(rung for rung in known if predicted_ns[rung] <= best_ns * (1 + WORTH))
        times = ", ".join(f"{rung} {predicted_ns[rung] / 1e6:.1f} ms" for rung in known)
        return self._to(step, chosen, f"predicted steps: {times}" + (f"; {reason}" if reason else ""))

    def go(self, step: int, rung: str, reason: str) -> Switch | None:
        """Goes to a rung because of a fact; nowhere when it is there already or the rung was left for its faults."""
        if rung == self.rung or rung not in self._possible():
            return None
        return self._to(step, rung, reason)

    def exclude(self, rungs: Iterable[str]) -> None:
        """The step does not run on these, or nobody can say how: they are not gone to until the step changes."""
        self._impossible.update(rungs)

    def take_back(self, switch: Switch, reason: str) -> Switch:
        """A switch could not be made: the rung before it stays."""
        assert switch.before is not None
        self._impossible.add(switch.rung)
        self._left.discard(switch.before)
        return self._to(switch.step, switch.before, reason)

    def restructure(self) -> None:
        """The step is another one from now on: what was true of a rung may be so no more."""
        self._left.clear()
        self._impossible.clear()
        self._over = 0

    def _possible(self) -> list[str]:
        return [rung for rung in self._rungs if rung not in self._left and rung not in self._impossible]

    def _to(self, step: int, rung: str, reason: str) -> Switch:
        switch = Switch(step, self.rung, rung, reason)
        self.history.append(switch)
        self.rung = rung
        self._over = 0
        return switch

    def _excess(self, step: StepRecord) -> str | None:
        """In words, how the step is above the threshold; None when it is not."""
        if isinstance(self._threshold, int):
            if step.fault_groups is None or step.fault_groups <= self._threshold:
                return None
            return f"{step.fault_groups} fault groups a step, more than {self._threshold}"
        share = step.stall_ns / step.duration_ns if step.duration_ns > 0 else 0.0
        if share <= self._threshold:
            return None
        return f"stalls took {share:.1%} of the step, more than {self._threshold:.1%}"
