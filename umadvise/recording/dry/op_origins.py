"""To which module and phase an op of a recorded step belongs; the rules are those of the native interposer."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.autograd import _get_sequence_nr  # type: ignore[attr-defined]
from torch.nn.modules import module as torch_module
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from umadvise.records.enums import Phase
from umadvise.torch_seam.closures import Arguments, closure_between


class OpOrigins:
    """Follows modules and optimizers of one thread.

    Autograd numbers its nodes in the order in which forward makes them, so that one entry for each change of module is
    enough to find the module of any node.
    """

    def __init__(self, modules: tuple[torch.nn.Module, ...]) -> None:
        self.phase = Phase.FORWARD
        self._names: dict[torch.nn.Module, str] = {}
        for index, root in enumerate(modules):
            prefix = f"{index}." if len(modules) > 1 else ""
            for name, module in root.named_modules():
                self._names.setdefault(module, prefix + name or type(root).__name__)
        self._module = ""
        self._entered: list[str] = []
        self._sequences: list[int] = []
        self._modules: list[str] = []

    def now(self) -> tuple[Phase, str]:
        """Phase and module of the op that runs now."""
        if self.phase is not Phase.OPTIMIZER:
            node = torch._C._current_autograd_node()
            if node is not None:
                # A module that runs now (recomputation) is closer than the one that made the node.
                return Phase.BACKWARD, self._module or self._maker_of(node._sequence_nr())
        return self.phase, self._module

    def _maker_of(self, sequence: int) -> str:
        place = bisect_right(self._sequences, sequence)
        return self._modules[place - 1] if place else ""

    def _change(self, module: str) -> None:
        if module != self._module:
            sequence = _get_sequence_nr()
            if self._sequences and self._sequences[-1] == sequence:
                self._modules[-1] = module  # the previous module made no node
            else:
                self._sequences.append(sequence)
                self._modules.append(module)
        self._module = module

    def _enter(self, module: torch.nn.Module, _inputs: Any) -> None:
        self._entered.append(self._module)
        self._change(self._names.get(module) or type(module).__name__)

    def _leave(self, _module: torch.nn.Module, _inputs: Any, _output: Any) -> None:
        if self._entered:
            self._change(self._entered.pop())

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Installs the hooks.

        Optimizers make their step counters on the default device, which must be the host as it is in a real run: so
        inside `optimizer.step` that is the default.
        """
        host = ExitStack()

        def enter_optimizer() -> None:
            host.enter_context(torch.device("cpu"))
            self.phase = Phase.OPTIMIZER

        def before_step(_: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Arguments | None:
            enter_optimizer()
            return closure_between(arguments, named, leave=leave_optimizer, enter=enter_optimizer)

        def leave_optimizer(*_: Any) -> None:
            host.close()
            self.phase = Phase.FORWARD

        handles = [
            torch_module.register_module_forward_pre_hook(self._enter),
            torch_module.register_module_forward_hook(self._leave, always_call=True),
            register_optimizer_step_pre_hook(before_step),
            register_optimizer_step_post_hook(leave_optimizer),
        ]
        try:
            yield
        finally:
            host.close()
            for handle in handles:
                handle.remove()
