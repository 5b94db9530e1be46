"""Which of what has come takes the place of what is gone."""

from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

Likeness: TypeAlias = tuple[int, int, int | str]
"""Role, bytes and name."""

_NEAR = 0.25
"""Part of its size by which what takes a storage's place may be larger or smaller."""


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


def near_heirs(gone: Sequence[Likeness], come: Sequence[Likeness]) -> dict[int, int]:
    """Pairs places in two lists, in order: those of the same role and about the same size."""
    found: dict[int, int] = {}
    free = list(range(len(come)))
    for place, (role, bytes_, _) in enumerate(gone):
        near = (each for each in free if come[each][0] == role and abs(come[each][1] - bytes_) <= _NEAR * bytes_)
        heir = next(near, None)
        if heir is not None:
            found[place] = heir
            free.remove(heir)
    return found
