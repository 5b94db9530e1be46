"""Benchmark of the engine on a GPU that computes while the host runs ahead: simulated, in virtual time.

python tools/benchmark_async.py [--networks bert_large resnet50 gpt2_medium] [--shares 0.5 0.33] [--factors 0.5 1 2]
    [--device h100-sxm-80gb] [--seconds 20] [--json FILE]

The engine runs as in a session with the policy swap (umadvise.simulator.gpu); its driver calls and ops take host time
by a table of published costs, times each factor. A row says what a steady step takes beside what the plan promises
and what no plan can beat, how often the engine made the host wait for the device, and how many calls map memory. Steps
are recorded dry for the device. The figures repeat exactly on any machine if the plan's search ends by itself.
"""

import functools
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from harness import command_line  # isort: split

from networks import NETWORKS
from rich.console import Console
from rich.table import Table

from umadvise import planners
from umadvise.devices.catalogue import load_device
from umadvise.planners.bounds.bound import lower_bound
from umadvise.recording.dry import recorder as dry
from umadvise.records.device import DeviceProfile
from umadvise.records.plan import Plan
from umadvise.records.trace import Trace
from umadvise.simulator.gpu import GpuSimulation, simulate_gpu
from umadvise.simulator.swap import simulate_swap
from umadvise.training.plans.maker import spare_bytes, staying_bytes
from umadvise.training.plans.view import transferred, view_of

STEPS = {
    "bert_large": functools.partial(NETWORKS["bert_large"], 32, length=512),
    "resnet50": functools.partial(NETWORKS["resnet50"], 128),
    "gpt2_medium": functools.partial(NETWORKS["gpt2"], 8, layers=24, width=1024, heads=16),
}
MAPPING = ("cuMemMap", "cuMemUnmap", "cuMemSetAccess")
_CHUNK_BYTES = 2 << 20  # a session's


@dataclass(frozen=True, slots=True)
class AsyncRow:
    """A steady step of a network in a budget, with driver calls of one speed: means, times in milliseconds."""

    network: str
    share: float
    budget_bytes: int
    chunk_bytes: int
    factor: float
    compute_ms: float
    bound_ms: float
    planned_ms: float
    step_ms: float
    host_waits: float
    host_wait_ms: float
    mapping_calls: float
    driver_calls: float
    call_ms: float
    on_demand_swap_ins: float
    host_pool_growth_bytes: float


@dataclass(frozen=True, slots=True)
class Planned:
    """A step with its plan for a budget."""

    plan: Plan
    chunk_bytes: int
    bound_ms: float
    planned_ms: float


def planned(trace: Trace, device: DeviceProfile, budget_bytes: int, seconds: float) -> Planned:
    """Plans a step as a session does.

    Args:
        trace: trace of the step.
        device: device that the step runs on.
        budget_bytes: device memory for chunks.
        seconds: time that the planner may take.
    """
    chunk_bytes = _CHUNK_BYTES
    stays = staying_bytes(trace, chunk_bytes) + spare_bytes(budget_bytes, chunk_bytes)
    view = view_of(trace, budget_bytes=budget_bytes, chunk_bytes=chunk_bytes, staying_bytes=stays)
    options = {"recompute": False, "paging": False, "seconds": seconds}
    plan = planners.run("best", view.trace, device, view.budget_bytes, **options)
    promised = simulate_swap(view.trace, device, plan, spans=False)
    bound = lower_bound(trace, device, budget_bytes)
    return Planned(transferred(plan, trace), chunk_bytes, bound.step_ns / 1e6, promised.step_ns / 1e6)


def measure(
    network: str, device: DeviceProfile, shares: list[float], factors: list[float], seconds: float
) -> Iterator[AsyncRow]:
    """The rows of a network."""
    trace = dry.record(STEPS[network], device=device)
    for share in shares:
        budget_bytes = int(trace.peak_bytes * share)
        made = planned(trace, device, budget_bytes, seconds)
        for factor in factors:
            run = simulate_gpu(
                trace,
                device,
                made.plan,
                budget_bytes=budget_bytes,
                chunk_bytes=made.chunk_bytes,
                call_factor=factor,
            )
            yield row(network, share, budget_bytes, made, factor, run)


def row(network: str, share: float, budget_bytes: int, made: Planned, factor: float, run: GpuSimulation) -> AsyncRow:
    """What a run says."""
    count, calls = len(run.steady), run.calls.values()
    return AsyncRow(
        network=network,
        share=share,
        budget_bytes=budget_bytes,
        chunk_bytes=made.chunk_bytes,
        factor=factor,
        compute_ms=run.steps[-1].compute_ns / 1e6,
        bound_ms=made.bound_ms,
        planned_ms=made.planned_ms,
        step_ms=run.mean_step_ns / 1e6,
        host_waits=run.host_waits,
        host_wait_ms=sum(call.wait_ns for call in calls) / count / 1e6,
        mapping_calls=sum(call.calls for call in calls if call.function in MAPPING) / count,
        driver_calls=sum(call.calls for call in calls) / count,
        call_ms=sum(call.ns for call in calls) / count / 1e6,
        on_demand_swap_ins=sum(step.swaps.on_demand_swap_ins for step in run.steady) / count,
        host_pool_growth_bytes=(run.steps[-1].swaps.host_pool_bytes - run.steady[0].swaps.host_pool_bytes)
        / (count - 1),
    )


def table(rows: list[AsyncRow], device: DeviceProfile) -> Table:
    """The rows for people."""
    rendered = Table("network", title=f"a planned step, milliseconds on a simulated {device.label}")
    headings = (
        "budget",
        "calls",
        "kernels",
        "bound",
        "plan",
        "engine",
        "of bound",
        "host waits",
        "in ms",
        "maps",
        "calls",
        "in ms",
        "on demand",
    )
    for heading in headings:
        rendered.add_column(heading, justify="right")
    for each in rows:
        rendered.add_row(
            each.network,
            f"{each.share:.0%}",
            f"x{each.factor:g}",
            f"{each.compute_ms:.1f}",
            f"{each.bound_ms:.1f}",
            f"{each.planned_ms:.1f}",
            f"{each.step_ms:.1f}",
            f"x{each.step_ms / each.bound_ms:.2f}",
            f"{each.host_waits:.0f}",
            f"{each.host_wait_ms:.1f}",
            f"{each.mapping_calls:.0f}",
            f"{each.driver_calls:.0f}",
            f"{each.call_ms:.1f}",
            f"{each.on_demand_swap_ins:.1f}",
        )
    return rendered


def main() -> int:
    """Measures and prints."""
    parser = command_line(__doc__)
    parser.add_argument("--networks", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--shares", nargs="+", type=float, default=[0.5, 0.33])
    parser.add_argument("--factors", nargs="+", type=float, default=[0.5, 1.0, 2.0])
    parser.add_argument("--device", default="h100-sxm-80gb")
    parser.add_argument("--seconds", type=float, default=20.0, help="that a plan's search may take")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows")
    options = parser.parse_args()
    device = load_device(options.device)
    rows: list[AsyncRow] = []
    for network in options.networks:
        rows += measure(network, device, options.shares, options.factors, options.seconds)
    Console(width=160).print(table(rows, device))
    if options.json is not None:
        body = {
            "schema": "umadvise.benchmark-async/1",
            "device": options.device,
            "rows": [asdict(each) for each in rows],
        }
        options.json.write_text(json.dumps(body, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
