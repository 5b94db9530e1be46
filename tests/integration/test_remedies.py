"""Before umadvise refuses an op or an allocation, it runs each remedy of one table once, in the table's order."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta

import numpy as np
import pytest
import torch
from torch import distributed

import umadvise
from umadvise import _native
from umadvise._native.abi import Status
from umadvise.torch_seam import runtime
from umadvise.training.session import Session

MIB = 1 << 20


@pytest.fixture
def um() -> Iterator[Session]:
    """A session outside of steps, whose chunks hold 24 MiB."""
    device = umadvise.EmulatedDevice("64MiB")
    with umadvise.session([], device=device, budget=24 * MIB, policy="swap") as opened:
        yield opened
        _native.set_rescuer(None)


def numbers(um: Session, size_bytes: int) -> torch.Tensor:
    """Ones on the device; the first op that reads them swaps them in."""
    return um.to_device(torch.ones(size_bytes // 4))


def negated(um: Session) -> Callable[[], torch.Tensor]:
    """An op whose operand takes 16 MiB."""
    operand = numbers(um, 16 * MIB)
    return lambda: operand.neg_()


def repeated(um: Session) -> Callable[[], torch.Tensor]:
    """An op whose operand fits beside 12 MiB, and whose result does not."""
    operand = numbers(um, 4 * MIB)
    return lambda: -operand.expand(4, -1)


REFUSED = pytest.mark.parametrize("make", [negated, repeated])


@REFUSED
def test_what_a_rescuer_frees_is_enough_for_a_second_attempt(
    um: Session, make: Callable[[Session], Callable[[], torch.Tensor]]
) -> None:
    run, calls = make(um), []
    with ExitStack() as stack:
        stack.enter_context(umadvise.held(numbers(um, 12 * MIB)))

        def rescue() -> bool:
            calls.append(1)
            stack.close()
            return True

        _native.set_rescuer(rescue)
        made = run()
    assert calls == [1]
    assert bool((made == -1).all())


@REFUSED
@pytest.mark.parametrize("says_it_helped", [True, False])
def test_a_rescuer_that_does_not_help_is_asked_once(
    um: Session, make: Callable[[Session], Callable[[], torch.Tensor]], *, says_it_helped: bool
) -> None:
    run, calls = make(um), []

    def rescue() -> bool:
        calls.append(1)
        return says_it_helped

    _native.set_rescuer(rescue)
    with umadvise.held(numbers(um, 12 * MIB)), pytest.raises(torch.OutOfMemoryError, match="no room for aten::neg"):
        run()
    assert calls == [1]


def two_ranks() -> list[distributed.ProcessGroup]:
    """Both ranks of a group, in this process."""
    store = distributed.HashStore()

    def made(rank: int) -> distributed.ProcessGroup:
        gloo = distributed.ProcessGroupGloo(store, rank, 2, timedelta(seconds=60))
        group = distributed.ProcessGroup(store, rank, 2)
        group._register_backend(torch.device("cpu"), distributed.ProcessGroup.BackendType.GLOO, gloo)
        return group

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(made, range(2)))


@REFUSED
def test_collective_work_is_waited_for_before_a_rescuer_is_asked(
    um: Session, make: Callable[[Session], Callable[[], torch.Tensor]]
) -> None:
    """The other rank joins as soon as the op was refused: its refusal evicts, or counts as a failure."""
    (own, other), run, asked = two_ranks(), make(um), []
    device = runtime.current().device
    given, idle, others = numbers(um, 12 * MIB), numbers(um, 4 * MIB), torch.from_numpy(np.ones(3 * MIB, np.float32))
    idle.mul_(2)
    _native.set_rescuer(lambda: bool(asked.append(1)))

    def refusals() -> tuple[int, int]:
        return device.memory_history().failure_count, device.swap_counters().swap_outs

    def join_when_refused() -> None:
        while refusals() == before:
            pass
        other.allreduce([others]).wait()

    with ThreadPoolExecutor(1) as pool:
        work = own.allreduce([given])
        before = refusals()
        joined = pool.submit(join_when_refused)
        made = run()
        joined.result()
    work.wait()
    assert asked == []
    assert bool((made == -1).all())
    assert bool((given == 2).all())


def test_ops_at_the_edge_of_a_step_are_seen_and_begin_no_step(
    device: _native.Device, route: Callable[..., None]
) -> None:
    route()
    weights = [torch.ones(1 << 18) for _ in range(12)]
    edges, within, seen = 0, [], []

    def edge() -> Status:
        """Runs the ops of two rounds, each of which begins with the op that the edge was found at."""
        nonlocal edges
        edges += 1
        if within:
            return Status.BAD_STATE
        within.append(edges)
        before = device.counters().op_count
        for weight in 2 * weights:
            weight.mul_(2)
        seen.append(device.counters().op_count - before)
        within.clear()
        return Status.OK

    _native.set_edge(edge)
    _native.interpose(device)
    device.find_steps(True)
    try:
        for _ in range(8):
            for weight in weights:
                weight.mul_(0.5)
    finally:
        device.find_steps(False)
        _native.interpose(None)
        _native.set_edge(None)
    assert edges > 2
    assert seen == [2 * len(weights)] * edges
    assert all(bool((weight == 4.0**edges / 2.0**8).all()) for weight in weights)
