"""What a session's device will do with a plan: the engine itself runs the step and the plan on a simulated device.

That device has the memory, the link and the host of the session's. On a GPU the host runs ahead. On the emulated device
an op ends before the next one begins, and calls take no time.
"""

import numpy as np
from numpy.typing import NDArray

from umadvise._native.abi import Status
from umadvise.errors import BudgetError, NativeError
from umadvise.planners.capacity import resized
from umadvise.records.plan import Plan
from umadvise.records.trace import Trace
from umadvise.simulator.gpu import GpuSimulation, simulate_gpu
from umadvise.training.plans.device import PlanningDevice


def predict_swaps(
    trace: Trace,
    plan: Plan | None,
    device: PlanningDevice,
    *,
    budget_bytes: int,
    chunk_bytes: int,
    in_chunks: NDArray[np.bool_] | None = None,
    addresses: NDArray[np.uint64] | None = None,
) -> GpuSimulation:
    """Simulates steps with a plan of swaps until they are all alike.

    In virtual time (`EmulatedDevice(clock=...)`) a session counts exactly this. Elsewhere what depends on when copies
    end may differ: a swap-in that comes while the storage is still leaving cancels that, for example.

    Args:
        trace: trace of the step.
        plan: plan of swaps of the step; None: what is used furthest ahead leaves first.
        device: device that the step runs on.
        budget_bytes: device memory for chunks, in bytes.
        chunk_bytes: size of a chunk in bytes.
        in_chunks: whether each storage of the trace lies in chunks; None: all do.
        addresses: address of each storage where the step begins, see `umadvise.simulator.gpu.simulate_gpu`.

    Raises:
        BudgetError: an op finds no room.
        ValueError: the plan is not one of the step.
    """
    step = trace if in_chunks is None else resized(trace, np.where(in_chunks, trace.storages.bytes, 0))
    try:
        return simulate_gpu(
            step,
            device.profile,
            None if plan is None else plan.fitted(step),
            budget_bytes=budget_bytes,
            chunk_bytes=chunk_bytes,
            small=device.small,
            synchronous=device.synchronous,
            until_steady=True,
            addresses=addresses,
        )
    except NativeError as error:
        if error.code != Status.OUT_OF_DEVICE_MEMORY:
            raise
        raise BudgetError(error.message) from None
