"""What one op does to memory on its way: scratch that it takes and gives back, and when its results are made."""

from collections.abc import Sequence
from typing import Literal

ScratchStep = tuple[Literal["+", "-", "="], int]
"""("+", bytes) allocates scratch, ("-", n) frees the n-th scratch of the op, ("=", n) allocates its n-th result.

Scratch counts from 1, results from 0; results that are not named are allocated last.
"""
Scratch = Sequence[ScratchStep]
