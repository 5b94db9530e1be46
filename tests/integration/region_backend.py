"""A backend of `torch.compile` that makes graphs as Inductor does, and has torch's own kernels run in them.

So what happens around a compiled graph can be tried without a compiler, and on stand-ins for a GPU.
"""

from collections.abc import Callable
from itertools import count
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.output_code import CompiledFxGraph

runs = [0]
"""How often a graph has run."""
_numbers = count()


def _compiler(*, backward: bool) -> Callable[..., Any]:
    def compile_graph(graph: torch.fx.GraphModule, _inputs: Any) -> CompiledFxGraph:
        def run(inputs: list[Any]) -> Any:
            runs[0] += 1
            given = [*inputs]
            inputs.clear()  # as Inductor's code does
            return graph(*given)

        compiled = CompiledFxGraph.__new__(CompiledFxGraph)
        vars(compiled).update(
            current_callable=run,
            compiled_fn_runner=None,
            cache_key=f"graph_{next(_numbers)}",
            mutated_input_idxs=(),
            fx_kwargs={"is_backward": backward},
            _boxed_call=True,
        )
        return compiled

    return compile_graph


regions = aot_autograd(fw_compiler=_compiler(backward=False), bw_compiler=_compiler(backward=True))
"""The backend."""
