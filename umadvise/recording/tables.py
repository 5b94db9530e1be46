"""Tables of a trace made from others, or from some of their columns."""

from typing import Any, TypeVar

import numpy as np

from umadvise.records.columns import Columns
from umadvise.records.trace import UNKNOWN

AnyTable = TypeVar("AnyTable", bound=Columns)
_UNKNOWN_IS = {"successor": -1, "duration_ns": UNKNOWN, "flops": UNKNOWN}


def rows(table: AnyTable, chosen: Any, /, **columns: Any) -> AnyTable:
    """The chosen rows of a table.

    Args:
        table: any table of a trace.
        chosen: index of the rows, as numpy takes it.
        columns: columns in place of the table's own.
    """
    return type(table)(**{name: columns.get(name, getattr(table, name)[chosen]) for name in table.DTYPES})


def filled(kind: type[AnyTable], count: int, /, **columns: Any) -> AnyTable:
    """A table of which some columns are known; the others hold the word for unknown, or 0.

    Args:
        kind: class of the table.
        count: number of rows.
        columns: columns that are known.
    """
    unknown = {name: np.full(count, _UNKNOWN_IS.get(name, 0)) for name in kind.DTYPES}
    return kind(**{**unknown, **columns})
