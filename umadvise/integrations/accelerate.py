"""A session around a loop that `accelerate` has prepared."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator

from umadvise.integrations.framework_loop import StepMarks
from umadvise.training.session import Session


class AcceleratedSession(Session):
    """A session for a model and an optimizer that `Accelerator.prepare` has returned. Use it as a context manager.

    accelerate knows no callbacks, as the loop is the user's: `um.accumulate(model)` takes the place of
    `accelerator.accumulate(model)`, and marks the steps. All else is as in `umadvise.session`.
    """

    def __init__(
        self, accelerator: Accelerator, model: torch.nn.Module, optimizer: torch.optim.Optimizer, **options: Any
    ) -> None:
        """Checks the arguments; nothing happens before the `with`.

        Args:
            accelerator: what has prepared them. Prepare before the session opens: it moves what it prepares.
            model: the module to train.
            optimizer: optimizer of the module's parameters.
            **options: options of `umadvise.session`, such as `budget`, `policy` and `device`.

        Raises:
            PolicyError: no such policy.
            UsageError: a size or another option that makes no sense.
        """
        super().__init__(accelerator.unwrap_model(model), getattr(optimizer, "optimizer", optimizer), **options)
        self._accelerator = accelerator
        self._marks = StepMarks()

    @contextmanager
    def accumulate(self, *models: torch.nn.Module) -> Iterator[None]:
        """`accelerator.accumulate(*models)`; batches up to the one after which gradients are in sync are one step.

        Args:
            *models: modules that accelerate's own takes.
        """
        self._marks.begin(self)
        try:
            with self._accelerator.accumulate(*models):
                yield
        except BaseException as error:
            self._marks.end(error)
            raise
        if self._accelerator.sync_gradients:
            self._marks.end()
