"""The governor of `policy="auto"`: which rung of the ladder the next step runs on, and why.

A pure state machine over records of steps: it touches no device. It begins with what simulation says, and what it has
measured beats that: a rung's time is the median of a few of its steps, after the first one there. A rung is tried where
it is predicted to be faster than the one in force was measured, or where stalls took more than a threshold of two steps
in a row; the one that was fastest is gone back to. Each rung is tried once while the step's structure is the same, and
once more when a search has found a better plan for it. Returns and structures are counted too, so that changes come to
an end whatever the steps do.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from umadvise.devices.rungs import RUNGS
from umadvise.errors import UsageError

FAULT_THRESHOLD = 0.05
"""Part of a step that may go into stalls."""
PATIENCE = 2
"""Steps in a row above the threshold that make a rung one to leave."""
WORTH = 0.02
"""A higher rung is chosen where its step is shorter by more than this part."""
HYSTERESIS = 0.05
"""A rung is left where another one was measured, or is predicted, to be faster by more than this part."""
WARM_UP = 1
"""Steps on a rung that are not measured: what the one before left behind makes the first one slower."""
SAMPLES = 3
"""Steps whose median is a rung's time; twice as many after each return, so that noise ends the sooner."""
MOST_SAMPLES = 24
MOST_ODD = 4
"""Steps in a row that are not typical, after which such steps are what the rung gives."""
MOST_SETTLING = 12
"""Steps on a rung whose chunks are still sought places, after which such steps are what the rung gives; a simulated
H100 needs six for GPT-2."""
MOST_STRUCTURES = 4
"""Times that a step may become another one before that changes nothing any more."""


class StepRecord(NamedTuple):
    """One step as the governor sees it.

    Attributes:
        number: number of the step: 1, 2, ...
        duration_ns: nanoseconds from its begin to its end.
        stall_ns: nanoseconds of those in fault services and in waits for copies or room; None: nobody counted.
        fault_groups: blocks of 2 MiB served; None where nobody can count them.
        typical: whether the step ran as the rung means it to. One that was recorded, or had no plan, or left its plan,
            says little about the rung.
        settling: whether its chunks were still sought places, which takes a GPU's host longer than later steps.
    """

    number: int
    duration_ns: int
    stall_ns: int | None
    fault_groups: int | None
    typical: bool = True
    settling: bool = False


@dataclass(frozen=True)
class Switch:
    """A change of the rung before the step of that number, or a reason to stay on it.

    Attributes:
        step: the first one on the new rung.
        before: the rung until then; None at the beginning, and the same one where it stays.
        rung: the one from then on.
        reason: reason, with the numbers that it follows from.
    """

    step: int
    before: str | None
    rung: str
    reason: str


def check_threshold(threshold: float) -> float:
    """Checks and returns a threshold: a share of the step (float), or fault groups a step (int).

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
    """Chooses the rung that the next step runs on, among those that there are.

    Attributes:
        rung: the one in force.
        history: every switch, the first choice included.
        measured_ns: a step's time on each rung that was measured, while the step's structure is what it is.
    """

    def __init__(
        self, rung: str, reason: str, *, rungs: Sequence[str] = RUNGS, threshold: float = FAULT_THRESHOLD
    ) -> None:
        """Starts on a rung.

        Args:
            rung: the first one.
            reason: why it is that.
            rungs: those that the device has, from the lowest up.
            threshold: part of a step that stalls may take, or a number of fault groups (`check_threshold`).

        Raises:
            UsageError: the threshold is none, or the rung is none of `rungs`.
        """
        if rung not in rungs:
            raise UsageError(f"no rung {rung!r} here: expected one of {', '.join(rungs)}")
        self.rung = rung
        self.history = [Switch(1, None, rung, reason)]
        self.measured_ns: dict[str, int] = {}
        self._rungs = tuple(rungs)
        self._threshold = check_threshold(threshold)
        self._structures = 0
        self._forget()

    def _forget(self) -> None:
        self.measured_ns.clear()
        self._predicted_ns: dict[str, int] = {}
        self._impossible: set[str] = set()
        self._tried: set[str] = set()  # those that were gone to, and the first one once it was measured
        self._returns_left = 2 * len(self._rungs)
        self._samples = SAMPLES
        self._begin()

    def _begin(self) -> None:
        """On a rung: nothing is known of its steps."""
        self._durations_ns: list[int] = []
        self._over = self._odd = self._settling = 0

    def has(self, rung: str) -> bool:
        """Whether there is such a rung."""
        return rung in self._rungs

    def observe(self, step: StepRecord) -> Switch | None:
        """Takes note of a step; returns the switch that its successor runs after, if there is one."""
        self._odd = 0 if step.typical else self._odd + 1
        if not step.typical and self._odd <= MOST_ODD:
            return None
        self._settling += step.settling
        if step.settling and self._settling <= MOST_SETTLING:
            return None
        excess = self._excess(step)
        if step.stall_ns is not None:
            self._over = self._over + 1 if excess is not None else 0
        self._durations_ns.append(step.duration_ns)
        if len(self._durations_ns) < WARM_UP + self._samples:
            return None
        self._durations_ns = self._durations_ns[-WARM_UP - self._samples :]
        here_ns = self.measured_ns[self.rung] = int(median(self._durations_ns[WARM_UP:]))
        self._tried.add(self.rung)
        return self._return(step.number + 1, here_ns) or self._try(step.number + 1, here_ns, excess)

    def _return(self, step: int, here_ns: int) -> Switch | None:
        """To the fastest rung that was measured, where that is another one."""
        if len(self.measured_ns) == 1:
            return None
        known = [rung for rung in self._possible() if rung in self.measured_ns]
        best = min(known, key=lambda rung: self.measured_ns[rung], default=self.rung)
        best_ns = self.measured_ns[best]
        if best == self.rung or here_ns <= best_ns * (1 + HYSTERESIS) or self._returns_left == 0:
            return None
        self._returns_left -= 1
        self._samples = min(2 * self._samples, MOST_SAMPLES)
        reason = f"a step takes {here_ns / 1e6:.1f} ms on {self.rung}, and took {best_ns / 1e6:.1f} ms on {best}"
        return self._to(step, best, reason)

    def _try(self, step: int, here_ns: int, excess: str | None) -> Switch | None:
        """What has not been measured and may be faster."""
        untried = [rung for rung in self._possible() if rung not in self._tried]
        if not untried:
            return None
        better = [rung for rung in untried if self._predicted_ns.get(rung, here_ns) * (1 + HYSTERESIS) < here_ns]
        if better:
            rung = min(better, key=lambda each: self._predicted_ns[each])
            predicted_ns = self._predicted_ns[rung]
            reason = f"a step takes {here_ns / 1e6:.1f} ms on {self.rung}, {rung} is predicted {predicted_ns / 1e6:.1f}"
            return self._to(step, rung, f"{reason} ms")
        above = [rung for rung in untried if self._rungs.index(rung) > self._rungs.index(self.rung)]
        if excess is None or self._over < PATIENCE or not above:
            return None
        return self._to(step, above[0], f"{excess}, {self._over} steps in a row")

    def choose(self, step: int, predicted_ns: Mapping[str, int]) -> Switch | None:
        """Goes to, or stays on, the rung whose step is the shortest; among those nearly as short, the lowest.

        Args:
            step: number of the step that runs there first.
            predicted_ns: step times by rung; those that are not there cannot be chosen. A measured one beats them.
        """
        self._predicted_ns = dict(predicted_ns)
        known = {
            rung: self.measured_ns.get(rung, predicted_ns[rung])
            for rung in self._possible()
            if rung in predicted_ns and (rung == self.rung or rung not in self._tried or self._returns_left > 0)
        }
        if not known:
            return None
        best_ns = min(known.values())
        chosen = next(rung for rung, time_ns in known.items() if time_ns <= best_ns * (1 + WORTH))
        if chosen in self._tried and chosen != self.rung:
            self._returns_left -= 1
        times = ", ".join(
            f"{rung} {time_ns / 1e6:.1f} ms" + (" as measured" if rung in self.measured_ns else "")
            for rung, time_ns in known.items()
        )
        return self._to(step, chosen, f"predicted steps: {times}")

    def go(self, step: int, rung: str, reason: str) -> Switch | None:
        """Goes to a rung because of a fact; nowhere when it is there already, or was there and left."""
        if rung == self.rung or rung in self._tried or rung not in self._possible():
            return None
        return self._to(step, rung, reason)

    def exclude(self, rungs: Iterable[str]) -> None:
        """Excludes rungs on which the step cannot run or be predicted, until the step changes."""
        self._impossible.update(rungs)

    def retreat(self, step: int, rung: str, impossible: Iterable[str], reason: str) -> Switch:
        """Goes to a rung because others refused the step, and excludes those until the step changes."""
        self.exclude(impossible)
        return self._to(step, rung, reason)

    def take_back(self, switch: Switch, reason: str) -> Switch:
        """Undoes a switch that could not be made: the rung before it stays."""
        assert switch.before is not None
        self._impossible.add(switch.rung)
        return self._to(switch.step, switch.before, reason)

    def renew(self, rung: str) -> None:
        """Forgets what was measured on a rung, because its steps have a better plan from now on."""
        self.measured_ns.pop(rung, None)
        if rung == self.rung:
            self._begin()
        else:
            self._tried.discard(rung)

    def restructure(self) -> None:
        """Forgets what was measured and predicted, because the step is another one from now on.

        Where that happens again and again, no step is like another, and what was measured is as true as can be.
        """
        if self._structures < MOST_STRUCTURES:
            self._structures += 1
            self._forget()

    def begin_again(self) -> None:
        """Forgets all that was counted: another loop runs from now on, whose steps may change as often."""
        self._structures = 0
        self._forget()

    def _possible(self) -> list[str]:
        return [rung for rung in self._rungs if rung not in self._impossible]

    def _to(self, step: int, rung: str, reason: str) -> Switch:
        switch = Switch(step, self.rung, rung, reason)
        self.history.append(switch)
        if rung != self.rung:
            self._tried.add(rung)
            self._begin()
        self.rung = rung
        return switch

    def _excess(self, step: StepRecord) -> str | None:
        """In words, how the step is above the threshold; None when it is not."""
        if isinstance(self._threshold, int):
            if step.fault_groups is None or step.fault_groups <= self._threshold:
                return None
            return f"{step.fault_groups} fault groups a step, more than {self._threshold}"
        share = (step.stall_ns or 0) / step.duration_ns if step.duration_ns > 0 else 0.0
        if share <= self._threshold:
            return None
        return f"stalls took {share:.1%} of the step, more than {self._threshold:.1%}"
