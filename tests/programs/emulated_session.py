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


def asked() -> dict[str, Any]:
    """Options of the session that the environment asks for; none where it asks for plain PyTorch."""
    if "POLICY" not in os.environ:
        return {}
    return {"device": "emulated", "budget": os.environ["BUDGET"] or None, "policy": os.environ["POLICY"]}


@contextmanager
def session(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Any]:
    """A session with the policy and budget of the environment, whose profile is left where that says."""
    options = asked()
    if not options:
        yield _Plain()
        return
    import umadvise

    with umadvise.session(model, optimizer, **options) as um:
        yield um
        um.report(os.environ["PROFILE"])
