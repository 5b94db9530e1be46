"""What the quick benchmarks say now beside what tools/ratios.json says of them: a line for each ratio that has moved.

    python tools/ratios.py [--write]

A ratio is of two things that ran in turns on one machine, so it can be compared with another machine's, within limits:
more than 10 % either way is told, and nothing ever fails. --write makes the file what was measured; a change that means
to make something faster, or knows that it makes something slower, does so, and the difference shows in its commit.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harness import command_line
from rich.console import Console
from rich.table import Table

TRACKED = Path(__file__).with_name("ratios.json")
QUICK = ("benchmark_memory", "benchmark_interposer")
"""Benchmarks that have --ratios and take less than a minute; others write theirs by hand."""
MOVED = 0.10
LIMIT_S = 240
Ratios = dict[str, dict[str, float]]


def measured() -> Ratios:
    """By benchmark and name, the ratios of a run of all quick ones; one that does not end well is left out."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "ratios.json")
        for name in QUICK:
            command = [sys.executable, str(TRACKED.with_name(f"{name}.py")), "--ratios", str(file)]
            try:
                subprocess.run(command, stdout=sys.stderr, timeout=LIMIT_S, check=True)
            except subprocess.SubprocessError as error:
                print(f"ratios: {error}", file=sys.stderr)
        found: Ratios = json.loads(file.read_text()) if file.exists() else {}
        return found


def moved(tracked: Ratios, found: Ratios) -> Iterator[tuple[str, str, float | None, float]]:
    """Benchmark, name, tracked and found ratio of what is new, or differs by more than `MOVED`."""
    for benchmark, ratios in found.items():
        for name, ratio in ratios.items():
            before = tracked.get(benchmark, {}).get(name)
            if before is None or abs(ratio / before - 1) > MOVED:
                yield benchmark, name, before, ratio


def table(rows: list[tuple[str, str, float | None, float]]) -> Table:
    """The rows of `moved` for people."""
    rendered = Table("benchmark", "ratio", title=f"moved by more than {MOVED:.0%}")
    for heading in ("tracked", "now", "by"):
        rendered.add_column(heading, justify="right")
    for benchmark, name, before, ratio in rows:
        was, by = ("-", "new") if before is None else (f"{before:.2f}", f"{ratio / before - 1:+.0%}")
        rendered.add_row(benchmark, name, was, f"{ratio:.2f}", by)
    return rendered


def main() -> int:
    """Prints what has moved."""
    parser = command_line(__doc__)
    parser.add_argument("--write", action="store_true", help="keep what was measured")
    options = parser.parse_args()
    tracked: Ratios = json.loads(TRACKED.read_text()) if TRACKED.exists() else {}
    found = measured()
    rows = list(moved(tracked, found))
    Console(width=140).print(table(rows) if rows else f"no ratio has moved by more than {MOVED:.0%}")
    if options.write:
        TRACKED.write_text(json.dumps({**tracked, **found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
