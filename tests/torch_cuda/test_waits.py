"""Without one of the waits below an asynchronous program on torch's CUDA build gives wrong numbers, or dies.

docs/waits.md has all of the waits; these are what torch's own order of streams, allocations and frees shows.
"""

import json
import os

import pytest
from conftest import started

PROGRAMS = ("handed_over", "lent", "swapped", "lent_chunks")
NEEDED = {
    "stream_order": "handed_over",
    "record_stream": "lent",
    "stream_lent": "lent_chunks",
    "op_stream": "swapped",
    "block_freed": "swapped",
    "chunk_taken": "swapped",
    "chunk_ready": "swapped",
    "place_reused": "swapped",
    "op_after_arrival": "swapped",
    "departure_after_use": "swapped",
    "departure_ended": "swapped",
}
SEEDS = 10 if os.environ.get("UMADVISE_FULL") else 1
ENOUGH = 0.9


def is_right(program: str, seed: int, without: str = "") -> bool:
    asynchronous = {"STAND_IN_ASYNC": 1, "STAND_IN_DELAY_US": 1000, "STAND_IN_SEED": seed}
    run = started("waits.py", program, UMADVISE_LEAVE_OUT_WAIT=without, **asynchronous)
    return run.returncode == 0 and json.loads(run.stdout.splitlines()[-1]) == 0


@pytest.mark.parametrize("program", PROGRAMS)
def test_with_all_waits_it_is_right(program: str) -> None:
    assert all(is_right(program, seed) for seed in range(SEEDS))


@pytest.mark.parametrize("wait", NEEDED)
def test_without_one_it_is_wrong(wait: str) -> None:
    missed = sum(not is_right(NEEDED[wait], seed, without=wait) for seed in range(SEEDS))
    assert missed >= ENOUGH * SEEDS
