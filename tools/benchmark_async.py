"""Benchmark of the engine on a GPU that computes while the host runs ahead: simulated, in virtual time.

python tools/benchmark_async.py [--networks bert_large resnet50 gpt2_medium] [--shares 0.5 0.33] [--factors 0.5 1 2]
    [--jitter 0] [--device h100-sxm-80gb] [--seconds 20] [--peers] [--json FILE]

The engine runs as in a session with the policy swap (umadvise.simulator.gpu); its driver calls and ops take host time
by a table of published costs, times each factor. A row says what a steady step takes beside what the plan promises
and what no plan can beat, how often the engine made the host wait for the device, and how many calls map memory. Steps
are recorded dry for the device. The figures repeat exactly on any machine if the plan's search ends by itself.

With --peers the budgets are what torch's own means need, `save_on_cpu(pin_memory=True)` and checkpointed layers, and a
row says what these take there and what a session does. Exit code 1: a session is not as fast as it is to be.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import async_peers
from async_peers import PeerRow
from harness import command_line
from planned_steps import STEPS, Planned, planned
from rich.console import Console
from rich.table import Table

from umadvise.devices.catalogue import load_device
from umadvise.recording.dry import recorder as dry
from umadvise.records.device import DeviceProfile
from umadvise.simulator.gpu import GpuSimulation, simulate_gpu

MAPPING = ("cuMemMap", "cuMemUnmap", "cuMemSetAccess")


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


def measure(
    network: str, device: DeviceProfile, shares: list[float], factors: list[float], seconds: float, jitter: float
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
                jitter=jitter,
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
    parser.add_argument("--jitter", type=float, default=0.0, help="part by which kernels and the host take longer")
    parser.add_argument("--seconds", type=float, default=20.0, help="that a plan's search may take")
    parser.add_argument("--peers", action="store_true", help="in what torch's own means need, in place of the shares")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows")
    options = parser.parse_args()
    device = load_device(options.device)
    console = Console(width=200)
    rows: list[AsyncRow] = []
    of_peers: list[PeerRow] = []
    for network in options.networks:
        if options.peers:
            of_peers += async_peers.measure(network, device, options.factors, options.seconds)
        else:
            rows += measure(network, device, options.shares, options.factors, options.seconds, options.jitter)
    console.print(async_peers.table(of_peers, device) if options.peers else table(rows, device))
    if options.json is not None:
        body = {
            "schema": "umadvise.benchmark-async-peers/1" if options.peers else "umadvise.benchmark-async/1",
            "device": options.device,
            "rows": [*map(asdict, rows), *map(asdict, of_peers)],
        }
        options.json.write_text(json.dumps(body, indent=1) + "\n")
    return int(any(each.speed < each.least_speed for each in of_peers))


if __name__ == "__main__":
    sys.exit(main())
