"""Free memory at each moment of a step that repeats: who plans takes some for a range of moments."""

import numpy as np
from numpy.typing import NDArray


class Room:
    """The amount that is free at each moment of a step that repeats.

    A range [first, end) may reach beyond the last moment, into the next step, but is no longer than one step.
    """

    def __init__(self, free: NDArray[np.int64]) -> None:
        """Takes the bytes or blocks that are free at each moment."""
        self._count = len(free)
        self._free = np.concatenate([free, free])  # of this step and the next one, which are always equal

    def left(self) -> NDArray[np.int64]:
        """What is free at each moment."""
        return self._free[: self._count]

    def take(self, first: int, end: int, amount: int) -> None:
        """Takes an amount at each moment of a range."""
        for shift in (-self._count, 0, self._count):
            self._free[max(first + shift, 0) : max(end + shift, 0)] -= amount

    def since(self, first: int, end: int, amount: int) -> int:
        """The earliest moment, not before `first`, from which on there is so much up to `end`; `end` where none is."""
        short = np.flatnonzero(self._free[first:end] < amount)
        return first + int(short[-1]) + 1 if len(short) else first
