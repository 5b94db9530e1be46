"""What a memory's holes and its mapping calls cost a step whose storages move to any free memory.

python tools/pool_models.py [--networks bert_large resnet50 gpt2_medium] [--shares 0.5 0.33] [--device h100-sxm-80gb]
    [--seconds 20] [--json FILE]

Steps are recorded dry and planned as in a session (planned_steps.py); a replay in virtual time (pool_replay.py) then
moves storages through a memory of one kind (pool_memory.py): bytes alone, address ranges over chunks that are remapped
on demand or that stay mapped, one pool with holes, and ranges laid out ahead of time for a steady step (pool_layout.py)
by predicted times or by the order of the host's calls alone. The bound is what no plan can beat, the plan's time what
the session's simulator says of it in chunks.
"""

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from harness import command_line
from planned_steps import STEPS, Planned, planned
from pool_layout import ChunkLayout, Stays
from pool_memory import CHUNK_BYTES, AliasedRanges, BestFit, Exact, PoolMemory, RemappedRanges
from pool_replay import PoolFullError, Replay
from rich.console import Console
from rich.table import Table

from umadvise.devices.catalogue import load_device
from umadvise.recording.dry import recorder as dry
from umadvise.records.device import DeviceProfile
from umadvise.records.plan import ActionKind, Plan
from umadvise.records.timeline import SpanKind, Track
from umadvise.records.trace import Trace
from umadvise.simulator.swap import simulate_swap

ASKED: dict[str, Callable[[int], PoolMemory]] = {
    "exact": Exact,
    "ranges remapped": RemappedRanges,
    "ranges aliased": AliasedRanges,
    "one pool": BestFit,
}
"""Memories that choose when they are asked."""
LAID_OUT = {"laid out by times": True, "laid out by order": False}


@dataclass(frozen=True, slots=True)
class Run:
    """A steady step on one kind of memory.

    Attributes:
        memory: kind of memory.
        step_ms: milliseconds of the step; None where an op finds no room.
        evictions: storages that left though no plan asked for it.
        chunks: chunks that a layout needs, of `budget_chunks`; both None without a layout.
        mapped: chunks that were mapped in all steps, with a layout those under all of its ranges.
        mapped_steady: chunks that were mapped in the last step.
        ranges: address ranges of a layout.
        host_waits: how often the host waited for memory to become idle.
    """

    memory: str
    step_ms: float | None = None
    evictions: int = 0
    chunks: int | None = None
    budget_chunks: int | None = None
    mapped: int = 0
    mapped_steady: int = 0
    ranges: int | None = None
    host_waits: int = 0


@dataclass(frozen=True, slots=True)
class PoolRow:
    """A network in a budget: its steps on each memory."""

    network: str
    share: float
    budget_bytes: int
    bound_ms: float
    planned_ms: float
    runs: list[Run]


def reanchored(trace: Trace, device: DeviceProfile, made: Planned, budget_bytes: int) -> Plan:
    """A plan whose swap-ins stand behind the op after which their copies begin where it is executed to the letter.

    A plan's swap-in begins when there is room; whoever takes room in the order of the host's calls needs to know when
    that is, or it takes the room that ops before need.
    """
    predicted = simulate_swap(
        trace,
        device,
        made.plan,
        budget_bytes=budget_bytes,
        allocator="va_chunks",
        chunk_bytes=made.chunk_bytes,
        eviction="belady",
    )
    spans, actions = predicted.timeline, made.plan.actions
    if spans is None:
        raise RuntimeError("simulate_swap: expected the timeline that was asked for")
    ops = (spans.track == Track.COMPUTE) & (spans.kind == SpanKind.OP) & (spans.step == spans.step.max())
    op_begins = np.zeros(len(trace.ops))
    op_begins[spans.op[ops]] = spans.start_ns[ops]
    copies = (spans.track == Track.H2D) & (spans.kind == SpanKind.COPY) & (spans.start_ns >= op_begins[0])
    copied, begun = spans.storage[copies], np.searchsorted(op_begins, spans.start_ns[copies], side="right") - 1
    op, after, kept = actions.op.copy(), actions.after.copy(), np.ones(len(actions), bool)
    for row in np.flatnonzero(actions.kind == ActionKind.SWAP_IN).tolist():
        storage = actions.storage[row]
        uses = trace.accesses.op[(trace.accesses.storage == storage) & (trace.accesses.op >= op[row])]
        until = uses[0] if len(uses) else len(op_begins)
        began = begun[(copied == storage) & (begun >= op[row] - 1) & (begun < until)]
        if not len(began):  # it came before the copy to the host had ended, and cancelled that
            left = (actions.storage[:row] == storage) & (actions.kind[:row] == ActionKind.SWAP_OUT) & kept[:row]
            kept[np.flatnonzero(left)[-1:]] = kept[row] = False
        elif began[0] > op[row]:
            op[row], after[row] = began[0], 1
    columns = {name: getattr(actions, name) for name in actions.DTYPES} | {"op": op, "after": after}
    order = np.lexsort((after, op))
    order = order[kept[order]]
    return dataclasses.replace(
        made.plan, actions=type(actions)(**{name: column[order] for name, column in columns.items()})
    )


def measure(network: str, device: DeviceProfile, shares: list[float], seconds: float) -> Iterator[PoolRow]:
    """The rows of a network."""
    trace = dry.record(STEPS[network], device=device)
    for share in shares:
        budget_bytes = int(trace.peak_bytes * share)
        made = planned(trace, device, budget_bytes, seconds, chunk_bytes=CHUNK_BYTES)
        plan = reanchored(trace, device, made, budget_bytes)
        stays = Stays.of(Replay(trace, device, plan, Exact(budget_bytes)), budget_bytes)
        runs = [run(name, trace, device, plan, kind(budget_bytes)) for name, kind in ASKED.items()]
        runs += [laid_out(name, trace, device, plan, ChunkLayout(stays, predicted=by)) for name, by in LAID_OUT.items()]
        yield PoolRow(network, share, budget_bytes, made.bound_ms, made.planned_ms, runs)


def run(name: str, trace: Trace, device: DeviceProfile, plan: Plan, memory: PoolMemory) -> Run:
    """The last of the replayed steps."""
    try:
        steps = Replay(trace, device, plan, memory).steps
    except PoolFullError:
        return Run(name)
    last = steps[-1]
    return Run(
        name,
        last.ns / 1e6,
        last.evictions,
        mapped=sum(step.chunks for step in steps),
        mapped_steady=last.chunks,
        host_waits=last.host_waits,
    )


def laid_out(name: str, trace: Trace, device: DeviceProfile, plan: Plan, layout: ChunkLayout) -> Run:
    """The last of the replayed steps with a layout, whose ranges are mapped before."""
    return dataclasses.replace(
        run(name, trace, device, plan, layout.memory()),
        chunks=layout.count,
        budget_chunks=layout.stays.budget_chunks,
        mapped=sum(map(len, layout.chunks)),
        ranges=sum(len(chunks) > 0 for chunks in layout.chunks),
    )


def table(rows: list[PoolRow], device: DeviceProfile) -> Table:
    """The rows for people."""
    made = Table("network", title=f"a planned step, milliseconds on a simulated {device.label}")
    for heading in ("budget", "memory", "step", "of bound", "of plan", "evictions", "chunks", "of", "mapped", "steady"):
        made.add_column(heading, justify="right")
    made.add_column("host waits", justify="right")
    for row in rows:
        for each in row.runs:
            made.add_row(row.network, f"{row.share:.0%}", each.memory, *times(each.step_ms, row), *counts(each))
    return made


def times(step_ms: float | None, row: PoolRow) -> tuple[str, str, str]:
    """A step's time, and how many times the bound and the plan's time it is."""
    if step_ms is None:
        return "no room", "", ""
    return f"{step_ms:.1f}", f"x{step_ms / row.bound_ms:.3f}", f"x{step_ms / row.planned_ms:.3f}"


def counts(made: Run) -> Iterator[str]:
    """What else a step did."""
    for number in (made.evictions, made.chunks, made.budget_chunks, made.mapped, made.mapped_steady, made.host_waits):
        yield "" if number is None else f"{number:,}"


def main() -> int:
    """Measures and prints."""
    parser = command_line(__doc__)
    parser.add_argument("--networks", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--shares", nargs="+", type=float, default=[0.5, 0.33])
    parser.add_argument("--device", default="h100-sxm-80gb")
    parser.add_argument("--seconds", type=float, default=20.0, help="that a plan's search may take")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows")
    options = parser.parse_args()
    device = load_device(options.device)
    rows = [row for network in options.networks for row in measure(network, device, options.shares, options.seconds)]
    Console(width=140).print(table(rows, device))
    if options.json is not None:
        body = {"schema": "umadvise.pool-models/1", "device": options.device, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(body, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
