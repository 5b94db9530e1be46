"""Which of what has come takes the place of what is gone."""

from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

Likeness: TypeAlias = tuple[int, int, int | str]
"""Role, bytes and name."""


def heirs(gone: Sequence[Likeness], come: Sequence[Likeness]) -> dict[int, int]:
    """Pairs places in two lists, in order: those alike in all, and of what is left those alike in role and bytes."""
    found: dict[int, int] = {}
    for width in (3, 2):
        taken = set(found.values())
        free: defaultdict[tuple[int | str, ...], list[int]] = defaultdict(list)
        for place in reversed(range(len(come))):
            if place not in taken:
                free[come[place][:width]].append(place)
        for place, likeness in enumerate(gone):
            if place not in found and free[likeness[:width]]:
                found[place] = free[likeness[:width]].pop()
    return found
