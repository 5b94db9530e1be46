"""Which chunks lie under the stays of a step: random circles beside brute force, and a step whose time is known."""

import dataclasses

import numpy as np
import pytest
from pool_layout import ChunkLayout, Stays
from pool_memory import CHUNK_BYTES, AliasedRanges, BestFit, Exact, Moment, PoolMemory, RemappedRanges
from pool_replay import PoolFullError, Replay
from timed_steps import GIB, OP_NS, V100, maps

from umadvise.records.plan import Plan
from umadvise.records.trace import Trace

STAYS = 16


def circle(seed: int, *, spanning: bool = True) -> Stays:
    """Stays that begin and end at random ticks of a step, with times of the device that come somewhat later."""
    chance = np.random.default_rng(seed)
    ticks = chance.permutation(2 * STAYS).reshape(STAYS, 2).astype(float)
    if not spanning:
        ticks.sort(axis=1)
    ticks = ticks[np.argsort(ticks[:, 0])]
    ticks[:, 1] += 2 * STAYS * (ticks[:, 1] < ticks[:, 0])
    times = 1e3 * ticks + chance.uniform(0, 5e3, ticks.shape)
    begin, end = np.stack([ticks, times]).transpose(2, 0, 1)
    bytes_ = chance.integers(1, 6 * CHUNK_BYTES, STAYS)
    length = np.array([2.0 * STAYS, 2e3 * STAYS])
    return Stays(begin, end, bytes_, length, fixed_bytes=0, first_take=0, budget_bytes=0)


def with_room(stays: Stays) -> Stays:
    """The same in a budget of their load."""
    small = np.where(stays.small, stays.bytes, 0)
    return dataclasses.replace(stays, budget_bytes=stays.load(stays.chunks) * CHUNK_BYTES + stays.load(small))


@pytest.mark.parametrize("predicted", [False, True])
@pytest.mark.parametrize("seed", range(50))
def test_a_chunk_is_never_under_two_stays_that_meet(seed: int, predicted: bool) -> None:
    stays = circle(seed)
    layout = ChunkLayout(with_room(stays), predicted=predicted)
    held: set[tuple[int, int]] = set()
    for stay, chunks in enumerate(layout.chunks):
        assert len(set(chunks)) == len(chunks) == stays.chunks[stay]
        ticks = range(int(stays.begin[0, stay]), int(stays.end[0, stay]))
        its = {(tick % (2 * STAYS), chunk) for tick in ticks for chunk in chunks.tolist()}
        assert not its & held
        held |= its
    assert {chunk for _, chunk in held} <= set(range(layout.count))


@pytest.mark.parametrize("predicted", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_only_stays_that_span_the_edge_cost_more_than_the_load(seed: int, predicted: bool) -> None:
    inside = circle(seed, spanning=False)
    assert ChunkLayout(with_room(inside), predicted=predicted).count == inside.load(inside.chunks)
    stays = circle(seed)
    own = stays.chunks[stays.end[0] > stays.length[0]].sum()
    assert stays.load(stays.chunks) <= ChunkLayout(stays, predicted=predicted).count <= own + stays.load(stays.chunks)


def test_a_stay_of_more_than_a_step_is_refused() -> None:
    stays = circle(0)
    stays.end[0, 0] += stays.length[0]
    with pytest.raises(ValueError, match="steady step"):
        ChunkLayout(stays)


def unplanned(trace: Trace, memory: PoolMemory) -> Replay:
    return Replay(trace, V100, Plan.from_actions(trace, [], "none", 5 * GIB), memory)


@pytest.mark.parametrize("kind", [Exact, RemappedRanges, AliasedRanges])
def test_copies_hide_behind_ops_of_a_second(kind: type[Exact | RemappedRanges | AliasedRanges]) -> None:
    """Two of six maps leave for others, a weight stays: room is given seconds before it is needed."""
    step = unplanned(maps(6), kind(5 * GIB)).steps[-1]
    assert step.ns == pytest.approx(12 * OP_NS)
    assert (step.evictions, step.chunks, step.host_waits) == (2, 0, 0)


@pytest.mark.parametrize("predicted", [False, True])
def test_a_layout_of_the_load_costs_no_time(predicted: bool) -> None:
    trace = maps(6)
    stays = Stays.of(unplanned(trace, Exact(5 * GIB)), 5 * GIB)
    layout = ChunkLayout(stays, predicted=predicted)
    assert stays.fixed_bytes == GIB
    assert layout.count == stays.budget_chunks == stays.load(stays.chunks) == 4 * GIB // CHUNK_BYTES
    assert unplanned(trace, layout.memory()).steps[-1].ns == pytest.approx(12 * OP_NS)


def test_one_pool_has_holes_until_they_touch() -> None:
    pool = BestFit(3 * GIB)
    first, second, third = (pool.take(GIB) for _ in range(3))
    pool.give(first, Moment(1.0))
    pool.give(third, Moment(3.0))
    assert pool.fits(GIB) and not pool.fits(2 * GIB)
    pool.give(second, Moment(2.0))
    assert pool.take(2 * GIB).ready_ns == 2.0


def test_an_op_that_cannot_fit_is_told() -> None:
    with pytest.raises(PoolFullError, match="op 0: no room for 1024 MiB"):
        unplanned(maps(1), Exact(3 * GIB // 2))
