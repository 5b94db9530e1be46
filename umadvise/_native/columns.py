"""Traces and plans as the core reads them: tables of columns."""

import ctypes
from collections.abc import Sequence
from typing import Any

from umadvise._native.prototypes import U64

_TRACE = {
    "storages": ("bytes", "role", "successor"),
    "ops": (
        "phase",
        "step",
        "duration_ns",
        "creates",
        "host_touch",
        "window_pages",
        "run_pages",
        "faults_per_service",
    ),
    "accesses": ("op", "storage", "offset_bytes", "bytes", "flags"),
    "events": ("kind", "op", "inside", "storage", "offset_bytes", "bytes"),
}
_PLAN = ("kind", "after", "op", "storage", "offset_bytes", "bytes", "argument")


def trace_columns(trace: Any) -> ctypes.Array[ctypes.c_uint64]:
    """um_trace of an `umadvise.records.trace.Trace`, which must outlive its use."""
    return _columns([(getattr(trace, table), names) for table, names in _TRACE.items()])


def plan_columns(actions: Any) -> ctypes.Array[ctypes.c_uint64] | None:
    """um_plan of an `umadvise.records.plan.Actions`, which must outlive its use; None for None."""
    return None if actions is None else _columns([(actions, _PLAN)])


def _columns(tables: Sequence[tuple[Any, Sequence[str]]]) -> ctypes.Array[ctypes.c_uint64]:
    """The tables' lengths, then the addresses of their columns."""
    addresses = [getattr(table, name).ctypes.data for table, names in tables for name in names]
    lengths = [len(table) for table, _ in tables]
    return (U64 * (len(lengths) + len(addresses)))(*lengths, *addresses)
