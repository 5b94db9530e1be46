"""Whether reports explain every second: BERT-Large on each rung, in a third of the memory that it needs.

    python tools/check_every_second.py [--rungs window advise swap swap+recompute auto] [--layers 24] [--steps 4]

Time is real, and link and faults are charged as those of a V100, unless --clock makes time virtual. For each rung it
prints the most of any step that nobody explains (bar: 2 %), and by how much the sums by phase, module, tensor and op
part from the totals: of bytes (bar: none) and of time (bar: 1 %). It fails where a bar is not met.
"""

import statistics
import sys

import torch
from harness import command_line
from networks.bert import bert_large, masked_loss

import umadvise
from umadvise.recording.dry.recorder import record
from umadvise.recording.workload import Workload, training_step
from umadvise.records.fault_profile import FaultProfile, Tables, Tally
from umadvise.records.units import format_bytes, format_duration_ns

RUNGS = ("window", "advise", "swap", "swap+recompute")
CARD = "v100-16gb"
MOST_UNEXPLAINED, MOST_APART = 0.02, 0.01
_OF_TENSORS = ("role", "tensor")
_OF_OPS = ("phase", "module", "op")


def unexplained(profile: FaultProfile) -> float:
    """The largest part of a step that is in no kind of time."""
    times = [(step.duration_ns, step.times.sum_ns) for step in profile.steps if step.times is not None]
    assert len(times) == len(profile.steps)
    return max(abs(all_ns - known_ns) / all_ns for all_ns, known_ns in times)


def _rows(tables: Tables, name: str) -> list[Tally]:
    table = getattr(tables, name)
    return [*table.rows, *((table.rest,) if table.rest is not None else ())]


def _sums(tables: Tables, name: str, *fields: str) -> int:
    return sum(getattr(row, field) for row in _rows(tables, name) for field in fields)


def _bytes(tables: Tables, name: str) -> list[int]:
    rows = _rows(tables, name)
    paged = [sum(row.bytes_h2d.total or 0 for row in rows), sum(row.bytes_d2h.total or 0 for row in rows)]
    return [*paged, _sums(tables, name, "swap_in_bytes"), _sums(tables, name, "swap_out_bytes")]


def bytes_apart(profile: FaultProfile) -> int:
    """The most bytes by which the sums of any table part from the device's own counters."""
    counters, swaps, tables = profile.counters, profile.swaps, profile.tables
    assert tables is not None and counters.bytes_h2d is not None and counters.bytes_d2h is not None
    totals = [counters.bytes_h2d.total or 0, counters.bytes_d2h.total or 0]
    totals += [swaps.swap_in_bytes, swaps.swap_out_bytes] if swaps is not None else [0, 0]
    names = (*_OF_TENSORS, *_OF_OPS)
    return max(abs(a - b) for name in names for a, b in zip(_bytes(tables, name), totals, strict=True))


def time_apart(profile: FaultProfile) -> float:
    """The largest part by which the sums of any table part from what steps took, for what they ran and stood still."""
    tables, times = profile.tables, profile.times
    assert tables is not None and times is not None
    served_ns = profile.counters.fault_service_ns or 0
    waited_ns = times.swap_in_ns + times.on_demand_ns + times.room_ns
    pairs = [(_sums(tables, name, "compute_ns"), times.compute_ns) for name in _OF_OPS]
    for name in (*_OF_TENSORS, *_OF_OPS):
        pairs.append((_sums(tables, name, "service_ns"), served_ns))
        pairs.append((_sums(tables, name, "wait_copy_ns", "wait_room_ns"), waited_ns))
    return max(abs(found - total) for found, total in pairs) / profile.duration_ns


def workload(layers: int, optimizer: str) -> Workload:
    """BERT-Large, or so many layers of it, on one short sequence."""
    made = bert_large(1, length=64, layers=layers)
    if optimizer == "adamw":
        return made
    (model,) = made.modules
    sgd = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    return training_step(model, sgd, masked_loss, *made.inputs, name=made.name)


def profile(work: Workload, policy: str, capacity_bytes: int, steps: int, *, virtual: bool) -> FaultProfile:
    """What a run of a few steps on one rung says of itself."""
    (model,), (optimizer,) = work.modules, work.optimizers
    link, clock = (None, CARD) if virtual else (CARD, None)
    device = umadvise.EmulatedDevice(capacity_bytes, link=link, clock=clock)
    with umadvise.session(model, optimizer, device=device, policy=policy) as um:
        moved = training_step(model, optimizer, masked_loss, *map(um.to_device, work.inputs))
        for number in range(1, steps + 1):
            with um.step():
                moved.step()
            print(f"  {policy}: step {number}", file=sys.stderr, flush=True)
        return um.profile()


def main() -> int:
    """Prints a line for each rung."""
    parser = command_line(__doc__)
    parser.add_argument("--rungs", nargs="+", default=RUNGS)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument(
        "--optimizer", choices=("adamw", "sgd"), default="adamw", help="sgd: with momentum, 4 GB in all"
    )
    parser.add_argument("--clock", action="store_true", help="virtual time")
    options = parser.parse_args()
    needed_bytes = record(lambda: workload(options.layers, options.optimizer), target="cpu").peak_bytes
    there_bytes = needed_bytes // 3
    print(f"BERT, {options.layers} layers: {format_bytes(needed_bytes)} needed, {format_bytes(there_bytes)} there")
    print(f"{'rung':16}{'median step':>12}{'unexplained':>13}{'bytes apart':>13}{'time apart':>12}")
    holds = True
    for rung in options.rungs:
        torch.manual_seed(0)
        work = workload(options.layers, options.optimizer)
        found = profile(work, rung, there_bytes, options.steps, virtual=options.clock)
        step_ns = statistics.median_low(step.duration_ns for step in found.steps)
        left, bytes_, time = unexplained(found), bytes_apart(found), time_apart(found)
        holds &= left <= MOST_UNEXPLAINED and bytes_ == 0 and time <= MOST_APART
        print(f"{rung:16}{format_duration_ns(step_ns):>12}{left:13.2%}{bytes_:13,}{time:12.2%}", flush=True)
        del work
    return 0 if holds else 3


if __name__ == "__main__":
    sys.exit(main())
