"""`torch.compile` passes through in scripts that were written for CUDA and run on the emulated device, eagerly.

What such a script says of its tensors is for a GPU that is not there, and so would be the code that is compiled.
"""

import functools
import logging
import sys
from collections.abc import Callable
from typing import Any

import torch

log = logging.getLogger("umadvise")


def _traced_if_possible(compiled: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Runs what torch.compile made of a function; eagerly where that fails, as where the function names devices."""
    try:
        with torch.compiler.set_stance("default"):
            return compiled(*arguments, **named)
    except Exception:  # of many classes; what is the function's own comes again
        return compiled(*arguments, **named)


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
        """What takes `torch.compile`'s place (`Replacements.around`).

        Operators such as torch.cond have what they are given traced themselves, to learn which tensors it closes over:
        they are let, where it can be traced.
        """
        self._run_eagerly()
        if sys._getframe(2).f_globals["__name__"] == "torch._higher_order_ops.utils":  # who called the replacement
            return functools.partial(_traced_if_possible, original(*arguments, **named))
        if not self._told:
            self._told = True
            log.warning("torch.compile is passed through: what it is given runs eagerly")
        return original(*arguments, **named)

    def undo(self) -> None:
        """Lets torch compile again, or do what it was told before."""
        if self._stance is not None:
            self._stance.__exit__(None, None, None)
        self._stance = None
