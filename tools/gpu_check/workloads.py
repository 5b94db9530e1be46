"""The networks that are trained, in sizes that fit a limit of memory, with kernels that repeat to the last bit."""

import functools
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

GIB = 1 << 30
UNADVISED = "unified, no advice"
"""Beside the rungs of the ladder: unified memory as CUDA gives it."""
_BLOCKS = ("BertLayer", "TransformerEncoderLayer", "_Bottleneck")
"""Classes of the modules that are checkpointed, each a region."""

# By network: options of its factory, and about what vanilla torch takes at its peak. Of those that fit the largest one.
_SIZES: dict[str, tuple[tuple[dict[str, int], float], ...]] = {
    "bert_large": (
        ({"batch": 2, "length": 128}, 6.2 * GIB),
        ({"batch": 2, "length": 128, "layers": 12}, 3.6 * GIB),
        ({"batch": 1, "length": 128, "layers": 4}, 1.7 * GIB),
    ),
    "resnet50": (({"batch": 48}, 5.0 * GIB), ({"batch": 24}, 2.7 * GIB), ({"batch": 8}, 1.1 * GIB)),
}
# The same, of sizes whose copies a GPU has the time for: memory that is not managed has no limit but what is free.
_LARGE_SIZES: dict[str, tuple[tuple[dict[str, int], float], ...]] = {
    "bert_large": (
        ({"batch": 16, "length": 512}, 51.0 * GIB),
        ({"batch": 8, "length": 512}, 27.0 * GIB),
        ({"batch": 4, "length": 512}, 15.5 * GIB),
    ),
    "resnet50": (({"batch": 384}, 38.0 * GIB), ({"batch": 192}, 19.0 * GIB), ({"batch": 96}, 10.0 * GIB)),
}
_DRY_RUN: dict[str, dict[str, Any]] = {
    "bert_large": {"batch": 2, "length": 16, "layers": 1, "hidden": 640, "heads": 4, "vocabulary": 500},
    "resnet50": {"batch": 16, "image": 64, "width": 32, "classes": 10, "layers": (1, 1, 1, 1)},
}
SLACK = 1.25
"""Of what arenas hold beyond what vanilla torch holds."""


@dataclass(frozen=True)
class SizedNetwork:
    """One network: a factory's name and options.

    Attributes:
        name: a factory of examples/networks.
        options: arguments of the factory.
        stand_in: another transformer takes BERT's place, as its package is not there.
    """

    name: str
    options: dict[str, Any]
    stand_in: bool = False

    def build(self) -> Any:
        """The workload, on torch's default device: umadvise.recording.workload.Workload."""
        if self.stand_in:
            import stand_in

            return stand_in.bert_large(**self.options)
        from networks import NETWORKS

        return NETWORKS[self.name](**self.options)


def choose(name: str, limit_bytes: int, *, dry_run: bool, large: bool = False) -> SizedNetwork | None:
    """The largest size of a network whose memory stays below a limit with all that comes on top; None: none does.

    Args:
        name: the network's name.
        limit_bytes: the limit of memory.
        dry_run: a small one, whatever the limit.
        large: whether it is one of the sizes that are too large for managed memory.
    """
    stand_in = name == "bert_large" and (dry_run or importlib.util.find_spec("transformers") is None)
    if dry_run:
        return SizedNetwork(name, _DRY_RUN[name], stand_in)
    for options, needs_bytes in (_LARGE_SIZES if large else _SIZES)[name]:
        if needs_bytes * SLACK <= limit_bytes:
            return SizedNetwork(name, options, stand_in)
    return None


def checkpoint_blocks(workload: Any) -> None:
    """Makes each block of the network a region whose activations are made again in backward."""
    from torch.utils.checkpoint import checkpoint

    for model in workload.modules:
        for module in model.modules():
            if type(module).__name__ in _BLOCKS:
                module.forward = functools.partial(checkpoint, module.forward, use_reentrant=False)


def repeatable() -> None:
    """Picks kernels that do the same sums in the same order each time (needs CUBLAS_WORKSPACE_CONFIG=:4096:8).

    Goes on where there is no such kernel: the second vanilla run tells whether it mattered.
    """
    import torch

    torch.set_num_threads(1)  # of the CPU, for dry runs on a busy machine
    torch.use_deterministic_algorithms(True, warn_only=True)
    # It would write, and so fault, what nobody asked for.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.deterministic = True
    # The backward pass of these two adds up in any order; the plain products that remain do not.
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_flash_sdp(False)
