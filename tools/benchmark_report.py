"""What reports of a long step take: 100,000 ops, each of which moves something or stands still.

    python tools/benchmark_report.py [--html FILE] [--json FILE] [--ratios FILE]

Each report is a command of its own, as users call it; its time is that of the clock, the least of three. Beside it
stands what is allowed. A ratio is the part of that which was taken: below 1 is well. How long a browser takes to draw
the page, `make test-browser` says.
"""

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from harness import add_results, command_line, write_results
from rich.console import Console
from rich.table import Table

from umadvise.recording.builder import TraceBuilder
from umadvise.records import fault_profile
from umadvise.records.counters import Chunks, Counters, Event, Swaps
from umadvise.records.enums import Phase, Role
from umadvise.records.fault_profile import FaultProfile, RunEnvironment
from umadvise.records.trace import Access, Trace
from umadvise.reports.counters.builder import ProfileBuilder
from umadvise.reports.counters.step_picture import KnownStep

OPS = 100_000
ROUNDS = 3
OP_NS = 50_000
LAYERS = 1_000
MIB = 1 << 20
ALLOWED = {"HTML, s": 5.0, "HTML of two runs, s": 5.0, "trace, s": 5.0, "terminal, s": 1.0, "HTML, MB": 5.0}
PHASES = (Phase.FORWARD, Phase.BACKWARD)


@dataclass(frozen=True)
class ReportRow:
    """What a report took, and what it may take."""

    name: str
    taken: float
    allowed: float


def name_of(op: int) -> tuple[str, str]:
    """Operator and module of an op."""
    return f"aten::operator_{op % 97}", f"encoder.layer.{op % LAYERS}.attention.output.dense"


def long_trace() -> Trace:
    """Ops that each read a parameter of their module, and every other one makes what the op behind the middle needs."""
    builder = TraceBuilder()
    weights = [builder.allocate(4 * MIB, Role.PARAMETER, f"{name_of(layer)[1]}.weight") for layer in range(LAYERS)]
    made: list[int] = []
    for op in range(OPS):
        name, module = name_of(op)
        builder.begin_op(name, phase=PHASES[op * 2 // OPS], module=module, duration_ns=OP_NS)
        builder.access(weights[op % LAYERS], Access.READ)
        if op < OPS // 2 and op % 2:
            made.append(builder.allocate(MIB, Role.INTERMEDIATE, module=module))
            builder.access(made[-1], Access.WRITE | Access.WHOLE)
        elif op >= OPS // 2 and made:
            builder.access(made[-1], Access.READ)
        builder.end_op()
        if op >= OPS // 2 and made:
            builder.free(made.pop())
    return builder.finish(target="cuda", source="synthetic", workload="long")


def event(op: int, kind: str, **fields: int | str) -> Event:
    """What an op moves, or stands still for."""
    name, module = name_of(op)
    plain: dict[str, object] = dict.fromkeys(Event.__struct_fields__, 0) | dict.fromkeys(("birth_op", "birth_module"))
    about = {"op": name, "module": module, "phase": PHASES[op * 2 // OPS].name.lower(), "op_index": op + 1, "step": 1}
    weight = {
        "allocation": op % LAYERS + 1,
        "allocation_bytes": 4 * MIB,
        "role": "parameter",
        "name": f"{module}.weight",
    }
    flags = dict.fromkeys(("write", "unordered", "first_touch"), False)
    return Event(**{**plain, **flags, **about, **weight, "kind": kind, "cause": "planned", **fields})  # type: ignore[arg-type]


def long_profile() -> FaultProfile:
    """The profile of one such step, by what makes all profiles."""
    nothing = Swaps(**dict.fromkeys(Swaps.__struct_fields__, 0))
    environment = RunEnvironment(
        device_name="no device",
        provider="emulated",
        counting="ordered",
        capacity_bytes=1 << 34,
        budget_bytes=None,
        policy="swap",
        umadvise_version="0",
        torch_version=None,
        script="long.py",
    )
    builder = ProfileBuilder(environment, Counters())
    builder.begin_step(1, 0, Counters())
    for op in range(OPS):
        start_ns = op * OP_NS
        moves = event(op, ("swap_in", "swap_out")[op % 2], start_ns=start_ns, bytes=MIB)
        waits = event(op, "wait_copy", start_ns=start_ns + 10, duration_ns=5_000)
        builder.add_events([moves, waits] if op % 3 == 0 else [moves])
    builder.end_step(OPS * OP_NS, Counters(), None)
    chunks = Chunks(chunk_bytes=2 * MIB, budget_bytes=1 << 33, used_peak_bytes=1 << 33, host_peak_bytes=1 << 34)
    known = KnownStep(long_trace(), (10**11, 10**11))
    return builder.build(Counters(), 0, swaps=nothing, chunks=chunks, known=known)


def taken_s(words: list[str]) -> float:
    """Seconds of a command."""
    start_ns = time.perf_counter_ns()
    subprocess.run([sys.executable, "-m", "umadvise", "report", "-q", *words], check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter_ns() - start_ns) / 1e9


def rows(folder: Path) -> list[ReportRow]:
    """Runs every report on a file in a folder, and leaves the page there."""
    file, page = str(folder / "long.json"), str(folder / "long.html")
    fault_profile.write(long_profile(), file)
    commands = {
        "HTML of two runs, s": [file, "--html", page, "--against", file],
        "HTML, s": [file, "--html", page],
        "trace, s": [file, "--trace", str(folder / "long.trace")],
        "terminal, s": [file],
    }
    taken = {name: min(taken_s(words) for _ in range(ROUNDS)) for name, words in commands.items()}
    taken["HTML, MB"] = Path(page).stat().st_size / 1e6
    return [ReportRow(name, taken[name], allowed) for name, allowed in ALLOWED.items()]


def main() -> int:
    """Prints a table; 1 where something takes more than is allowed."""
    parser = command_line(__doc__)
    add_results(parser)
    parser.add_argument("--html", type=Path, metavar="FILE", help="keep the page")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = rows(Path(folder))
        if options.html is not None:
            options.html.write_bytes(Path(folder, "long.html").read_bytes())
    table = Table("of a step with 100,000 ops", "taken", "allowed", "ratio", title=f"on {os.cpu_count()} cores")
    for row in found:
        table.add_row(row.name, f"{row.taken:.2f}", f"{row.allowed:.2f}", f"{row.taken / row.allowed:.2f}")
    Console().print(table)
    ratios = {row.name: row.taken / row.allowed for row in found}
    write_results(options, "umadvise.benchmark-report/1", ratios, rows=[asdict(row) for row in found])
    return int(any(ratio > 1 for ratio in ratios.values()))


if __name__ == "__main__":
    sys.exit(main())
