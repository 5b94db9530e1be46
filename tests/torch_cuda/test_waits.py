"""Without one of the waits below an asynchronous program on torch's CUDA build gives wrong numbers, or dies.

docs/waits.md has all of the waits. These are what torch's own order of streams, allocations and frees shows; the C++
tests of the others run here too, so that whoever leaves out any (UMADVISE_LEAVE_OUT_WAIT=name make test-torch-cuda)
sees a failure.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
import warm_processes
from on_stand_ins import BUILD

PROGRAMS = ("handed_over", "lent", "swapped")
NEEDED = {
    "stream_order": "handed_over",
    "record_stream": "lent",
    "op_stream": "swapped",
    "block_freed": "swapped",
    "op_after_arrival": "swapped",
    "departure_ended": "swapped",
}
NATIVE = (
    "engine_cuda_waits",
    "engine_cuda_host_waits",
    "engine_cuda_pages",
    "engine_waits",
    "engine_stream_order",
    "engine_stream_wait",
    "memory_host_copies",
    "emulated_streams",
    "emulated_vmm_copies",
    "cupti_sampling",
    "engine_durations",
)
SEEDS = 10 if os.environ.get("UMADVISE_FULL") else 1
ENOUGH = 0.9
TRIES = 10
"""Of which one is to be wrong in the short form: on a busy machine a stream may be done when it is not waited for."""


def is_right(program: str, seed: int, **settings: str) -> bool:
    asynchronous = {"STAND_IN_ASYNC": "1", "STAND_IN_DELAY_US": "1000", "STAND_IN_SEED": str(seed + 1)}
    command = [warm_processes.python(), Path(__file__).with_name("waits.py"), program]
    environment = os.environ | asynchronous | settings
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    return run.returncode == 0 and json.loads(run.stdout.splitlines()[-1]) == 0


@pytest.mark.parametrize("program", PROGRAMS)
def test_with_all_waits_it_is_right(program: str) -> None:
    assert all(is_right(program, seed) for seed in range(SEEDS))


@pytest.mark.parametrize("wait", NEEDED)
def test_without_one_it_is_wrong(wait: str) -> None:
    wrong = (not is_right(NEEDED[wait], seed, UMADVISE_LEAVE_OUT_WAIT=wait) for seed in range(max(SEEDS, TRIES)))
    assert any(wrong) if SEEDS == 1 else sum(wrong) >= ENOUGH * SEEDS


@pytest.mark.parametrize("name", NATIVE)
def test_the_others_are_needed_below_torch(name: str) -> None:
    ours = ("STAND_IN_", "LD_PRELOAD")  # they have settings of their own
    environment = {setting: value for setting, value in os.environ.items() if not setting.startswith(ours)}
    subprocess.run([BUILD / "tests" / f"test_{name}"], env=environment, check=True, timeout=120)
