"""What is wrong with a subject, and the table of all."""

from collections import defaultdict
from typing import Any

_COUNTED = (
    *("samples", "calls", "comparisons", "differences", "died", "failed", "unrepeated", "raised"),
    *("departures", "swap_ins", "moved", "elsewhere"),
)
_HEADERS = (
    *("subjects", "samples", "calls", "compared", "differ", "died", "failed", "not repeated", "raise alike"),
    *("departures", "swap-ins", "moved in", "elsewhere"),
)


def troubles(row: dict[str, Any]) -> list[str]:
    """Lines that say what is wrong with a subject."""
    name = row["subject"]
    if "died" in row:
        return [f"{name} DIED: {row['died']}"]
    if "failed" in row:
        return [f"{name} FAILED: {row['failed']}"]
    return [f"{name} DIFFERS: {difference}" for difference in row["differences"]]


def figures(rows: list[dict[str, Any]]) -> str:
    """The table: a row for each database and dtype, and what plain torch does not repeat itself."""
    by_kind: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        database, _, rest = row["subject"].partition(" ")
        by_kind[f"{rest.rpartition(' ')[2]} {database}"].append(row)
    lines = [" | ".join(("", *_HEADERS))]
    lines += [" | ".join((kind, *map(str, _counts(those)))) for kind, those in by_kind.items()]
    lines.append(" | ".join(("all", *map(str, _counts(rows)))))
    unrepeated = sorted({row["subject"] for row in rows if row.get("unrepeated")})
    return "\n".join([*lines, f"Plain torch does not repeat itself: {', '.join(unrepeated) or 'none'}"])


def _counts(rows: list[dict[str, Any]]) -> list[int]:
    return [len(rows), *(sum(_number(row.get(name, 0)) for row in rows) for name in _COUNTED)]


def _number(found: int | str | list[str]) -> int:
    """Of a list its length, and one of a text, which says how a subject ended."""
    return len(found) if isinstance(found, list) else 1 if isinstance(found, str) else found
