"""Which steps are recorded, and which only run."""

MOST_UNSTEADY = 3
"""Recordings of steps that are not steady before one is taken as it is."""
PATIENCE = 8
"""Steps that were unlike all before, and were planned, before steps are recorded more rarely."""
PROBATION = 2
"""Steps after a planned one that are recorded too: where each step is another one, each is planned."""
LONGEST_PAUSE = 64


class Rhythm:
    """Decides which steps are recorded; a pure state machine.

    Once a step has come that no program knows, steps are recorded until one such is caught.

    Attributes:
        due: whether the next step is recorded.
    """

    def __init__(self) -> None:
        self.due = True
        self._unsteady = 0
        self._new = 0
        self._pause = 0
        self._left = 0
        self._hunts = True

    def planned(self) -> int | None:
        """Takes note that a recorded step was planned; returns the pause in steps before the next recording, if any."""
        self._new += 1
        self._hunts, self._left = False, PROBATION
        self.due, self._pause = self._new < PATIENCE, 0
        if self.due:
            return None
        self._pause = min(2 ** (self._new - PATIENCE + 1), LONGEST_PAUSE)
        return self._pause

    def expected(self) -> None:
        """Takes note that programs are there before any step was recorded."""
        self._hunts, self._left = False, PROBATION

    def unsteady(self) -> bool:
        """Takes note that a recorded step is not like the next ones; returns whether to record the next one instead."""
        self._unsteady += 1
        self.due = self._unsteady < MOST_UNSTEADY
        return self.due

    def known(self) -> None:
        """Takes note of a step that a program knew."""
        self._new = max(self._new - 1, 0)
        self._pause = max(self._pause - 1, 0)
        self._left -= 1
        self.due = self.due and (self._hunts or self._left > 0)

    def unknown(self) -> None:
        """Takes note of a step that no program knew, and that was not recorded."""
        self._pause = max(self._pause - 1, 0)
        self._hunts = True
        self.due = self._pause == 0

    def again(self) -> None:
        """Forgets everything, as at the beginning."""
        self.__init__()  # type: ignore[misc]
