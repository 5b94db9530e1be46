"""A search for a plan as one document, so that another process can make it: it needs neither torch nor the session."""

import msgspec
import numpy as np
from numpy.typing import NDArray

from umadvise import planners
from umadvise.devices import catalogue
from umadvise.errors import FormatError
from umadvise.records import plan_file, trace_file
from umadvise.records.counters import Count, Record
from umadvise.records.device import DeviceProfile
from umadvise.records.fault_profile import Name
from umadvise.records.plan import Option, Plan
from umadvise.records.trace import Trace

SCHEMA = "umadvise.search/1"


class _Document(Record, frozen=True, tag_field="schema", tag=SCHEMA):
    planner: Name
    options: dict[Name, Option]
    budget_bytes: Count
    device: bytes
    trace: bytes
    repeatable: bytes | None  # a byte for each op
    plans: tuple[bytes, ...]  # to begin with


_decoder = msgspec.json.Decoder(_Document)


def encode(
    planner: str,
    trace: Trace,
    device: DeviceProfile,
    budget_bytes: int,
    options: dict[str, Option],
    *,
    repeatable: NDArray[np.bool_] | None = None,
    plans: tuple[Plan, ...] = (),
) -> bytes:
    """A search as bytes; the arguments are those of `umadvise.planners.run`."""
    document = _Document(
        planner=planner,
        options=options,
        budget_bytes=budget_bytes,
        device=catalogue.encode(device),
        trace=trace_file.encode(trace),
        repeatable=None if repeatable is None else repeatable.tobytes(),
        plans=tuple(map(plan_file.encode, plans)),
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
    repeatable = None if task.repeatable is None else np.frombuffer(task.repeatable, bool)
    if repeatable is not None and len(repeatable) != len(trace.ops):
        raise FormatError(f"is no search for a plan: expected {len(trace.ops)} ops, found {len(repeatable)}")
    plan = planners.run(
        task.planner,
        trace,
        catalogue.decode(task.device),
        task.budget_bytes,
        None,
        tuple(plan_file.decode(each, trace) for each in task.plans),
        repeatable,
        **task.options,
    )
    return plan_file.encode(plan)
