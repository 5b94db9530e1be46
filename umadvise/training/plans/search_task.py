"""A search for a plan as one document, so that another process can make it: it needs neither torch nor the session.

A planner judges its plans by a simulation of its own, of whole chunks. What becomes of a plan shows where the engine
itself runs it: the plan that the search begins with is kept if the step is shorter with it there.
"""

import math
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from umadvise import planners
from umadvise._native.abi import Small
from umadvise.devices import catalogue
from umadvise.errors import BudgetError, FormatError
from umadvise.planners.capacity import Capacity
from umadvise.records import plan_file, trace_file
from umadvise.records.counters import Count, Record
from umadvise.records.names import Name
from umadvise.records.plan import Option, Plan
from umadvise.records.trace import Trace
from umadvise.training.plans.device import PlanningDevice
from umadvise.training.plans.prediction import predict_swaps

SCHEMA = "umadvise.search/2"
Number = TypeVar("Number", np.bool_, np.int64)


@dataclass(frozen=True, eq=False)
class PlanTrial:
    """What the engine is given to try plans on.

    Attributes:
        in_chunks: array with the flag of each storage of the step whether it lies in chunks.
        budget_bytes: device memory for chunks, in bytes.
        chunk_bytes: size of a chunk in bytes.
        present: plan that drives until then, which another one has to surpass.
    """

    in_chunks: NDArray[np.bool_]
    budget_bytes: int
    chunk_bytes: int
    present: Plan


class _PlanTrial(Record, frozen=True):
    in_chunks: bytes  # a byte for each storage
    budget_bytes: Count
    chunk_bytes: Count
    synchronous: bool
    small: Name
    present: bytes


class _Document(Record, frozen=True, tag_field="schema", tag=SCHEMA):
    planner: Name
    options: dict[Name, Option]
    budget_bytes: Count
    taken_bytes: bytes | None  # eight for each storage
    device: bytes
    trace: bytes
    repeatable: bytes | None  # a byte for each op
    trial: _PlanTrial | None


_decoder = msgspec.json.Decoder(_Document)


def encode(
    planner: str,
    trace: Trace,
    device: PlanningDevice,
    capacity: Capacity,
    options: dict[str, Option],
    *,
    repeatable: NDArray[np.bool_] | None = None,
    trial: PlanTrial | None = None,
) -> bytes:
    """A search as bytes.

    Args:
        planner: name of the planner.
        trace: trace that it plans.
        device: device that the plan is for.
        capacity: bytes that tensors of the trace may take on the device, and what each takes.
        options: options of the planner, by name.
        repeatable: flag of each op whether it may run again; None lets every op do so.
        trial: what plans are tried on; None takes what the planner finds.
    """
    document = _Document(
        planner=planner,
        options=options,
        budget_bytes=capacity.budget_bytes,
        taken_bytes=_packed(capacity.taken_bytes),
        device=catalogue.encode(device.profile),
        trace=trace_file.encode(trace),
        repeatable=_packed(repeatable),
        trial=None
        if trial is None
        else _PlanTrial(
            in_chunks=trial.in_chunks.tobytes(),
            budget_bytes=trial.budget_bytes,
            chunk_bytes=trial.chunk_bytes,
            synchronous=device.synchronous,
            small=device.small.name,
            present=plan_file.encode(trial.present),
        ),
    )
    return msgspec.json.encode(document)


def made(packed: bytes) -> bytes:
    """Makes the search that some bytes describe, and returns its plan as the bytes of a plan file.

    Raises:
        FormatError: these bytes are none of `encode`.
        UmadviseError: the planner has no plan.
    """
    try:
        task = _decoder.decode(packed)
    except msgspec.MsgspecError as error:
        raise FormatError(f"is no search for a plan: {error}") from None
    trace = trace_file.decode(task.trace)
    repeatable = _unpacked(task.repeatable, np.bool_, len(trace.ops))
    profile = catalogue.decode(task.device)
    capacity = Capacity(task.budget_bytes, _unpacked(task.taken_bytes, np.int64, len(trace.storages)))
    plan = planners.run(task.planner, trace, profile, capacity, None, (), repeatable, **task.options)
    if task.trial is not None:
        present = plan_file.decode(task.trial.present, trace)
        device = PlanningDevice(profile, "", task.trial.synchronous, Small[task.trial.small])
        if _step_ns(trace, present, task.trial, device) < _step_ns(trace, plan, task.trial, device):
            plan = present
    return plan_file.encode(plan)


def _packed(column: NDArray[Any] | None) -> bytes | None:
    return None if column is None else column.tobytes()


def _unpacked(packed: bytes | None, kind: type[Number], count: int) -> NDArray[Number] | None:
    """The array of some bytes, with a value for each op or storage."""
    if packed is None:
        return None
    found = np.frombuffer(packed, kind)
    if len(found) != count:
        raise FormatError(f"is no search for a plan: expected {count} values, found {len(found)}")
    return found


def _step_ns(trace: Trace, plan: Plan, trial: _PlanTrial, device: PlanningDevice) -> float:
    """How long the engine's step takes with a plan; endless where an op finds no room."""
    try:
        found = predict_swaps(
            trace,
            plan,
            device,
            budget_bytes=trial.budget_bytes,
            chunk_bytes=trial.chunk_bytes,
            in_chunks=_unpacked(trial.in_chunks, np.bool_, len(trace.storages)),
        )
    except BudgetError:
        return math.inf
    return found.mean_step_ns
