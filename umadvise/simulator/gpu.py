"""Simulates a step with explicit swapping by the engine itself: on a GPU, or on the emulated device.

The engine runs as in a session and cannot tell the difference; a clock that only the simulation moves says when
kernels, copies and events end (csrc/devices/simulated/gpu.h). On a GPU the host runs ahead: every call of the driver
takes host time by a table, and so does every op; where a call has to wait for the device, that is counted with the
function that waited. A run repeats exactly.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from umadvise._native.abi import CallCount, ChunkOptions, GpuStep, Small
from umadvise._native.simulation import simulate_gpu as _simulate
from umadvise._native.structures import to_c
from umadvise.devices.catalogue import load_device
from umadvise.devices.link import native_link
from umadvise.records.device import DeviceProfile
from umadvise.records.plan import Plan
from umadvise.records.timeline import Timeline
from umadvise.records.trace import Trace


@dataclass(frozen=True, slots=True)
class CallCost:
    """What a call of the driver takes of the thread that calls.

    Attributes:
        ns: nanoseconds of a call.
        source: who measured that, and where.
        ns_per_mib: nanoseconds more for each MiB that the call is about.
    """

    ns: int
    source: str
    ns_per_mib: int = 0

    def times(self, factor: float) -> tuple[int, int]:
        """The nanoseconds of a call and of each MiB on a machine that takes this many times as long."""
        return round(self.ns * factor), round(self.ns_per_mib * factor)


_H100 = "an H100 SXM with driver 580.159, in a virtual machine (profiles/measured/h100-sxm-80gb-2026-11-26.json): "
_PER_MAPPING = _H100 + "chunks, driver_costs; as much for each mapping that a call is about (several_mappings)"
_IN_STEPS = _H100 + "calls of a step of BERT-Large"
CALL_COSTS: Mapping[str, CallCost] = MappingProxyType(
    {
        "cuMemAddressReserve": CallCost(18_000, "vAttention (Prabhu et al. 2025, table 3): an A100, for 2 MiB"),
        "cuMemAddressFree": CallCost(35_000, "vAttention (Prabhu et al. 2025, table 3): an A100, for 2 MiB"),
        "cuMemCreate": CallCost(18_000, _H100 + "chunks, driver_costs"),
        "cuMemRelease": CallCost(16_000, _H100 + "chunks of 2 MiB, driver_costs"),
        "cuMemMap": CallCost(4_700, _PER_MAPPING),
        "cuMemSetAccess": CallCost(31_000, _PER_MAPPING),
        "cuMemUnmap": CallCost(22_000, _PER_MAPPING),
        "cuMemHostAlloc": CallCost(10_000, _H100 + "84 ms for 256 MiB, pinned", 330_000),
        "cuMemFreeHost": CallCost(10_000, _H100 + "24 ms for 256 MiB, pinned", 92_000),
        "cuMemcpyHtoDAsync": CallCost(7_200, _IN_STEPS),
        "cuMemcpyDtoHAsync": CallCost(9_400, _IN_STEPS),
        "cuEventCreate": CallCost(3_100, _H100 + "events"),
        "cuEventDestroy": CallCost(1_300, _H100 + "events"),
        "cuEventRecord": CallCost(1_130, _IN_STEPS),
        "cuEventQuery": CallCost(1_600, _IN_STEPS),
        "cuEventElapsedTime": CallCost(1_250, _IN_STEPS),
        "cuEventSynchronize": CallCost(1_000, "assumed: beside the wait"),
        "cuStreamWaitEvent": CallCost(620, _IN_STEPS),
        "cuStreamSynchronize": CallCost(1_000, "assumed: beside the wait"),
        "cuStreamQuery": CallCost(1_100, _H100 + "events"),
        "cuCtxSynchronize": CallCost(1_000, "assumed: beside the wait"),
        "cuCtxGetCurrent": CallCost(70, _IN_STEPS),
        "cuCtxSetCurrent": CallCost(70, "assumed: as asking which one is current"),
    }
)
"""By function. Other machines take other times, so what rests on them should hold for half and twice."""
OP_NS = 7_000
"""Of the host thread for an op: about 5 us of torch in eager mode and a launch, and 2 us of the interposer; assumed."""
QUEUE_OPS = 1_024
"""By so many launches the host is ahead of the device at most: the driver's queue (CUDA_SCALE_LAUNCH_QUEUES of 1)."""
ITERATIONS = 24
WARM_UP = 18
"""Iterations: the first has no plan, and the second does not begin as it ends. Then the engine learns where each stay
of the step lies; where memory is short it does so up to three times."""


@dataclass(frozen=True, slots=True)
class GpuSimulation:
    """A simulated run.

    Attributes:
        steps: each iteration; the plan applies from the second on.
        calls: calls of the driver in all iterations after those of warm-up, by function; those that were never made are
            left out.
        timeline: spans of all iterations.
    """

    steps: list[GpuStep]
    calls: dict[str, CallCount]
    timeline: Timeline

    @property
    def steady(self) -> list[GpuStep]:
        """The iterations after those of warm-up: not all alike, as copies of one step go on in the next.

        Where the run ended before, as they were all alike, the last one.
        """
        return self.steps[min(WARM_UP, len(self.steps) - 1) :]

    @property
    def mean_step_ns(self) -> float:
        """Nanoseconds of a steady step, in the mean."""
        return fmean(step.duration_ns for step in self.steady)

    @property
    def host_waits(self) -> float:
        """How often the engine makes the host wait for the device in a steady step, in the mean."""
        return sum(call.waits for call in self.calls.values()) / len(self.steady)


def simulate_gpu(
    trace: Trace,
    device: str | os.PathLike[str] | DeviceProfile,
    plan: Plan | None,
    *,
    budget_bytes: int,
    chunk_bytes: int = 0,
    small: Small = Small.STAY,
    call_factor: float = 1.0,
    jitter: float = 0.0,
    iterations: int = ITERATIONS,
    synchronous: bool = False,
    until_steady: bool = False,
    addresses: NDArray[np.uint64] | None = None,
) -> GpuSimulation:
    """Runs a trace by the engine, again and again.

    On a GPU what the script itself copies takes no time.

    Args:
        trace: trace of the step.
        device: name in the catalogue, profile's file, or profile of the device whose link makes the copies.
        plan: plan of swaps that holds from the second iteration on; None: what is used furthest ahead leaves.
        budget_bytes: bytes of device memory for chunks.
        chunk_bytes: bytes of a chunk; 0 is the engine's default on a GPU.
        small: what tensors of half a chunk and less do.
        call_factor: factor by which every call of the driver and every op takes longer than the tables say.
        jitter: part of its time by which each kernel, and each op on the host, takes longer at most; each time another
            one, and in each run the same.
        iterations: repetitions of the step, at least 3.
        synchronous: whether the device is not a GPU but the emulated one: an op ends before the next begins, and calls
            take no time.
        until_steady: whether the run may end earlier, once its steps are all alike.
        addresses: address of each storage on a device where the step begins, 0 where it is not known: small ones share
            chunks, and how many these are depends on how they lie. None: one after the other.

    Raises:
        NativeError: an op finds no room, or the plan is none of the trace.
    """
    profile = load_device(device)
    found = _simulate(
        trace,
        None if plan is None else plan.actions,
        {} if synchronous else {name: cost.times(call_factor) for name, cost in CALL_COSTS.items()},
        link=native_link(profile),
        chunks=to_c(ChunkOptions(budget_bytes=budget_bytes, chunk_bytes=chunk_bytes, small=small)),
        capacity_bytes=max(profile.usable_bytes, budget_bytes),
        op_ns=0 if synchronous else round(OP_NS * call_factor),
        queue_ops=QUEUE_OPS,
        iterations=iterations,
        warm_up=min(WARM_UP, iterations - 1),
        jitter_permille=round(1000 * jitter),
        synchronous=synchronous,
        until_steady=until_steady,
        storage_address=0 if addresses is None else addresses.ctypes.data,
    )
    peak_bytes = max(step.swaps.used_peak_bytes for step in found.steps)
    return GpuSimulation(
        found.steps,
        {call.function: call for call in found.calls if call.calls > 0},
        Timeline.from_spans(found.spans, peak_bytes),
    )
