"""`torch.compile` passes through in scripts that were written for CUDA and run on the emulated device, eagerly.

What such a script says of its tensors is for a GPU that is not there, and so would be the code that is compiled.
"""

import logging
import sys
from collections.abc import Callable
from typing import Any

import torch

log = logging.getLogger("umadvise")


class Compiler:
    """What takes the place of `torch.compile`, until `undo()`."""

    def __init__(self) -> None:
        """What was compiled before runs eagerly from now on, too."""
        self._stance: Any = None
        self._told = False
        if "torch._dynamo" in sys.modules:  # before it is imported nothing can have been compiled
            self._run_eagerly()

    def _run_eagerly(self) -> None:
        if self._stance is None:
            self._stance = torch.compiler.set_stance("force_eager")

    def compile(self, original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """What takes `torch.compile`'s place (`Replacements.around`)."""
        self._run_eagerly()
        if not self._told:
            self._told = True
            log.warning("torch.compile is passed through: what it is given runs eagerly")
        return original(*arguments, **named)

    def undo(self) -> None:
        """Lets torch compile again, or do what it was told before."""
        if self._stance is not None:
            self._stance.__exit__(None, None, None)
        self._stance = None
