"""Networks of a fixed size, each trained in the few ways that decide whether umadvise is fast.

Each comparison is one stage. Plain PyTorch comes first, then what its users do to save memory, then umadvise: in parts
of plain PyTorch's peak, and in the peaks that the others have. umadvise is not imported here: the machine may lack what
it needs until the bundle has been found.
"""

from dataclasses import dataclass
from typing import Any

from record import GpuCheck, StageError
from training import peer_row, rung_row, train_rows
from workloads import GIB, UNADVISED, SizedNetwork, dry_run_size

CHECKPOINTED = "activation checkpointing"
OFFLOADED = "checkpointing, blocks' inputs on the host"
TORCHAO, TORCHAO_GRADIENTS = "torchao CPUOffloadOptimizer", "torchao CPUOffloadOptimizer, gradients too"
WARM_UP = 12
"""Steps of umadvise until a step repeats itself: on an H100 the first twelve mapped memory (profiles/measured)."""


@dataclass(frozen=True)
class SpeedComparison:
    """One network in several ways.

    Attributes:
        network: the network and its size.
        peak_bytes: about what plain PyTorch takes; the stage needs that much of the device and of the host.
        peers: ways of others, the most important first.
        ours: rungs of umadvise in the same order, each with what says its budget (`rung_row`).
        managed: some rows of umadvise are in managed memory.
    """

    network: SizedNetwork
    peak_bytes: float
    peers: tuple[str, ...]
    ours: tuple[tuple[str, dict[str, Any]], ...]
    managed: bool = False


def _percent(rung: str, percent: float) -> tuple[str, dict[str, Any]]:
    return rung, {"budget_percent": percent}


def _beside(rung: str, peer: str) -> tuple[str, dict[str, Any]]:
    return rung, {"budget_of": peer}


COMPARISONS = {
    "bert_32": SpeedComparison(
        SizedNetwork("bert_large", {"batch": 32, "length": 512}, bf16=True),
        46.1 * GIB,
        ("vanilla", CHECKPOINTED, "vanilla again", OFFLOADED),
        (_percent("swap+recompute", 50), _percent("swap+recompute", 25), _percent("swap+recompute", 23.5)),
    ),
    "bert_16": SpeedComparison(
        SizedNetwork("bert_large", {"batch": 16, "length": 512}, bf16=True),
        25.3 * GIB,
        ("vanilla", CHECKPOINTED, "save_on_cpu(pin_memory=True)"),
        (_percent("swap+recompute", 50), _percent("swap", 50)),
    ),
    "resnet_256": SpeedComparison(
        SizedNetwork("resnet50", {"batch": 256}, bf16=True),
        10.9 * GIB,
        ("vanilla", CHECKPOINTED, "vanilla again"),
        (_percent("swap+recompute", 50), _percent("swap", 50)),
    ),
    "vit_giant": SpeedComparison(
        SizedNetwork("vit_giant", {"batch": 32}),
        9.2 * GIB,
        ("vanilla", TORCHAO, TORCHAO_GRADIENTS, "vanilla again"),
        (_beside("swap", TORCHAO), _beside("swap", TORCHAO_GRADIENTS)),
    ),
    "bert_managed": SpeedComparison(
        SizedNetwork("bert_large", {"batch": 2, "length": 128}),
        6.2 * GIB,
        ("vanilla",),
        tuple(_percent(rung, 50) for rung in (UNADVISED, "advise", "window", "swap")),
        managed=True,
    ),
}
"""By name of the stage, the most important first."""


def compare(check: GpuCheck, *, name: str) -> Any:
    """The stage of one comparison.

    Raises:
        StageError: the device or the host has too little memory for plain PyTorch, or a row failed.
    """
    chosen = COMPARISONS[name]
    limit_bytes = check.managed_limit_bytes() if chosen.managed else min(check.free_bytes(), check.host_bytes())
    network = dry_run_size(chosen.network) if check.small else chosen.network
    if not check.small and chosen.peak_bytes > limit_bytes:
        raise StageError(f"{chosen.network.name} takes {chosen.peak_bytes:.0f} bytes, and {limit_bytes} are free")
    peers = chosen.peers[:1] if check.small else chosen.peers
    ours = [rung_row(rung, **budget) for rung, budget in chosen.ours]
    ours = [row for row in ours if not check.small or row.get("budget_of") in (None, *peers)]
    if check.dry_run:  # only a GPU's allocator tells plain PyTorch's peak
        ours.insert(0, {"name": "resident", "rung": "resident"})
    return train_rows(check, network, limit_bytes, [*map(peer_row, peers)], ours, warm_up=WARM_UP)
