"""Cutting one step out of a trace of several: lives, bytes and successors of a hand-made loop."""

import numpy as np
import pytest

from umadvise.errors import UsageError
from umadvise.recording import cut
from umadvise.recording.builder import TraceBuilder
from umadvise.records.enums import Role
from umadvise.records.trace import Access, EventKind, Trace

WEIGHT_BYTES, BATCH_BYTES, HIDDEN_BYTES = 4096, 1024, 2048


def three_steps() -> Trace:
    """A weight, a batch that is replaced between steps, and a gradient that is dropped at the next step's beginning."""
    build = TraceBuilder()
    weight = build.allocate(WEIGHT_BYTES, Role.PARAMETER, "weight")
    batch, gradient = -1, -1
    for step in (1, 2, 3):
        if batch >= 0:
            build.free(batch)
        batch = build.allocate(BATCH_BYTES, Role.INPUT)
        build.event(EventKind.HOST_WRITE, batch, 0, BATCH_BYTES)
        if gradient >= 0:
            build.free(gradient)
        build.begin_op("forward", step=step)
        build.access(weight, Access.READ)
        build.access(batch, Access.READ)
        hidden = build.allocate(HIDDEN_BYTES, Role.INTERMEDIATE)
        build.access(hidden, Access.WRITE | Access.WHOLE)
        build.end_op()
        build.begin_op("backward", step=step)
        build.access(hidden, Access.READ)
        gradient = build.allocate(WEIGHT_BYTES, Role.GRADIENT, "weight.grad")
        build.access(gradient, Access.WRITE | Access.WHOLE)
        build.end_op()
        build.free(hidden)
        build.begin_op("log", step=0)
        build.end_op()
    return build.finish(target="cpu", source="synthetic")


def names(trace: Trace) -> list[str]:
    return [trace.op(index).name for index in range(len(trace.ops))]


def test_a_step_goes_up_to_the_next_ones_first_op() -> None:
    second = cut.step(three_steps(), 2)
    assert names(second) == ["forward", "backward", "log"]
    assert set(second.ops.step.tolist()) == {1}


def test_what_dies_is_succeeded_by_what_stays() -> None:
    """Between two steps the batch and the gradient die; without edges that belongs to the earlier step."""
    second = cut.step(three_steps(), 2)
    alive = np.flatnonzero(second.births < 0)
    assert sorted(second.storages.bytes[alive].tolist()) == [BATCH_BYTES, WEIGHT_BYTES]
    (batch,) = alive[second.storages.role[alive] == Role.INPUT]
    heir = second.storages.successor[batch]
    assert second.storages.role[heir] == Role.INPUT
    assert second.deaths[heir] == len(second.ops)
    gradient = np.flatnonzero(second.storages.role == Role.GRADIENT)
    assert second.deaths[gradient].tolist() == [2]


def test_edges_say_what_belongs_to_the_step() -> None:
    """With the frees and the new batch after the edge, they are what the step begins with."""
    whole = three_steps()
    freed = np.flatnonzero((whole.events.kind == EventKind.FREE) & (whole.storages.role[whole.events.storage] == 1))
    second = cut.step(whole, 2, int(freed[0]), int(freed[1]))
    roles = second.storages.role[second.births < 0].tolist()
    assert sorted(roles) == [Role.PARAMETER, Role.INPUT, Role.INPUT, Role.GRADIENT]  # the new batch is made at op -1
    dying = np.flatnonzero((second.births < 0) & (second.deaths < len(second.ops)))
    assert len(dying) == 2
    assert (second.storages.successor[dying] >= 0).all()
    assert second.events.bytes[second.events.kind == EventKind.HOST_WRITE].tolist() == [BATCH_BYTES]


def test_live_bytes_of_the_cut_are_those_of_the_whole() -> None:
    whole = three_steps()
    assert cut.step(whole, 2).peak_bytes == whole.peak_bytes


@pytest.mark.parametrize("number", [0, 4, -1])
def test_no_such_step(number: int) -> None:
    with pytest.raises(UsageError, match=f"no step {number}: it has steps 1 to 3"):
        cut.step(three_steps(), number)
