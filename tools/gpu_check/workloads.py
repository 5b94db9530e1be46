"""The networks that are trained, in sizes that fit a limit of memory, with kernels that repeat to the last bit."""

import functools
import importlib.util
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
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
_DRY_RUN: dict[str, dict[str, Any]] = {
    "bert_large": {"batch": 2, "length": 16, "layers": 1, "hidden": 640, "heads": 4, "vocabulary": 500},
    "resnet50": {"batch": 16, "image": 64, "width": 32, "classes": 10, "layers": (1, 1, 1, 1)},
    "vit_giant": {"batch": 2, "image": 28, "layers": 2, "width": 256, "heads": 4},
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
        bf16: forward passes are in bfloat16, by autocast.
    """

    name: str
    options: dict[str, Any]
    stand_in: bool = False
    bf16: bool = False

    def build(self) -> Any:
        """The workload, on torch's default device: umadvise.recording.workload.Workload."""
        if self.name == "vit_giant":
            import vit_giant

            workload = vit_giant.vit_giant(**self.options)
        elif self.stand_in:
            import stand_in

            workload = stand_in.bert_large(**self.options)
        else:
            from networks import NETWORKS

            workload = NETWORKS[self.name](**self.options)
        if self.bf16:
            around_forward(workload, _autocast)
            for model in workload.modules:
                model.register_forward_hook(_in_float32)
        return workload


def choose(name: str, limit_bytes: int, *, dry_run: bool) -> SizedNetwork | None:
    """The largest size of a network whose memory stays below a limit with all that comes on top; None: none does.

    Args:
        name: the network's name.
        limit_bytes: the limit of memory.
        dry_run: a small one, whatever the limit.
    """
    stand_in = name == "bert_large" and (dry_run or importlib.util.find_spec("transformers") is None)
    if dry_run:
        return SizedNetwork(name, _DRY_RUN[name], stand_in)
    for options, needs_bytes in _SIZES[name]:
        if needs_bytes * SLACK <= limit_bytes:
            return SizedNetwork(name, options, stand_in)
    return None


def dry_run_size(network: SizedNetwork) -> SizedNetwork:
    """The same network in the size of a dry run."""
    stand_in = network.name == "bert_large"
    return replace(network, options=_DRY_RUN[network.name], stand_in=stand_in)


def around_forward(workload: Any, context: Callable[[str], AbstractContextManager[Any]]) -> None:
    """Has each model's forward pass run in a context, made from the kind of device that the model is on."""

    def inside(model: Any, forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
        with context(next(model.parameters()).device.type):
            return forward(*inputs, **named)

    for model in workload.modules:
        model.forward = functools.partial(inside, model, model.forward)


def _autocast(kind: str) -> AbstractContextManager[Any]:
    import torch
    from torch.cuda.amp import common

    if kind == "meta":  # of a recording, which pretends to be of a CPU or a GPU
        kind = "cpu" if common.amp_definitely_not_available() else "cuda"
    return torch.autocast(kind, torch.bfloat16)


def _in_float32(_model: Any, _inputs: Any, output: Any) -> Any:
    """So that losses tell more than their first eight bits."""
    return output.float() if hasattr(output, "float") else output


def checkpoint_blocks(workload: Any, around: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
    """Makes each block of the network a region whose activations are recomputed in backward.

    Args:
        workload: the workload to change.
        around: makes a context for each region's forward pass, outside of which the region is recomputed.
    """
    from torch.utils.checkpoint import checkpoint

    def region(forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
        with around():
            return checkpoint(forward, *inputs, use_reentrant=False, **named)

    for model in workload.modules:
        for module in model.modules():
            if type(module).__name__ in _BLOCKS:
                module.forward = functools.partial(region, module.forward)


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
