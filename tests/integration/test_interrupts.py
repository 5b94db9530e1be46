"""Ctrl-C at the nth call of umadvise's own Python code, in all of a session: torch is as before, and on it goes."""

import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from types import FrameType
from typing import Any

import pytest
import torch
from test_sessions_beside import Trained, learn, network, session, step

import umadvise
from umadvise.torch_seam import runtime
from umadvise.torch_seam.interrupts import signals_held

FULL = os.environ.get("UMADVISE_FULL") == "1"
SAMPLES = 200 if FULL else 8
STEPS = 3


@pytest.fixture(autouse=True)
def sigint(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Python's own handler, which jobs in the background do not have."""
    for switch in ("UMADVISE_PLAN_SEARCH", "UMADVISE_PLAN_CACHE"):
        monkeypatch.setenv(switch, "off")
    threads, before = torch.get_num_threads(), signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, before)


def calls(work: Callable[[], Any], interrupted: int = 0, *, closing: bool = False) -> int:
    """Runs `work`, and counts the calls of functions of umadvise; the process gets SIGINT in one of them.

    Args:
        work: what is run.
        interrupted: number of the call with the signal; 0: none.
        closing: whether only those count that the end of a session makes.
    """
    count, counts = 0, not closing

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count, counts
        if event == "call" and frame.f_globals.get("__name__", "").startswith("umadvise."):
            counts |= frame.f_code.co_name == "_end"
            count += counts
            if counts and count == interrupted:
                signal.raise_signal(signal.SIGINT)

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def hooks() -> list[int]:
    modules, optimizers = sys.modules["torch.nn.modules.module"], sys.modules["torch.optim.optimizer"]
    of_modules = [getattr(modules, each) for each in ("_global_forward_hooks", "_global_forward_pre_hooks")]
    of_optimizers = [getattr(optimizers, f"_global_optimizer_{each}_hooks") for each in ("pre", "post")]
    return list(map(len, of_modules + of_optimizers))


def train(trained: Trained) -> None:
    with session(trained) as um:
        for index in range(STEPS):
            step(um, trained, index)


def reload(trained: Trained, saved: tuple[Any, Any]) -> None:
    trained[0].load_state_dict(saved[0])
    trained[1].load_state_dict(deepcopy(saved[1]))
    trained[1].zero_grad()


def chosen(total: int) -> list[int]:
    """The first call, and others by chance, at least one of them among the last ones, which put torch back."""
    return sorted({1, random.randint(total - 20, total), *random.sample(range(2, total), SAMPLES - 2)})


@pytest.mark.parametrize("closing", [False, True])
def test_a_session_that_is_interrupted_ends_whole(closing: bool) -> None:
    before = torch.Tensor.numpy, torch.Tensor.data_ptr, torch.zeros, torch.nn.Module.to, hooks()
    train(network())
    total = calls(lambda: train(network()), closing=closing)
    hits = 0
    for number in chosen(total):
        trained, reference = network(), network()
        learn(trained, 0)
        learn(reference, 0)
        saved = deepcopy((trained[0].state_dict(), trained[1].state_dict()))
        try:
            calls(partial(train, trained), number, closing=closing)
        except KeyboardInterrupt:
            hits += 1
        assert not runtime.is_patched(), number
        assert not umadvise.on_device(torch.ones(3)), number
        assert not any(map(umadvise.on_device, trained[0].parameters())), number
        assert before == (torch.Tensor.numpy, torch.Tensor.data_ptr, torch.zeros, torch.nn.Module.to, hooks()), number
        reload(trained, saved)
        losses = [learn(trained, 1)]
        with session(trained) as um:
            losses.append(step(um, trained, 2))
        assert losses == [learn(reference, 1), learn(reference, 2)], number
    assert hits > 0


def test_a_session_goes_on_after_a_step_that_was_interrupted() -> None:
    """As in a notebook: the cell ends, the user loads a checkpoint, and trains on."""
    trained, reference = network(), network()
    hits = 0
    with session(trained) as um:
        for index in range(STEPS):
            assert step(um, trained, index) == learn(reference, index)
        saved = deepcopy((reference[0].state_dict(), reference[1].state_dict()))
        total = calls(lambda: step(um, trained, 0))
        for number in chosen(total):
            reload(trained, saved)
            try:
                calls(lambda: step(um, trained, 0), number)
            except KeyboardInterrupt:
                hits += 1
            reload(trained, saved)
            reload(reference, saved)
            losses = [step(um, trained, index) for index in range(2)]
            assert losses == [learn(reference, index) for index in range(2)], number
        assert um.swap_counters().swap_ins > 0
        assert um.swap_counters().used_peak_bytes <= 16 << 20
    assert hits > 0
    assert not runtime.is_patched()


def test_a_second_interrupt_counts_at_once() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), signals_held():
        signal.raise_signal(signal.SIGINT)
        done.append(1)
    with pytest.raises(KeyboardInterrupt), signals_held():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        done.append(2)
    assert done == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
