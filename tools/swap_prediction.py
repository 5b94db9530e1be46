"""What the simulator says of a run of tools/swap_run.py: of the step and the plan that the run left behind."""

import msgspec
from swap_run import Kind, plan_file, trace_file

from umadvise._native.abi import GpuStep
from umadvise.records import plan_file as plan_io
from umadvise.records import trace_file as trace_io
from umadvise.records.device import DeviceProfile
from umadvise.records.trace import Trace
from umadvise.simulator.steady import mean_step
from umadvise.simulator.swap import simulate_resident
from umadvise.simulator.unified import simulate_unified
from umadvise.training.plans.device import PlanningDevice
from umadvise.training.plans.prediction import predict_swaps

_CHUNK_BYTES = 2 << 20


class PredictedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step; of planned swaps also what is moved, and the most that chunks take at once."""

    step_ns: int
    bytes_h2d: int | None = None
    bytes_d2h: int | None = None
    peak_bytes: int | None = None


def predict(kind: Kind, resident: str, folder: str, capacity_bytes: int, device: DeviceProfile) -> PredictedStep | None:
    """A step's prediction; None where no plan was made.

    Args:
        kind: the kind of memory.
        resident: the folder in which a run in unlimited memory left its step: durations without any swaps.
        folder: the folder in which the run itself left its step and plan.
        capacity_bytes: the size of device memory.
        device: the device with the link that was charged.
    """
    trace = trace_io.read(trace_file(resident))
    if kind in ("resident", "checkpointing"):
        return PredictedStep(step_ns=simulate_resident(trace, device, allocator="exact").simulation.step_ns)
    if kind == "no advice":
        return PredictedStep(step_ns=mean_step(simulate_unified(trace, device, capacity_bytes=capacity_bytes)).step_ns)
    if not plan_file(folder).exists():
        return None
    own = trace_io.read(trace_file(folder))
    plan = plan_io.read(plan_file(folder), own)

    emulated = PlanningDevice(device, "", synchronous=True)

    def simulated(step: Trace) -> GpuStep:
        return predict_swaps(step, plan, emulated, budget_bytes=capacity_bytes, chunk_bytes=_CHUNK_BYTES).steps[-1]

    try:
        found = simulated(trace)
    except ValueError:  # the recordings differ: then the times are those of the step that was planned
        found = simulated(own)
    return PredictedStep(
        step_ns=found.duration_ns,
        bytes_h2d=found.swaps.swap_in_bytes,
        bytes_d2h=found.swaps.swap_out_bytes,
        peak_bytes=found.swaps.used_peak_bytes,
    )
