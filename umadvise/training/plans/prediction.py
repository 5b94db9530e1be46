"""What a session's device will do with a plan: the step simulated by the device's rules, in the device's memory.

Planners see a step in whole chunks and to the letter of what they plan (`umadvise.training.plans.view`). The device
copies bytes, keeps small tensors, never loses contents, and evicts what is used furthest ahead where a plan leaves no
room.
"""

import numpy as np
from numpy.typing import NDArray

from umadvise.records.device import DeviceProfile
from umadvise.records.plan import Plan
from umadvise.records.trace import Trace
from umadvise.simulator.swap import SwapSimulation, simulate_swap
from umadvise.training.plans.view import executed, transferred

_ITERATIONS = 16


def predict_swaps(
    trace: Trace,
    plan: Plan,
    device: DeviceProfile,
    *,
    budget_bytes: int,
    chunk_bytes: int,
    in_chunks: NDArray[np.bool_] | None = None,
    spans: bool = False,
) -> SwapSimulation:
    """Simulates the steady step with a plan of swaps, by the rules of the session's device.

    Its peak is what chunks take, with those of small tensors and of libraries' scratch memory. Its `swap_outs`,
    `clean_drops`, and `swap_ins` and `cancelled` together are those of a run wherever neither evicts: a swap-in that
    comes while the storage is still leaving cancels that, so these two alone depend on how fast copies are. Small
    tensors share chunks: where sizes of many kinds come and go, how many chunks they take depends on what was there
    before, and so whether one spare more or less leaves.

    Args:
        trace: trace of the step.
        plan: plan of swaps, of the step or of a view of it.
        device: profile of the device whose link copies.
        budget_bytes: device memory for chunks, in bytes.
        chunk_bytes: size of a chunk in bytes.
        in_chunks: whether each storage of the trace lies in chunks; None: all do.
        spans: whether the timeline is wanted.

    Raises:
        NoRoomError: an op finds no room.
        ValueError: the plan is not one of the step.
    """
    step = executed(trace, np.ones(len(trace.storages), bool) if in_chunks is None else in_chunks)
    return simulate_swap(
        step,
        device,
        transferred(plan, step),
        budget_bytes=budget_bytes,
        allocator="va_chunks",
        chunk_bytes=chunk_bytes,
        eviction="belady",
        iterations=_ITERATIONS,
        spans=spans,
        engine_rules=True,
    )
