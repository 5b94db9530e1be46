"""A step of the changing programs can be run again: what it computes has the same shapes."""

from typing import Any

import pytest
import torch
from changing_programs import PROGRAMS, Changing
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

pytestmark = pytest.mark.long


class _Shapes(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops: list[tuple[str, list[torch.Size]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        shapes = [each.shape for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        self.ops.append((str(func), shapes))
        return func(*args, **(kwargs or {}))


def _ops(program: Changing, number: int) -> list[tuple[str, list[torch.Size]]]:
    with _Shapes() as shapes:
        program.step(number)
    return shapes.ops


@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - {"mixture_of_experts"}))
def test_a_step_comes_again_and_others_differ(name: str) -> None:
    with torch.device("cpu" if name == "packed_sequences" else "meta"):  # packing reads the lengths
        program = PROGRAMS[name]()
        program.step(2)  # makes the optimizer's state
        step = _ops(program, 2)
        assert _ops(program, 2) == step
        assert any(_ops(program, number) != step for number in (1, 4))
