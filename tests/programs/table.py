"""Writes the table of docs/programs.md from what the long run found.

python table.py
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

from comparing import POLICIES
from programs import FOUND, PROGRAMS
from running import ROOT

from umadvise.records.units import format_bytes

PAGE = ROOT / "docs" / "programs.md"
BEGIN, END = "<!-- written by `make test-programs` -->\n", "<!-- to here -->\n"


def cell_of(cell: dict[str, Any], notes: list[str]) -> str:
    """That it was equal, and its steps, or a number that refers to a note."""
    if cell["verdict"] != "equal":
        refusal = "failed" if cell["verdict"] == "failed" else "refused"
        note = f"{refusal}: {cell['why']}"
        if note not in notes:
            notes.append(note)
        return f"{refusal} [{notes.index(note) + 1}]"
    steps = "" if cell["driven"] is None else f" ({cell['driven']} of {cell['steps']})"
    return f"equal{steps}"


def table(found: dict[str, dict[str, Any]]) -> Iterator[str]:
    """The lines, and after them the notes."""
    notes: list[str] = []
    yield f"| program | needs | {' | '.join(POLICIES)} |"
    yield "| --- " * (2 + len(POLICIES)) + "|"
    for name in PROGRAMS:
        each = found[name]
        cells = [cell_of(each["cells"][policy], notes) for policy in POLICIES if policy in each["cells"]]
        yield f"| {name} | {format_bytes(each['needed_bytes'])} | {' | '.join(cells)} |"
    for number, note in enumerate(notes, 1):
        yield f"\n[{number}] {note}"


def main() -> int:
    """Replaces what stands between the marks."""
    documents = [json.loads(path.read_text()) for path in FOUND.glob("*.json")]
    found = {document["name"]: document for document in documents}
    if missing := PROGRAMS.keys() - found.keys():
        print(f"{', '.join(sorted(missing))}: not run yet, so the table stays as it was", file=sys.stderr)
        return 1
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n" + "\n".join(table(found)) + f"\n\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
