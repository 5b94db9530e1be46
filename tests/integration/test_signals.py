"""SIGSEGV belongs to the emulated device first: whoever else takes it gets what is not the device's."""

import ctypes
import logging
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from small_networks import same_bits
from torch import nn
from usable_policies import RUNGS

import umadvise

MIB = 1 << 20
Run = Callable[..., "subprocess.CompletedProcess[str]"]
START = """
import ctypes, faulthandler, os, signal, sys, torch, umadvise
from signal import signal as taken_before
umadvise.patch(device=umadvise.EmulatedDevice(capacity='16MiB'))
x = torch.zeros(8 << 20)
def touch():  # twice the device's memory: most of its pages are away
    x.add_(1)
    return float(x[5])
heard = []
def hear(number, frame):
    heard.append(number)
"""


def test_handlers_that_python_sets_come_after_the_devices(python: Run) -> None:
    finished = python(
        START
        + """
before = signal.getsignal(signal.SIGSEGV)
signal.signal(signal.SIGSEGV, before)
assert touch() == 1
for handler in (signal.SIG_DFL, signal.SIG_IGN, hear, signal.SIG_DFL):
    signal.signal(signal.SIGSEGV, handler)
    assert signal.getsignal(signal.SIGSEGV) == handler
    touch()
assert taken_before(signal.SIGSEGV, hear) == signal.SIG_DFL
touch()
faulthandler.enable(); touch(); faulthandler.disable(); touch()
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the kernel kills a thread that faults so
touch()
signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
umadvise.unpatch()
signal.signal(signal.SIGSEGV, signal.SIG_DFL)
print(touch())  # tensors outlive the patch
"""
    )
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "10.0\n", "")


@pytest.mark.parametrize("set_when", ["before", "after"])
def test_raised_signals_reach_a_handler_of_the_user(set_when: str, python: Run) -> None:
    early, late = ("signal.signal(11, hear)\n", "") if set_when == "before" else ("", "signal.signal(11, hear)\n")
    start = START.replace("umadvise.patch", f"def hear(*a): heard.append(a[0])\n{early}umadvise.patch", 1)
    finished = python(
        start
        + late
        + """
touch()
signal.raise_signal(signal.SIGSEGV)
os.kill(os.getpid(), signal.SIGSEGV)
touch()
print(heard)
"""
    )
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "[11, 11]\n", "")


def test_a_crash_goes_to_whom_it_would_go_to(python: Run) -> None:
    """Of what Python sets, the last one; a handler that was switched off is not asked for ever."""
    crash = "touch()\nprint(touch(), flush=True)\nctypes.string_at(0)"
    for words, said in (
        ("signal.signal(11, signal.SIG_DFL)\n", ""),
        ("faulthandler.enable()\nfaulthandler.disable()\n", ""),
        ("signal.signal(11, signal.getsignal(11))\nfaulthandler.enable()\n", "Fatal Python error: Segmentation fault"),
    ):
        finished = python(START + words + crash)
        assert finished.returncode == -signal.SIGSEGV
        assert finished.stdout == "2.0\n"
        assert finished.stderr.startswith(said)
        assert bool(finished.stderr) == bool(said)


# ---- training -------------------------------------------------------------------------------------------------------


@contextmanager
def trainer() -> Iterator[None]:
    """What Lightning's Trainer does to signals around `fit`, `validate` and `test`: it puts every handler back."""
    numbers = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
    handlers = {number: signal.getsignal(number) for number in numbers}
    signal.signal(signal.SIGTERM, lambda *_: None)
    yield
    for number, handler in handlers.items():
        if handler is not None:
            signal.signal(number, handler)


@contextmanager
def library() -> Iterator[None]:
    """A library that takes the signal in C, and gives back nothing."""
    yield
    take = ctypes.CDLL(None).signal
    take.argtypes, take.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    take(signal.SIGSEGV, None)  # SIG_DFL


def network() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    layers = (nn.Linear(600, 1000), nn.ReLU(), nn.Linear(1000, 600), nn.ReLU(), nn.Linear(600, 1000))
    model = nn.Sequential(*layers)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def fit(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[torch.Tensor]:
    losses = []
    for _ in range(steps):
        loss = model(torch.linspace(-1, 1, 600 * 600).reshape(600, 600)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().clone())
    return losses


@pytest.fixture(scope="module")
def expected() -> list[torch.Tensor]:
    return fit(*network(), 6)


@pytest.fixture
def handler_kept() -> Iterator[None]:
    """This process's own handler, as pytest's faulthandler, for the tests that follow."""
    yield
    umadvise.torch_seam.signals.keep()


@pytest.mark.parametrize("policy", RUNGS)
def test_a_trainer_fits_validates_and_fits_again(policy: str, expected: list[torch.Tensor]) -> None:
    model, optimizer = network()
    found = []
    with umadvise.session(
        model, optimizer, device="emulated", capacity="64MiB" if policy == "resident" else "24MiB", policy=policy
    ) as um:
        for steps in (2, 1, 3):
            with trainer(), um.step():
                found += fit(model, optimizer, 1)
            for _ in range(steps - 1):
                with um.step():
                    found += fit(model, optimizer, 1)
            with trainer(), torch.no_grad():
                model(torch.ones(600, 600))
    assert all(map(same_bits, found, expected))


@pytest.mark.usefixtures("handler_kept")
@pytest.mark.parametrize("policy", ["advise", "swap"])
def test_what_a_library_takes_in_c_is_taken_back_at_the_next_edge(
    policy: str, expected: list[torch.Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    model, optimizer = network()
    found = []
    with (
        caplog.at_level(logging.WARNING, "umadvise"),
        umadvise.session(model, optimizer, device="emulated", capacity="24MiB", policy=policy) as um,
    ):
        for _ in range(6):
            with um.step():
                found += fit(model, optimizer, 1)
                with library():
                    pass
        with library():  # the way out touches tensors too
            pass
    assert all(map(same_bits, found, expected))
    assert sum("handler for SIGSEGV" in line for line in caplog.messages) == 7
