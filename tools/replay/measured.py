"""What the simulator says of the rows that tools/gpu_check has measured on a device.

Each network's step is recorded without running it, and its ops take what the measured device's roofline gives, all of
them longer or shorter by one factor, so that a step with everything on the device takes what torch alone took. That row
calibrates; no other one does. Links and calls are those of the record's own device file.
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from replay.changed import with_durations
from umadvise import planners
from umadvise.devices import catalogue
from umadvise.devices.rungs import LADDER
from umadvise.errors import FormatError, UmadviseError
from umadvise.planners.judging.score import Score, score
from umadvise.planners.paging.advice import by_role
from umadvise.recording.dry import recorder as dry
from umadvise.recording.dry.roofline import durations_ns
from umadvise.records.device import DeviceProfile
from umadvise.records.trace import UNKNOWN, Trace
from umadvise.simulator.steady import SteadyStep, mean_step
from umadvise.simulator.swap import simulate_resident
from umadvise.simulator.unified import UnifiedSimulation, simulate_unified
from umadvise.training.plans.device import PlanningDevice
from umadvise.training.plans.plan_memory import chunk_capacity, spare_bytes, staying_bytes
from umadvise.training.plans.prediction import predict_swaps

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu_check"))
from workloads import UNADVISED, SizedNetwork, checkpoint_blocks  # a folder of programs, not a package

SCHEMA = "umadvise.gpu_check/3"
_STAND_IN = "h100-sxm-80gb"
"""Whose roofline weighs ops against each other where the measured device's is not known."""
QUANTITIES = ("step_ns", "peak_bytes", "bytes_h2d", "bytes_d2h", "fault_groups", "evictions")
"""What is compared."""

Numbers = dict[str, float | None]


@dataclass(frozen=True)
class MeasuredRow:
    """One row of a network.

    Attributes:
        network: the network's name.
        row: the row's name.
        measured: quantities; None: nobody could see it.
        predicted: the same quantities; None: no part of the prediction.
        calibrates: its step was taken, not predicted.
        problem: why nothing is predicted, or was measured; None where both are there.
    """

    network: str
    row: str
    measured: Numbers
    predicted: Numbers
    calibrates: bool = False
    problem: str | None = None


def read(*paths: Path) -> dict[str, Any]:
    """Records of tools/gpu_check as one: of a stage that several have, the one of the last of them.

    Raises:
        UmadviseError: there is no such file, or it is none, or one is a dry run's and another one is not.
    """
    records = [_read(path) for path in paths]
    if len({record["dry_run"] for record in records}) > 1:
        raise FormatError("some of these records are of dry runs, and some are not")
    stages = {stage["name"]: stage for record in records for stage in record["stages"]}
    return {**records[-1], "stages": list(stages.values())}


def _read(path: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(path.read_text())
    except OSError as error:
        raise UmadviseError(f"cannot read {path}: {error}") from error
    except ValueError as error:
        raise FormatError(f"{path} is no record of gpu_check: {error}") from error
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise FormatError(f"{path} is no record of gpu_check: expected the schema {SCHEMA!r}")
    return record


def compare(record: dict[str, Any]) -> Iterator[MeasuredRow]:
    """All rows of all networks, in order.

    Raises:
        FormatError: the record has no device file, so that nothing can be predicted.
    """
    data = {stage["name"]: stage["data"] for stage in record["stages"]}
    if not data.get("device"):
        raise FormatError("the record has no device file: its stage `device` did not pass")
    device = catalogue.decode(data["device"]["device_file"].encode())
    for found in data.values():
        if isinstance(found, dict) and "network" in found:
            yield from _of_network(found, device, dry_run=record["dry_run"])


def _of_network(data: dict[str, Any], device: DeviceProfile, *, dry_run: bool) -> Iterator[MeasuredRow]:
    vanilla = next((row for row in data["rows"] if row["name"] == "vanilla" and row["outcome"] == "ran"), None)
    predictor = None
    if vanilla is not None:
        predictor = Predictor(SizedNetwork(**data["network"]), device, vanilla["step_ns"], emulated=dry_run)
    for row in data["rows"]:
        yield _compared(data["network"]["name"], row, predictor)


def _compared(network: str, row: dict[str, Any], predictor: "Predictor | None") -> MeasuredRow:
    measured: Numbers = {} if row["outcome"] != "ran" else _measured(row)
    problem, predicted = None, Numbers()
    if row["outcome"] != "ran":
        problem = f"{row['outcome']}: {row['reason']}"
    elif predictor is None:
        problem = "not predicted: torch alone did not run, so nothing tells how long ops take"
    else:
        try:
            predicted = predictor.predict(row)
        except (UmadviseError, ValueError, ArithmeticError) as error:
            problem = f"not predicted: {error}"
    return MeasuredRow(network, row["name"], measured, predicted, row["way"] == "vanilla", problem)


def _measured(row: dict[str, Any]) -> Numbers:
    """What a row counted, a step; paging and swapping together, as no row does both on purpose."""
    counters, swaps = row.get("counters") or {}, row.get("swaps") or {}

    def moved(paged: str, swapped: str) -> float | None:
        causes = counters.get(paged)
        of_pages = None if causes is None or None in causes.values() else sum(causes.values())
        of_swaps = swaps.get(swapped)
        if of_pages is None:
            return of_swaps or None  # without paging's share, what was not swapped is not known to be nothing
        return float(of_pages + (of_swaps or 0))

    return {
        "step_ns": row["step_ns"],
        "peak_bytes": row["peak_bytes"],
        "bytes_h2d": moved("bytes_h2d", "swap_in_bytes"),
        "bytes_d2h": moved("bytes_d2h", "swap_out_bytes"),
        "fault_groups": counters.get("fault_groups"),
        "evictions": swaps.get("evictions") if swaps.get("swap_out_bytes") else counters.get("evictions"),
    }


class Predictor:
    """Simulates the rows of one network on one device."""

    def __init__(self, network: SizedNetwork, device: DeviceProfile, vanilla_ns: float, *, emulated: bool) -> None:
        """Takes how long a step of torch alone took."""
        self._network, self._device, self._emulated = network, device, emulated
        self._vanilla_ns = vanilla_ns

    def predict(self, row: dict[str, Any]) -> Numbers:
        """Quantities of a row; none for a way that there is no model of.

        Raises:
            UmadviseError: it does not run so, or there is no model of it.
        """
        if row["way"] in ("vanilla", "vanilla again"):
            return self._resident(self._trace)
        if row["way"] == "activation checkpointing":
            return self._resident(self._recorded(checkpoint_blocks))
        if row["way"] is not None:
            raise UmadviseError("there is no model of it")
        rung, budget_bytes = row["rung"], row["budget_bytes"]
        if rung == "resident":
            return self._resident(self._trace)
        if rung in ("advise", "window", UNADVISED):
            return self._paged(rung, budget_bytes)
        return self._swapped(rung, budget_bytes, row["chunk_bytes"])

    # ---- steps ------------------------------------------------------------------------------------------------------

    @cached_property
    def _trace(self) -> Trace:
        return self._recorded(lambda _: None)

    @cached_property
    def _roofline(self) -> DeviceProfile:
        known = self._device.achievable_memory_bytes_per_s is not None and self._device.peak("fp32") is not None
        return self._device if known else catalogue.load_device(_STAND_IN)

    @cached_property
    def _factor(self) -> float:
        """By which every op is longer than its roofline says."""
        return self._vanilla_ns / float(self._untimed(lambda _: None).ops.duration_ns.sum())

    def _recorded(self, prepare: Callable[[Any], None]) -> Trace:
        trace = self._untimed(prepare)
        return with_durations(trace, trace.ops.duration_ns * self._factor)

    def _untimed(self, prepare: Callable[[Any], None]) -> Trace:
        def build() -> Any:
            workload = self._network.build()
            prepare(workload)
            return workload

        trace = dry.record(build, target="cpu" if self._emulated else "cuda")
        durations = durations_ns(trace, self._roofline)
        return with_durations(trace, np.where(durations == UNKNOWN, 0, durations))

    # ---- kinds of memory --------------------------------------------------------------------------------------------

    def _resident(self, trace: Trace) -> Numbers:
        result = simulate_resident(trace, self._device, allocator="exact").simulation.result
        return {"step_ns": result.step_ns, "peak_bytes": result.peak_live_bytes}

    def _paged(self, rung: str, budget_bytes: int) -> Numbers:
        plan, advice = None, {} if rung == UNADVISED else LADDER[rung].advice
        if rung == "window":
            plan = planners.run(LADDER[rung].planner or "", self._trace, self._device, budget_bytes)
            advice = by_role(plan)
        simulation: UnifiedSimulation = simulate_unified(
            self._trace, self._device, budget_bytes=budget_bytes, advice=advice, plan=plan
        )
        peak_bytes = max(step.memory.resident_peak_bytes or 0 for step in simulation.steady)
        return _numbers(mean_step(simulation), peak_bytes)

    def _swapped(self, rung: str, budget_bytes: int, chunk_bytes: int) -> Numbers:
        policy = LADDER[rung]
        staying = staying_bytes(self._trace) + spare_bytes(budget_bytes, chunk_bytes)
        capacity = chunk_capacity(
            self._trace, budget_bytes=budget_bytes, chunk_bytes=chunk_bytes, staying_bytes=staying
        )
        options = {"recompute": policy.recomputes, "paging": False}
        plan = planners.run(policy.planner or "", self._trace, self._device, capacity, **options)
        if policy.recomputes:  # regions that run again are another step on the device: here, the plan to the letter
            found = score(self._trace, self._device, plan, capacity=capacity)
            return _numbers(found, (found.peak_bytes or 0) + staying)
        device = PlanningDevice(self._device, "", synchronous=self._emulated)
        step = predict_swaps(self._trace, plan, device, budget_bytes=budget_bytes, chunk_bytes=chunk_bytes).steps[-1]
        return {
            "step_ns": step.duration_ns,
            "peak_bytes": step.swaps.used_peak_bytes,
            "bytes_h2d": step.swaps.swap_in_bytes,
            "bytes_d2h": step.swaps.swap_out_bytes,
            "fault_groups": None,
            "evictions": step.swaps.evictions,
        }


def _numbers(step: SteadyStep | Score, peak_bytes: int) -> Numbers:
    return {**{name: getattr(step, name, None) for name in QUANTITIES}, "peak_bytes": peak_bytes}
