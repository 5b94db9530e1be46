"""Compiled regions as ops: one run of a graph that Inductor has compiled is one op to the guard.

Its kernels reach memory by address, without torch's dispatcher. So what the graph is given is brought in and stays
until the run has ended, what it makes inside is its own, and its results are born in it. Which inputs it writes is what
the graph says itself (`mutated_input_idxs`); a backward also reuses what forward has saved for it, so there everything
counts as written that is no parameter.
"""

import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch

from umadvise import _native
from umadvise._native.abi import Status
from umadvise.torch_seam.compiling import GraphCompiler
from umadvise.torch_seam.runtime import Runtime

_HOME, _KEPT = "torch._inductor.output_code", "_umadvise_region"


class _Region:
    """A graph as the extension knows it, kept on the graph; where that is pickled nothing of it is."""

    __slots__ = ("handle", "name")

    def __init__(self, graph: Any) -> None:
        """Reads the graph's own metadata."""
        backward = bool(graph.fx_kwargs.get("is_backward"))
        kind = "backward" if backward else "forward"
        self.name = f"compiled::{kind}_{graph.cache_key[:8]}"
        self.handle = _native.region(self.name, sorted(graph.mutated_input_idxs), gradients=backward)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


def install(runtime: Runtime) -> None:
    """Has graphs run as regions from now on. Those that are there already are compiled again when they are used next.

    That takes them out of Inductor's cache; they are not kept as they are because they may be too large.
    """
    compiler = GraphCompiler(runtime)
    if _HOME in sys.modules:
        _guard_graphs(runtime)
        torch._dynamo.reset_code_caches()

    def compile_graph(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        _guard_graphs(runtime)
        return compiler.compile(original, *arguments, **named)

    runtime.replaced.around(torch._TorchCompileInductorWrapper, "__call__", compile_graph)


def _guard_graphs(runtime: Runtime) -> None:
    graphs = importlib.import_module(_HOME).CompiledFxGraph
    if getattr(graphs.__call__, "umadvise", False):
        return
    begin, end = _native.region_functions(torch.Tensor, torch.nn.Parameter)
    original = graphs.__call__

    def run(graph: Any, inputs: Any) -> Any:
        region = graph.__dict__.get(_KEPT) or _describe(graph)
        begun = begin(region.handle, inputs)
        if begun <= 0:
            if begun < 0:
                raise _refused(-begun)
            return original(graph, inputs)
        outputs = None
        try:
            outputs = original(graph, inputs)
            return outputs
        finally:
            end(None if outputs is None else id(outputs))

    vars(run)["umadvise"] = True
    runtime.replaced.put(graphs, "__call__", run)


def _describe(graph: Any) -> _Region:
    found = vars(graph)[_KEPT] = _Region(graph)
    return found


def _refused(status: int) -> Exception:
    message = _native.hooks_error()
    return torch.OutOfMemoryError(message) if status == Status.OUT_OF_DEVICE_MEMORY else RuntimeError(message)
