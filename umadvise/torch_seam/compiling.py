"""How models are compiled: block by block (`compile`), and by Inductor while umadvise is in use.

A graph runs as one op, whose working set must fit at once. So one that is too large is cut where its parameters say, by
what torch cuts graphs with for DistributedDataParallel, and one that cannot be cut runs eagerly.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils._triton import has_triton_package

from umadvise.records.units import format_bytes
from umadvise.torch_seam.runtime import Runtime
from umadvise.torch_seam.traced import rehearsing

log = logging.getLogger("umadvise")

_CUDA_GRAPHS = "triton.cudagraphs"
_PARTS = 8
"""A graph that is too large is cut so that the budget holds this many parts of it."""


def compile(model: torch.nn.Module, **options: Any) -> torch.nn.Module:  # noqa: A001  # as torch has it
    """Compiles a model's repeated blocks, each for itself; a model without any as a whole.

    A compiled graph is one op to umadvise. What is one graph from end to end leaves nothing to swap; blocks do, and
    blocks that are alike are compiled once. Blocks are modules with submodules of their own, of which a container
    (`ModuleList`, `Sequential`, `ModuleDict`) holds two with parameters of the same shapes; of blocks within blocks the
    outermost count. What lies between them runs eagerly. It needs no session. Dynamo's limit of compilations of one
    function is raised, where need be, to two for each block.

    Args:
        model: any module; it is compiled in place.
        options: those of `torch.compile`.

    Returns:
        The model.
    """
    blocks = list(_blocks(model)) or [model]
    for block in blocks:
        compile_module(block, **options)
    limit = max(torch._dynamo.config.recompile_limit, 2 * len(blocks))
    torch._dynamo.config.recompile_limit = limit  # one for each kind of block, in training and in evaluation
    return model


def compile_module(module: torch.nn.Module, **options: Any) -> None:
    """`module.compile`, also for modules of torch's own: there that leaves them as they are, and says nothing."""
    module.compile(**options)
    if type(module).__module__.startswith("torch.nn."):
        from torch._dynamo.external_utils import wrap_inline

        module._compiled_call_impl = torch.compile(wrap_inline(module._call_impl), **options)


def _blocks(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    if isinstance(module, torch.nn.ModuleList | torch.nn.Sequential | torch.nn.ModuleDict):
        whole = [child for child in module.children() if next(child.children(), None) is not None]
        makes = [_make(child) for child in whole]
        kinds = {type(child) for child, make in zip(whole, makes, strict=True) if makes.count(make) > 1}
    else:
        kinds = set()
    for child in module.children():
        if type(child) in kinds:
            yield child
        else:
            yield from _blocks(child)


def _make(module: torch.nn.Module) -> tuple[Any, ...]:
    return type(module), *((name, tensor.shape, tensor.dtype) for name, tensor in module.named_parameters())


class GraphCompiler:
    """What takes the place of Inductor's entry while umadvise is in use."""

    def __init__(self, runtime: Runtime) -> None:
        """The budget of what is patched is looked up for each graph."""
        self._runtime = runtime
        self._told: set[str] = set()

    def compile(self, original: Callable[..., Any], backend: Any, graph: Any, inputs: Any, **named: Any) -> Any:
        """Compiles a graph of Dynamo's (`Replacements.around`, of `torch._TorchCompileInductorWrapper.__call__`)."""
        if any(_on_gpu(each) for each in inputs) and not has_triton_package():
            self._warn("torch.compile needs Triton for a GPU, which is not installed: what it is given runs eagerly")
            return graph.forward
        wanted = backend.config
        if wanted.get(_CUDA_GRAPHS, torch._inductor.config.triton.cudagraphs):
            self._warn("torch.compile uses no CUDA graphs here: they keep addresses, and tensors move")
        backend.config = {**wanted, _CUDA_GRAPHS: False}
        try:
            return self._compile(lambda *part: original(backend, *part, **named), graph, inputs)
        finally:
            backend.config = wanted  # by which Dynamo knows whose its graphs are

    def _compile(self, inductor: Callable[..., Any], graph: Any, inputs: Any) -> Any:
        limit, need = self._runtime.limit_bytes or self._runtime.device.info().total_bytes, need_bytes(graph)
        if need <= limit:
            return inductor(graph, inputs)
        from torch._dynamo.backends.distributed import DDPOptimizer

        def compile_part(part: Any, inputs: Any) -> Any:
            if need_bytes(part) <= limit:
                return inductor(part, inputs)
            self._warn(
                f"a graph of torch.compile may need {format_bytes(need_bytes(part))} at once, which is more than the "
                "budget, and cannot be cut: it runs eagerly. umadvise.compile(model) makes graphs of a model's blocks"
            )
            return part.forward

        cut_bytes = _parameter_bytes(graph) * limit // (_PARTS * need) + 1
        with rehearsing():  # it runs the parts on tensors without bytes
            return DDPOptimizer(cut_bytes, compile_part, first_bucket_cap=cut_bytes).compile_fn(graph, inputs)

    def _warn(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            log.warning("%s", text)


def need_bytes(graph: torch.fx.GraphModule) -> int:
    """What the graph and its backward may need at once, at most: all that it is given and makes, and gradients."""
    sizes = {}
    for node in graph.graph.nodes:
        for tensor in tree_leaves(node.meta.get("example_value")):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                sizes[storage._cdata] = _number(storage.nbytes())
    return sum(sizes.values()) + _parameter_bytes(graph)


def _parameter_bytes(graph: torch.fx.GraphModule) -> int:
    given = (node.meta.get("example_value") for node in graph.graph.find_nodes(op="placeholder"))
    parameters = [each for each in given if isinstance(each, torch.nn.Parameter)] or list(graph.parameters())
    return sum(each.nbytes for each in parameters if each.requires_grad)


def _on_gpu(given: Any) -> bool:
    return isinstance(given, torch.Tensor) and given.is_cuda


def _number(size: int | torch.SymInt) -> int:
    """What a size was when the graph was made, where it may change."""
    return size if isinstance(size, int) else int(size.node.hint or 0)
