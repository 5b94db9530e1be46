"""Which steps are recorded, and which only run."""

MOST_UNSTEADY = 3
"""Recordings of steps that are not steady before one is taken as it is."""
PATIENCE = 3
"""Steps in a row that leave their plans before steps are recorded more rarely."""
LONGEST_PAUSE = 64


class Rhythm:
    """Decides which steps are recorded; a pure state machine.

    Attributes:
        due: whether the next step is recorded.
    """

    def __init__(self) -> None:
        self.due = True
        self._unsteady = 0
        self._left = 0
        self._pause = 0

    def planned(self) -> None:
        """Takes note that a recorded step was planned and drives from now on."""
        self.due, self._unsteady = False, 0

    def unsteady(self) -> bool:
        """Takes note that a recorded step is not like the next ones; returns whether to record the next one instead."""
        self._unsteady += 1
        self.due = self._unsteady < MOST_UNSTEADY
        return self.due

    def followed(self) -> None:
        """Takes note that a plan drove a step to its end."""
        self.due, self._left, self._pause = False, 0, 0

    def left(self) -> int | None:
        """Takes note that a step left its plan; returns the pause in steps before the next recording, if any."""
        self._left += 1
        if self._left < PATIENCE:
            self.due = True
            return None
        self._pause = min(2 ** (self._left - PATIENCE + 1), LONGEST_PAUSE)
        self.due = False
        return self._pause

    def passed(self) -> None:
        """Takes note of a step that nothing drove and nobody recorded."""
        if self._pause > 0:
            self._pause -= 1
            self.due = self._pause <= 1

    def again(self) -> None:
        """Forgets everything, as at the beginning."""
        self.__init__()  # type: ignore[misc]
