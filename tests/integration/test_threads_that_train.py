"""Loops that run in another thread than the one that began: their steps are the run's, planned and in the budget."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import pytest
import torch
from torch import nn

import umadvise
from umadvise._native.abi import SwapCounters
from umadvise.records.enums import Role
from umadvise.torch_seam import runtime
from umadvise.torch_seam.runtime import on_device
from umadvise.training.script import ScriptRun

WIDTH = 512
COUNT = 10


class Trained:
    """Eight layers of 1 MiB with Adam: some 60 MiB with their gradients, averages and activations."""

    def __init__(self) -> None:
        torch.manual_seed(2)
        self.model = nn.Sequential(*(each for _ in range(8) for each in (nn.Linear(WIDTH, WIDTH), nn.GELU())))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.random = torch.Generator().manual_seed(3)
        self.losses: list[float] = []
        self.counted: list[SwapCounters] = []

    def train(self, step: Callable[[], AbstractContextManager[object]] = nullcontext, count: int = COUNT) -> None:
        for _ in range(count):
            with step():
                loss = self.model(torch.randn(1024, WIDTH, generator=self.random)).square().mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            self.losses.append(loss.item())
            if runtime.is_patched():
                self.counted.append(runtime.current().device.swap_counters())


def in_thread(function: Callable[[], object]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def expected(count: int = COUNT) -> list[float]:
    trained = Trained()
    trained.train(count=count)
    return trained.losses


def check_steady(trained: Trained) -> None:
    """Of the last four steps: plans drive them, though one may be exchanged for a better one meanwhile."""
    before, after = trained.counted[-5], trained.counted[-1]
    assert after.programs_followed - before.programs_followed >= 3
    assert after.swap_ins - before.swap_ins > 10 * (after.on_demand_swap_ins - before.on_demand_swap_ins)


def test_a_script_may_train_in_a_thread() -> None:
    with ScriptRun(umadvise.EmulatedDevice(capacity="256MiB"), "40MiB", "swap", "script.py"):
        trained = Trained()
        in_thread(trained.train)
        kept = [each for state in trained.optimizer.state.values() for each in state.values() if each.dim() > 0]
        assert all(on_device(each) for each in kept)
        check_steady(trained)
        main_trained = Trained()
        main_trained.train()
        assert runtime.current().thread is runtime.this_thread()
        check_steady(main_trained)
    assert trained.losses == main_trained.losses == expected()


@pytest.mark.parametrize("marked", [True, False])
def test_a_session_may_be_trained_in_threads(marked: bool) -> None:
    """In one after the other, which may have the same address of everything."""
    trained = Trained()
    device = umadvise.EmulatedDevice(capacity="256MiB")
    with umadvise.session(trained.model, trained.optimizer, device=device, budget="40MiB", policy="swap") as um:
        for _ in range(2):
            in_thread(lambda: trained.train(um.step if marked else nullcontext))
            check_steady(trained)
        memory = um.profile().memory
        assert memory is not None
        assert memory.requested_peak_bytes > 55 << 20
    assert trained.losses == expected(2 * COUNT)


def test_an_evaluation_beside_is_no_loop_while_the_main_thread_trains() -> None:
    """Its calls come between those of the training."""
    with ScriptRun(umadvise.EmulatedDevice(capacity="256MiB"), "40MiB", "swap", "script.py"):
        trained, other, ended = Trained(), Trained(), threading.Event()
        found: set[float] = set()

        def evaluate() -> None:
            with torch.no_grad():
                while not ended.wait(0.001):
                    found.add(other.model(torch.ones(64, WIDTH)).sum().item())

        thread = threading.Thread(target=evaluate)
        thread.start()
        trained.train()
        ended.set()
        thread.join()
        assert len(found) == 1
    assert trained.losses == expected()


def test_what_is_lent_to_a_thread_ends_with_the_session() -> None:
    """A pool's thread lives on; what it makes then is ordinary, and the next session's loop is its own thread's."""
    umadvise.patch(device=umadvise.EmulatedDevice(capacity="256MiB"))
    try:
        with ThreadPoolExecutor(1) as pool:
            trained = Trained()
            with umadvise.session(trained.model, trained.optimizer, budget="40MiB", policy="swap") as um:
                pool.submit(trained.train, um.step, 4).result()
                assert pool.submit(lambda: on_device(torch.ones(2))).result()
            assert not pool.submit(lambda: on_device(torch.ones(2))).result()
            assert on_device(torch.ones(2))
            weights = [torch.ones(WIDTH, WIDTH) for _ in range(8)]
            with umadvise.session([], budget="16MiB", policy="swap") as um:
                for _ in range(12):
                    value = torch.ones(8, WIDTH)
                    for weight in weights:
                        value = value @ weight
                assert um.profile().step_count > 6
    finally:
        umadvise.unpatch()


def test_a_thread_whose_ops_nobody_sees_is_not_followed() -> None:
    """One that was started before: what it makes would never leave."""
    go, made = threading.Event(), list[bool]()
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(8)))

    def serve() -> None:
        go.wait()
        with torch.no_grad():
            made.extend(on_device(model(torch.ones(8, WIDTH))) for _ in range(20))

    thread = threading.Thread(target=serve)
    thread.start()
    with umadvise.session(model, device=umadvise.EmulatedDevice(capacity="256MiB"), policy="swap"):
        go.set()
        thread.join()
        assert runtime.current().thread is runtime.this_thread()
    assert made == [False] * 20


def test_what_a_thread_beside_makes_was_made_by_no_op_of_the_step() -> None:
    """A loader that puts batches on the device, whenever it comes to it."""
    trained, batches = Trained(), queue.Queue[torch.Tensor](1)
    device = umadvise.EmulatedDevice(capacity="256MiB")
    with umadvise.session(trained.model, device=device, policy="swap", record=True) as um:

        def load() -> None:
            for _ in range(COUNT):
                batches.put(um.to_device(torch.randn(1024, WIDTH)))

        thread = threading.Thread(target=load)
        thread.start()
        for _ in range(COUNT):
            with um.step():
                trained.model(batches.get()).square().mean().backward()
        thread.join()
        trace = um.trace()
    inputs = np.flatnonzero(trace.storages.role == Role.INPUT)
    assert len(inputs) >= COUNT
    made = trace.accesses.op == trace.births[trace.accesses.storage]
    assert not np.isin(trace.accesses.storage[made], inputs).any()
