"""Whoever rebuilds a planner gets the same plans: digests of plans of small steps, byte by byte.

A planner that is meant to plan otherwise gets a new line, which the failure prints. `dqn` is left out: it computes as
the machine's BLAS does. `best` makes no random changes here, as sums of floats depend on the processor.
"""

import hashlib
from random import Random

import pytest
from random_traces import random_ops, random_step
from traces import layers

from umadvise import planners
from umadvise.devices.catalogue import load_device
from umadvise.errors import BudgetError
from umadvise.records.plan import Actions, Option
from umadvise.records.trace import Trace

V100 = load_device("v100-16gb")
SHARES = (0.1, 0.6, 0.95)
"""Of the way from what the largest op uses up to the peak."""
OPTIONS: dict[str, dict[str, Option]] = {"best": {"trials": 0, "paging": False}, "window": {"refined": True}}
DIGESTS: dict[str, str] = {
    "advice": "ba1a5d019660d92e",
    "belady": "3a1df9e410c0391f",
    "best": "8a07ace139dedce2",
    "lms": "ec41cb6722205557",
    "lru": "b17b7af133c72512",
    "sqrt-recompute": "a6818d84179b877c",
    "superneurons": "6e436dd4c9a4a0a3",
    "um-window": "04feeb560fcc54ac",
    "vdnn-all": "3719549dd989243e",
    "vdnn-conv": "70093bcfec704a68",
    "vdnn-dyn": "f235b2f072256d4d",
    "window": "b283cecc1d9d449f",
}


def steps() -> list[Trace]:
    return [layers(12), *(make(Random(seed)) for make in (random_step, random_ops) for seed in range(4))]


def digest_of(name: str) -> str:
    """Of all plans, and of where there is none."""
    hasher = hashlib.sha256()
    for trace in steps():
        least, most = int(trace.working_set_bytes().max()), trace.peak_bytes
        for share in SHARES:
            try:
                plan = planners.run(name, trace, V100, least + int((most - least) * share), **OPTIONS.get(name, {}))
            except BudgetError:
                hasher.update(b"no plan")
                continue
            hasher.update(repr(sorted(plan.options.items())).encode())
            for column in Actions.DTYPES:
                hasher.update(getattr(plan.actions, column).tobytes())
    return hasher.hexdigest()[:16]


@pytest.mark.parametrize("name", sorted(planners.PLANNERS.keys() - {"dqn"}))
def test_plans_are_what_they_were(name: str) -> None:
    assert digest_of(name) == DIGESTS.get(name)
