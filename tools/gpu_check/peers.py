"""What a user would pick instead of umadvise: torch alone, and the ways to save memory that come with it or beside it.

Each way is a context manager that prepares a workload, and yields its step. torch and its kin are imported by the way
that needs them: the names are read without any of them.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from workloads import checkpoint_blocks

COMPILED_PART = 0.5
"""Of the activations that a compiled graph would keep, those that it may."""
_OPTIMIZER_OPTIONS = ("lr", "betas", "eps", "weight_decay", "momentum", "nesterov")

Step = Callable[[], Any]


@contextmanager
def _vanilla(workload: Any, _on_gpu: bool) -> Iterator[Step]:
    yield workload.step


@contextmanager
def _checkpointing(workload: Any, _on_gpu: bool) -> Iterator[Step]:
    checkpoint_blocks(workload)
    yield workload.step


@contextmanager
def _save_on_cpu(workload: Any, _on_gpu: bool) -> Iterator[Step]:
    save_on_cpu = importlib.import_module("torch.autograd.graph").save_on_cpu
    _around_forward(workload, partial(save_on_cpu, pin_memory=True))
    yield workload.step


@contextmanager
def _torchtune(workload: Any, _on_gpu: bool) -> Iterator[Step]:
    offload = importlib.import_module("torchtune.training").OffloadActivations
    _around_forward(workload, partial(offload, use_pin_memory=True, use_streams=True))
    yield workload.step


@contextmanager
def _torchao(workload: Any, _on_gpu: bool) -> Iterator[Step]:
    offloaded = importlib.import_module("torchao.optim").CPUOffloadOptimizer
    for optimizer in workload.optimizers:
        options = {name: value for name, value in optimizer.defaults.items() if name in _OPTIMIZER_OPTIONS}
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        other = offloaded(parameters, type(optimizer), **options)
        optimizer.step, optimizer.zero_grad = other.step, lambda other=other, **_: other.zero_grad()
    yield workload.step


@contextmanager
def _compiled(workload: Any, on_gpu: bool) -> Iterator[Step]:
    config: Any = importlib.import_module("torch._functorch.config")
    backend = "inductor" if on_gpu else "eager"  # a dry run has no time for a compiler
    with config.patch(activation_memory_budget=COMPILED_PART):
        for model in workload.modules:
            model.compile(backend=backend)
        try:
            yield workload.step
        finally:
            importlib.import_module("torch._dynamo").reset()


def _around_forward(workload: Any, context: Callable[[], AbstractContextManager[Any]]) -> None:
    for model in workload.modules:
        model.forward = partial(_inside, context, model.forward)


def _inside(
    context: Callable[[], AbstractContextManager[Any]], forward: Callable[..., Any], *inputs: Any, **named: Any
) -> Any:
    with context():
        return forward(*inputs, **named)


@dataclass(frozen=True)
class Peer:
    """One way.

    Attributes:
        use: prepares a workload and yields its step.
        modules: what must be importable for it.
        gpu_modules: what must be importable besides on a GPU.
        gpu_only: it works nowhere else.
        same_losses: it computes what torch alone computes, to the last bit.
    """

    use: Callable[[Any, bool], AbstractContextManager[Step]]
    modules: tuple[str, ...] = ()
    gpu_modules: tuple[str, ...] = ()
    gpu_only: bool = False
    same_losses: bool = True

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
    "vanilla": Peer(_vanilla),
    "vanilla again": Peer(_vanilla),
    "activation checkpointing": Peer(_checkpointing),
    "save_on_cpu(pin_memory=True)": Peer(_save_on_cpu, same_losses=False),  # it does not keep strides
    "torchtune OffloadActivations": Peer(_torchtune, ("torchtune.training",)),
    "torchao CPUOffloadOptimizer": Peer(_torchao, ("torchao.optim",), gpu_only=True, same_losses=False),
    "compiled, activation_memory_budget": Peer(_compiled, gpu_modules=("triton",), same_losses=False),
}
"""By name, the most important first: both vanilla runs, then what needs nothing but torch."""
