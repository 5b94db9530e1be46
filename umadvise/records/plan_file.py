"""Plan files: gzip around one JSON document, as traces are."""

import os
import zlib
from types import MappingProxyType

import msgspec

from umadvise.errors import FormatError
from umadvise.records.columns import pack, unpack
from umadvise.records.counters import Count, Record
from umadvise.records.files import deflate, inflate, read_whole, write_atomically
from umadvise.records.names import Name
from umadvise.records.plan import Actions, Option, Plan, check, check_alone
from umadvise.records.trace import Trace

SCHEMA = "umadvise.plan/2"
MOST_FILE_BYTES = 64 << 20
MOST_DOCUMENT_BYTES = 512 << 20


class _PlanFile(Record, frozen=True, tag_field="schema", tag=SCHEMA):
    planner: Name
    budget_bytes: Count
    options: dict[Name, Option]
    trace_digest: Name
    actions: dict[str, bytes]


_decoder = msgspec.json.Decoder(_PlanFile)


def encode(plan: Plan) -> bytes:
    """The plan as the bytes of its file; equal plans give equal bytes."""
    document = _PlanFile(plan.planner, plan.budget_bytes, dict(plan.options), plan.trace_digest, pack(plan.actions))
    return deflate(msgspec.json.encode(document))


def decode(packed: bytes, trace: Trace | None) -> Plan:
    """Reads a plan from the bytes of its file.

    Args:
        packed: the file's bytes.
        trace: trace that the plan is of; None reads a plan for people, which cannot be executed unchecked.

    Raises:
        FormatError: no plan, of another version, of another trace, or one that cannot be executed.
    """
    try:
        file = _decoder.decode(inflate(packed, MOST_DOCUMENT_BYTES))
        plan = Plan(
            planner=file.planner,
            budget_bytes=file.budget_bytes,
            options=MappingProxyType(file.options),
            trace_digest=file.trace_digest,
            actions=unpack(Actions, "actions", file.actions),
        )
        if trace is None:
            check_alone(plan)
        else:
            check(plan, trace)
    except (ValueError, zlib.error, RecursionError) as error:  # msgspec's errors are ValueErrors
        of = "" if trace is None else " of this trace"
        raise FormatError(f"is no plan{of}: {error}. Expected what `umadvise plan` writes") from None
    return plan


def read(path: str | os.PathLike[str], trace: Trace | None) -> Plan:
    """Reads a plan; see `decode`.

    Raises:
        FormatError: truncated, of another schema version or trace, gigantic, or impossible to execute.
        UmadviseError: there is no such file, or it cannot be read.
    """
    return read_whole(path, MOST_FILE_BYTES, "plan", lambda packed: decode(packed, trace))


def write(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Writes a plan atomically.

    Raises:
        UmadviseError: the place cannot be written, or holds something that is no regular file.
    """
    write_atomically(path, encode(plan))
