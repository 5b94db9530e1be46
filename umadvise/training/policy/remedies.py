"""What the simulator says of other rungs of the ladder, for the report."""

from umadvise._native.abi import Memory
from umadvise.devices.rungs import ADVISE, SWAP, WINDOW
from umadvise.recording.recorded_step import RecordedStep
from umadvise.records.fault_profile import RungPrediction
from umadvise.torch_seam.runtime import Runtime
from umadvise.training.memory_split import MemorySplit
from umadvise.training.plans.cache import PlanCache
from umadvise.training.plans.device import planning_device
from umadvise.training.plans.maker import PlanMaker
from umadvise.training.policy.degraded import CHUNKS, MIGRATION

SEARCH_SECONDS = 5.0
"""That a report may take to plan a step for each rung."""


def predicted_rungs(state: Runtime, step: RecordedStep, split: MemorySplit) -> tuple[RungPrediction, ...]:
    """Simulated times of a recorded step on the rungs that it can run on.

    Args:
        state: whose device it ran on.
        step: a steady one.
        split: of the device's memory.
    """
    features = state.device.features()
    rungs = [
        rung
        for rung in (ADVISE, WINDOW, SWAP)
        if features[CHUNKS if rung.memory == Memory.CHUNKED else MIGRATION] is None
    ]
    maker = PlanMaker(planning_device(state.device), PlanCache.of_user(), SEARCH_SECONDS)
    predicted = maker.predict(step, {rung.name: split.for_plans(rung.memory) for rung in rungs})
    return tuple(RungPrediction(rung=rung, step_ns=step_ns) for rung, step_ns in predicted.items() if step_ns > 0)
