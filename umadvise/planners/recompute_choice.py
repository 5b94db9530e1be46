"""Chooses what is dropped in forward and made again in backward: first what takes the least time for its bytes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from umadvise.planners.gaps import SwapGaps
from umadvise.planners.recomputation import Rerun, Segments, find_rerun, unless_gone
from umadvise.planners.recompute_walk import walk
from umadvise.planners.step_lists import StepLists
from umadvise.records.plan import Action

_WITHOUT_END = 1 << 61
SMALL_BYTES = 1 << 16
"""Least size of what is dropped: for a smaller storage one more op takes longer than its bytes are worth."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A storage that can be made again.

    Attributes:
        storage: index of the storage.
        last: last op of forward that uses the storage.
        following: first op of backward that uses it.
        rerun: ops that make it again when all other storages that live then are on the device.
    """

    storage: int
    last: int
    following: int
    rerun: Rerun


def candidates(step: StepLists) -> list[Candidate]:
    """All storages that can be made again, those first that take the least time for each byte."""
    found = []
    for storage, (last, following) in step.gaps.items():
        if step.sizes[storage] < SMALL_BYTES:
            continue
        alone = Segments({storage: 0}, [0], [True])
        rerun = find_rerun(step, storage, following, unless_gone(step, following), alone)
        if rerun is not None:
            found.append(Candidate(storage, last, following, rerun))
    return sorted(found, key=lambda each: each.rerun.duration_ns / step.sizes[each.storage])


def cheapest(
    gaps: SwapGaps, step: StepLists, known: Sequence[Candidate], budget_bytes: int, share: float, chain_bytes: float
) -> frozenset[int]:
    """Storages to make again, in order, until at every point they take away a share of the excess.

    Args:
        gaps: gaps of the step between uses.
        step: the step as lists.
        known: candidates, in the order of preference: the cheapest first.
        budget_bytes: bytes that tensors may take on the device.
        share: part of what exceeds the budget that recomputation takes away; the rest is for swaps.
        chain_bytes: most bytes of a chain, in which one storage is made again from another that is made again too.
    """
    excess = np.maximum(gaps.kept_bytes - budget_bytes, 0) * share
    chosen: dict[int, int] = {}  # with the bytes of their chains
    for each in known:
        size = step.sizes[each.storage]
        begin, end = int(gaps.points.op_at[each.last]) + 1, int(gaps.points.op_at[each.following])
        if begin >= end or excess[begin:end].max() <= 0:
            continue
        chain = size + sum(chosen.get(needed, 0) for needed in each.rerun.inputs)
        if chain <= chain_bytes:
            chosen[each.storage] = chain
            excess[begin:end] -= size
    return frozenset(chosen)


def recompute_actions(step: StepLists, storages: Iterable[int]) -> list[Action]:
    """Drops and recomputations of these storages, each once; what cannot be made again after all stays."""
    segments = {storage: index for index, storage in enumerate(sorted(storages))}
    count = len(segments)
    return walk(step, Segments(segments, [0] * count, [True] * count), _WITHOUT_END).actions
