"""What a session makes of the memory that torch's own means need for a network, run by the engine in virtual time."""

from collections.abc import Iterator
from dataclasses import dataclass

from peer_programs import CHECKPOINTED, PEERS, MarkedStep, peer_step
from planned_steps import STEPS, planned
from rich.table import Table

from umadvise.recording.dry import recorder as dry
from umadvise.records.device import DeviceProfile
from umadvise.records.units import format_bytes
from umadvise.simulator.gpu import simulate_gpu

SWAP, SWAP_CHECKPOINTED, SWAP_RECOMPUTE = RUNGS = ("swap", "swap, checkpointed", "swap+recompute")
"""How a session runs the network: by swaps alone, as it is or with layers that torch's checkpoint makes again, or with
single ops of these layers that a plan makes again. Where all fits, swaps are none."""
FROM_BOUND, LEAST_SPEED = 1.3, 1.2
"""Where the fastest peer takes so many times the bound of swaps, a session is to be so many times as fast."""


@dataclass(frozen=True, slots=True)
class PeerRow:
    """A network in the memory that one peer needs: what the peer takes of time there, and what a session takes.

    Attributes:
        network: name of the network.
        peer: name of the peer whose peak is the budget.
        budget_bytes: the most bytes that tensors take on the device at once under that peer.
        plain_bytes: the same of the network alone.
        factor: factor by which the session's driver calls and ops take longer than published; the peer's take nothing.
        plain_ms: milliseconds of the network alone.
        peer_ms: milliseconds of a step of the peer.
        fastest_peer_ms: the least of those peers that fit the budget.
        bound_ms: milliseconds below which no plan of swaps alone gets the network in the budget.
        rungs_ms: milliseconds of a steady step by the engine, by name for each of RUNGS.
        rung: name of the fastest of these.
        host_waits: how often the engine makes the host wait for the device in a steady step there, in the mean.
    """

    network: str
    peer: str
    budget_bytes: int
    plain_bytes: int
    factor: float
    plain_ms: float
    peer_ms: float
    fastest_peer_ms: float
    bound_ms: float
    rungs_ms: dict[str, float]
    rung: str
    host_waits: float

    @property
    def step_ms(self) -> float:
        """Milliseconds of a session's step on the fastest rung."""
        return self.rungs_ms[self.rung]

    @property
    def speed(self) -> float:
        """How many times as fast a session is as the fastest peer that fits."""
        return self.fastest_peer_ms / self.step_ms

    @property
    def least_speed(self) -> float:
        """How many times as fast it is to be."""
        return LEAST_SPEED if self.fastest_peer_ms >= FROM_BOUND * self.bound_ms else 1.0


def measure(network: str, device: DeviceProfile, factors: list[float], seconds: float) -> Iterator[PeerRow]:
    """The rows of a network.

    Args:
        network: name of the network, one of STEPS.
        device: profile of the device that is simulated.
        factors: factors of the session's driver calls and ops.
        seconds: time that a plan's search may take.
    """
    build = STEPS[network]
    plain, marked = dry.record(build, device=device), MarkedStep(build, device)
    peers = {name: peer_step(build, device, prepare) for name, prepare in PEERS.items()}
    for name, peer in peers.items():
        budget_bytes = peer.peak_bytes
        chosen = planned(marked.trace, device, budget_bytes, seconds, marked.regions).plan
        steps = {
            SWAP: plain,
            SWAP_CHECKPOINTED: peers[CHECKPOINTED].trace,
            SWAP_RECOMPUTE: marked.running_again(chosen),
        }
        plans = {rung: planned(step, device, budget_bytes, seconds) for rung, step in steps.items()}
        for factor in factors:
            runs = {
                rung: simulate_gpu(
                    step,
                    device,
                    plans[rung].plan,
                    budget_bytes=budget_bytes,
                    chunk_bytes=plans[rung].chunk_bytes,
                    call_factor=factor,
                )
                for rung, step in steps.items()
            }
            rung = min(runs, key=lambda each: runs[each].mean_step_ns)
            yield PeerRow(
                network=network,
                peer=name,
                budget_bytes=budget_bytes,
                plain_bytes=plain.peak_bytes,
                factor=factor,
                plain_ms=plain.duration_ns / 1e6,
                peer_ms=peer.step_ns / 1e6,
                fastest_peer_ms=min(each.step_ns for each in peers.values() if each.peak_bytes <= budget_bytes) / 1e6,
                bound_ms=plans[SWAP].bound_ms,
                rungs_ms={each: run.mean_step_ns / 1e6 for each, run in runs.items()},
                rung=rung,
                host_waits=runs[rung].host_waits,
            )


def table(rows: list[PeerRow], device: DeviceProfile) -> Table:
    """The rows for people."""
    title = f"a session in the memory of a peer, milliseconds of a step on a simulated {device.label}"
    rendered = Table("network", "peer", title=title)
    headings = ("its peak", "of plain", "peer", "fastest peer", "bound", "calls", *RUNGS, "speed", "to be")
    for heading in headings:
        rendered.add_column(heading, justify="right")
    for each in rows:
        rendered.add_row(
            each.network,
            each.peer,
            format_bytes(each.budget_bytes),
            f"{each.budget_bytes / each.plain_bytes:.0%}",
            f"{each.peer_ms:.1f}",
            f"{each.fastest_peer_ms:.1f}",
            f"{each.bound_ms:.1f}",
            f"x{each.factor:g}",
            *(f"{each.rungs_ms[rung]:.1f}" for rung in RUNGS),
            f"x{each.speed:.3f}",
            f"x{each.least_speed:g}",
        )
    return rendered
