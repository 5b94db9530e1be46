"""Traces and plans as the core reads them: tables of columns."""

import ctypes
from typing import Any

from umadvise._native.structures import structure

_TABLES = {"storage": "storages", "op": "ops", "access": "accesses", "event": "events"}


def trace_columns(trace: Any) -> ctypes.Structure:
    """um_trace of an `umadvise.records.trace.Trace`, which must outlive its use."""
    columns = structure("um_trace")()
    for field in columns._fields_:
        table, _, column = field[0].partition("_")
        _point(columns, field[0], getattr(trace, _TABLES[table]), column)
    return columns


def plan_columns(actions: Any) -> ctypes.Structure | None:
    """um_plan of an `umadvise.records.plan.Actions`, which must outlive its use; None for None."""
    if actions is None:
        return None
    columns = structure("um_plan")()
    for field in columns._fields_:
        _point(columns, field[0], actions, field[0])
    return columns


def _point(columns: ctypes.Structure, field: str, table: Any, column: str) -> None:
    setattr(columns, field, len(table) if column == "count" else getattr(table, column).ctypes.data)
