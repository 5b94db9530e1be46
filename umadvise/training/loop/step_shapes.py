"""What tells that steps have changed for good where nothing is planned, so that no program knows them."""

_SAME_SIZE = 0.01
"""Peaks of steps that differ by less, relative to the larger one, are those of one step."""


class StepShapes:
    """The numbers of ops and the peaks of steps: those of the recorded step, and those of the last one.

    A step that comes once, as one with an evaluation does, changes nothing.
    """

    def __init__(self) -> None:
        """No step has ended."""
        self._recorded: tuple[int, int] | None = None
        self._last = (0, 0)

    def recorded(self) -> None:
        """The last step was recorded, and is the one that all others are taken for."""
        self._recorded = self._last

    def changed(self, op_count: int, peak_bytes: int) -> bool:
        """Takes a step that has ended; returns whether it is as the one before, and not as the recorded one.

        Args:
            op_count: number of its ops.
            peak_bytes: the most bytes of tensors that it had at once.
        """
        shape = op_count, peak_bytes
        as_before, self._last = _alike(shape, self._last), shape
        return self._recorded is not None and as_before and not _alike(shape, self._recorded)


def _alike(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] == other[0] and abs(one[1] - other[1]) <= _SAME_SIZE * other[1]
