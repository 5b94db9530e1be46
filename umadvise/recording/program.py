"""What happens to memory inside one op."""

from collections.abc import Sequence
from typing import Literal

Step = tuple[Literal["+", "-", "="], int]
"""("+", bytes) allocates scratch, ("-", n) frees the n-th scratch of the op, ("=", n) allocates its n-th result.

Scratch counts from 1, results from 0; results that are not named are allocated last.
"""
Program = Sequence[Step]
