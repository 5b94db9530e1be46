"""What the tests of the Python API share: patching with a guaranteed way back, scripts in processes of their own."""

import gc
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import warm_processes

import umadvise
from umadvise import _native
from umadvise._native.abi import Allocation
from umadvise.torch_seam import runtime


@pytest.fixture
def patched() -> Iterator[Callable[..., _native.Device]]:
    """Patches with an emulated device: patched(capacity="64MiB", budget=None, **options of EmulatedDevice)."""

    def patch(capacity: int | str = "64MiB", budget: int | str | None = None, **options: object) -> _native.Device:
        umadvise.patch(device=umadvise.EmulatedDevice(capacity=capacity, **options), budget=budget)
        return runtime.current().device

    yield patch
    if runtime.is_patched():
        umadvise.unpatch()
    gc.collect()


@pytest.fixture
def allocation() -> Callable[[torch.Tensor], Allocation | None]:
    """The allocation of ours that holds a tensor, None where it lies in ordinary memory."""
    return lambda tensor: _native.allocation_at(runtime.address_of(tensor))


def _python(script: str, *words: str, timeout: float = 120, anew: bool = False) -> "subprocess.CompletedProcess[str]":
    interpreter = sys.executable if anew else warm_processes.python()
    command = [interpreter, "-c", textwrap.dedent(script), *words]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, env=environment)


@pytest.fixture
def unpatched() -> Iterator[None]:
    """Ends what a test has patched and left so."""
    yield
    if runtime.is_patched():
        umadvise.unpatch()


@pytest.fixture(scope="session")
def python() -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Runs a script in a process of its own: python(text, *words, timeout=...). It may import what tests do.

    anew=True starts it with nothing imported: see warm_processes.py.
    """
    return _python
