"""`umadvise.session` as the comparison asks for it, for programs that have a loop of their own; or plain PyTorch."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch


class _Plain:
    """What a session is where there is none."""

    step = nullcontext

    @staticmethod
    def to_device(batch: Any) -> Any:
        return batch


@contextmanager
def session(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Any]:
    """A session with the policy and budget of the environment, whose profile is left where that says."""
    if "POLICY" not in os.environ:
        yield _Plain()
        return
    import umadvise

    budget, policy = os.environ["BUDGET"] or None, os.environ["POLICY"]
    with umadvise.session(model, optimizer, device="emulated", budget=budget, policy=policy) as um:
        yield um
        um.report(os.environ["PROFILE"])
