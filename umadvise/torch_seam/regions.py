"""Compiled regions as ops: one run of a graph that Inductor has compiled is one op to the guard.

Its kernels reach memory by address, without torch's dispatcher. So what the graph is given is brought in and stays until
the run has ended, what it makes inside is its own, and its results are born in it. Which inputs it writes is what the
graph says itself (`mutated_input_idxs`); a backward also reuses what forward has saved for it, so there everything
counts as written that is no parameter.
"""

import importlib
import sys
from typing import Any

import torch

from umadvise import _native
from umadvise._native.abi import Status
from umadvise.torch_seam.runtime import Runtime

_HOME = "torch._inductor.output_code"


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
    """Has graphs run as regions from now on, those among them that were compiled before."""
    if _HOME in sys.modules:
        _install(runtime)
    else:  # nothing can have been compiled

        def compile_first(original: Any, *arguments: Any, **named: Any) -> Any:
            if not installed:
                _install(runtime)
                installed.append(True)
            return original(*arguments, **named)

        installed: list[bool] = []
        runtime.replaced.around(torch._TorchCompileInductorWrapper, "__call__", compile_first)


def _install(runtime: Runtime) -> None:
    graph = importlib.import_module(_HOME).CompiledFxGraph
    begin, end = _native.region_functions(torch.Tensor, torch.nn.Parameter)
    original = graph.__call__

    def run(self: Any, inputs: Any) -> Any:
        region = self.__dict__.get("_umadvise_region") or _describe(self)
        begun = begin(region.handle, inputs)
        if begun <= 0:
            if begun < 0:
                raise _refused(-begun)
            return original(self, inputs)
        outputs = None
        try:
            outputs = original(self, inputs)
            return outputs
        finally:
            end(None if outputs is None else id(outputs))

    runtime.replaced.put(graph, "__call__", run)


def _describe(graph: Any) -> _Region:
    graph._umadvise_region = found = _Region(graph)
    return found


def _refused(status: int) -> Exception:
    message = _native.hooks_error()
    return torch.OutOfMemoryError(message) if status == Status.OUT_OF_DEVICE_MEMORY else RuntimeError(message)
