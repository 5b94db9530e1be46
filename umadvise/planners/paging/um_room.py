"""Free blocks at every op of a step that is repeated, of which ranges are taken."""

import numpy as np
from numpy.typing import NDArray

_CHUNK = 256


class Room:
    """Numbers around a circle with range subtraction and range minimum, both in about the square root of its length.

    A range [first, end) may reach beyond the last op, into the next step, but not around the circle.
    """

    def __init__(self, free: NDArray[np.int64]) -> None:
        self.count = len(free)
        chunks = max(-(-self.count // _CHUNK), 1)
        self._values = np.full(chunks * _CHUNK, np.iinfo(np.int64).max // 2)
        self._values[: self.count] = free
        self._low = self._values.reshape(chunks, _CHUNK).min(axis=1)
        self._taken = np.zeros(chunks, np.int64)

    def left(self) -> NDArray[np.int64]:
        """The numbers."""
        every = self._values.reshape(-1, _CHUNK) - self._taken[:, np.newaxis]
        return every.reshape(-1)[: self.count]

    def _pieces(self, first: int, end: int) -> list[tuple[int, int]]:
        """On the circle, the later one first."""
        if first >= self.count:
            return [(first - self.count, end - self.count)]
        if end > self.count:
            return [(0, end - self.count), (first, self.count)]
        return [(first, end)]

    def take(self, first: int, end: int, blocks: int) -> None:
        """Subtracts from each number of a range."""
        for begin, stop in self._pieces(first, end):
            self._take(begin, stop, blocks)

    def _take(self, first: int, end: int, blocks: int) -> None:
        if first >= end:
            return
        low, high = -(-first // _CHUNK), end // _CHUNK  # chunks within
        if low > high:
            low = high = first // _CHUNK
            self._take_within(low, first, end, blocks)
            return
        self._take_within(low - 1, first, low * _CHUNK, blocks)
        self._taken[low:high] += blocks
        self._low[low:high] -= blocks
        self._take_within(high, high * _CHUNK, end, blocks)

    def _take_within(self, chunk: int, first: int, end: int, blocks: int) -> None:
        if first >= end:
            return
        self._values[first:end] -= blocks
        self._low[chunk] = self._values[chunk * _CHUNK : (chunk + 1) * _CHUNK].min() - self._taken[chunk]

    def since(self, first: int, end: int, blocks: int) -> int:
        """The earliest op, not before `first`, from which on there are so many up to `end`; `end` where none is."""
        shift = self.count if end > self.count else 0
        for begin, stop in self._pieces(first, end):
            found = self._last_below(begin, stop, blocks)
            if found >= 0:
                return found + 1 + shift
            shift = 0
        return first

    def _last_below(self, first: int, end: int, blocks: int) -> int:
        while first < end:
            chunk = (end - 1) // _CHUNK
            begin = max(first, chunk * _CHUNK)
            if self._low[chunk] < blocks:
                below = np.flatnonzero(self._values[begin:end] - self._taken[chunk] < blocks)
                if len(below):
                    return begin + int(below[-1])
            # Chunks in which there is enough everywhere are passed over together.
            low = -(-first // _CHUNK)
            short = np.flatnonzero(self._low[low:chunk] < blocks)
            end = (low + int(short[-1]) + 1 if len(short) else min(low, chunk)) * _CHUNK
        return -1
