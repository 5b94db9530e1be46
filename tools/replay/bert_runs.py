"""BERT-Large under unified memory as Choi and Lee 2021 ran it: the simulator's answers to the questions of its tables.

Managed memory lies under torch's caching allocator, and what is created there gets its advice at creation (section 4):
a call of the driver each time. Times are means of the paper's hundred iterations, the first ones among them; copies
and faults are means of the iterations after the simulator's warm-up.
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from replay.changed import faster
from replay.recording import bert_trace
from umadvise.records.advice import parse_advice
from umadvise.records.counters import BytesByCause
from umadvise.records.device import DeviceProfile
from umadvise.records.enums import Role
from umadvise.simulator.unified import UnifiedSimulation, simulate_unified

_ITERATIONS = 100  # section 5.1
Words = tuple[str, str, str]  # advice for parameters, inputs and intermediates


@dataclass(frozen=True)
class BertRun:
    """One configuration, an iteration: seconds of it and of its copies, and what `GpuCounters` counts."""

    step_s: float
    h2d_s: float
    d2h_s: float
    h2d_bytes: float
    d2h_bytes: float
    fault_groups: float
    faults: float
    records_h2d: float


class BertRuns:
    """Simulates each configuration once.

    Args:
        device: the device with the costs that are charged.
        efficiency: the number by which the roofline's times are divided.
    """

    def __init__(self, device: DeviceProfile, efficiency: float) -> None:
        self.device = device
        self.efficiency = efficiency

    @functools.cache  # noqa: B019  # few objects, as long as the program
    def run(self, batch: int, words: Words) -> BertRun:
        """The run with this batch and these advices, in the paper's words."""
        trace = faster(bert_trace(batch, self.device.name), self.efficiency)
        parameters, inputs, intermediates = (parse_advice(word) for word in words)
        advice = {Role.PARAMETER: parameters, Role.INPUT: inputs, Role.INTERMEDIATE: intermediates}
        return _run(simulate_unified(trace, self.device, advice=advice, allocator="caching"))


def _run(simulation: UnifiedSimulation) -> BertRun:
    steps, steady = simulation.steps, simulation.steady

    def mean(values: Iterable[int]) -> float:
        return float(np.mean(list(values)))

    def total(bytes_: BytesByCause | None) -> int:
        return (bytes_ and bytes_.total) or 0

    total_ns = sum(simulation.step_ns) + (_ITERATIONS - len(steps)) * simulation.mean_step_ns
    return BertRun(
        step_s=total_ns / _ITERATIONS / 1e9,
        h2d_s=mean(step.copy_h2d_ns for step in steady) / 1e9,
        d2h_s=mean(step.copy_d2h_ns for step in steady) / 1e9,
        h2d_bytes=mean(total(step.counters.bytes_h2d) for step in steady),
        d2h_bytes=mean(total(step.counters.bytes_d2h) for step in steady),
        fault_groups=mean(step.gpu.fault_groups for step in steady),
        faults=mean(step.gpu.faults for step in steady),
        records_h2d=mean(step.gpu.records_h2d for step in steady),
    )
