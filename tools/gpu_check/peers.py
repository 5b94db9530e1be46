"""What a user would pick instead of umadvise: torch alone, and the ways to save memory that come with it or beside it.

Each way changes a workload before its first step, or is around all of them. torch and its kin are imported by the way
that needs them: the names are read without any of them.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from workloads import around_forward, checkpoint_blocks

COMPILED_PART = 0.5
"""Of the activations that a compiled graph would keep, those that it may."""
_OPTIMIZER_OPTIONS = ("lr", "betas", "eps", "weight_decay", "momentum", "nesterov")

Step = Callable[[], Any]


def _save_on_cpu(workload: Any) -> None:
    save_on_cpu = importlib.import_module("torch.autograd.graph").save_on_cpu
    around_forward(workload, lambda _: save_on_cpu(pin_memory=True))


def _torchtune(workload: Any) -> None:
    offload = importlib.import_module("torchtune.training").OffloadActivations
    around_forward(workload, lambda _: offload(use_pin_memory=True, use_streams=True))


def _offloaded_regions(workload: Any) -> None:
    """As transformers' `gradient_checkpointing_kwargs={"offload": True}` does it (huggingface/transformers#48444)."""
    save_on_cpu = importlib.import_module("torch.autograd.graph").save_on_cpu
    checkpoint_blocks(workload, lambda: save_on_cpu(pin_memory=True))


def _torchao(workload: Any, **more: bool) -> None:
    offloaded = importlib.import_module("torchao.optim").CPUOffloadOptimizer
    for optimizer in workload.optimizers:
        options = {name: value for name, value in optimizer.defaults.items() if name in _OPTIMIZER_OPTIONS}
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        other = offloaded(parameters, type(optimizer), **options, **more)
        optimizer.step, optimizer.zero_grad = other.step, lambda other=other, **_: other.zero_grad()


@contextmanager
def _compiled(workload: Any, on_gpu: bool) -> Iterator[None]:
    config: Any = importlib.import_module("torch._functorch.config")
    backend = "inductor" if on_gpu else "eager"  # a dry run has no time for a compiler
    with config.patch(activation_memory_budget=COMPILED_PART):
        for model in workload.modules:
            model.compile(backend=backend)
        try:
            yield
        finally:
            importlib.import_module("torch._dynamo").reset()


@dataclass(frozen=True)
class Peer:
    """One way.

    Attributes:
        prepare: changes a workload before its first step.
        modules: what must be importable for it.
        gpu_modules: what must be importable besides on a GPU.
        gpu_only: it works nowhere else.
        same_losses: it computes what torch alone computes, to the last bit.
        usual: stages that train a network in every way have a row of it; others name it.
        around: what holds while a workload is trained on a GPU, or not.
    """

    prepare: Callable[[Any], object] = lambda _workload: None
    modules: tuple[str, ...] = ()
    gpu_modules: tuple[str, ...] = ()
    gpu_only: bool = False
    same_losses: bool = True
    usual: bool = True
    around: Callable[[Any, bool], AbstractContextManager[None]] = lambda *_: nullcontext()

    @contextmanager
    def use(self, workload: Any, on_gpu: bool) -> Iterator[Step]:
        """Prepares a workload and yields its step."""
        self.prepare(workload)
        with self.around(workload, on_gpu):
            yield workload.step

    def absent(self, *, on_gpu: bool) -> str | None:
        """Why this machine lacks it; None where it does not."""
        needed = self.modules + (self.gpu_modules if on_gpu else ())
        missing = [name for name in needed if not _importable(name)]
        if missing:
            return f"{missing[0]} is not installed"
        return "it needs a GPU" if self.gpu_only and not on_gpu else None


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # of a package around it; of a module without a specification
        return False


WAYS = {
    "vanilla": Peer(),
    "vanilla again": Peer(),
    "activation checkpointing": Peer(checkpoint_blocks),
    "save_on_cpu(pin_memory=True)": Peer(_save_on_cpu, same_losses=False),  # it does not keep strides
    "torchtune OffloadActivations": Peer(_torchtune, ("torchtune.training",)),
    "torchao CPUOffloadOptimizer": Peer(_torchao, ("torchao.optim",), gpu_only=True, same_losses=False),
    "torchao CPUOffloadOptimizer, gradients too": Peer(
        partial(_torchao, offload_gradients=True), ("torchao.optim",), gpu_only=True, same_losses=False, usual=False
    ),
    "checkpointing, blocks' inputs on the host": Peer(_offloaded_regions, same_losses=False, usual=False),
    "compiled, activation_memory_budget": Peer(around=_compiled, gpu_modules=("triton",), same_losses=False),
}
"""By name, the most important first: both vanilla runs, then what needs nothing but torch."""
