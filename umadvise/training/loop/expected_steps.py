"""Steps that are known before they run, until the device has seen which of them comes after which."""

from collections.abc import Iterable

from umadvise import _native
from umadvise.training.loop.programs_known import KnownPrograms
from umadvise.training.plans.planned_step import PlannedStep, best_fit


class ExpectedSteps:
    """Chooses the step that comes next by what is there; one that has come twice in a row ends that."""

    def __init__(self, device: _native.Device, programs: KnownPrograms) -> None:
        """Begins with none.

        Args:
            device: device that runs the steps.
            programs: programs that the device knows.
        """
        self._device = device
        self._programs = programs
        self._steps: list[PlannedStep] = []
        self._chosen: PlannedStep | None = None

    def add(self, steps: Iterable[PlannedStep]) -> None:
        """Gives the device programs of steps, too, each with what it finds at its beginning as far as that is there.

        Args:
            steps: planned steps, recorded in an earlier run, or before they run.
        """
        for each in steps:
            self._programs.add_known(each)
            self._steps.append(each)

    @property
    def any(self) -> bool:
        """Whether there are any."""
        return bool(self._steps)

    def clear(self) -> None:
        """Expects none of them any more."""
        self._steps, self._chosen = [], None

    def before_step(self, *, last_came: bool) -> None:
        """Has the next step begin with the program of the one that fits.

        Args:
            last_came: whether the step that was chosen last has come.
        """
        if not last_came:
            self._steps = [each for each in self._steps if each is not self._chosen]
        chosen = best_fit(self._steps, self._device.allocations()) if self._steps else None
        if chosen is not None and chosen is self._chosen:
            self.clear()
        elif chosen is not None:
            for each in self._steps:
                self._programs.renew(each.step)
            self._programs.expect(chosen.step)
            self._chosen = chosen
