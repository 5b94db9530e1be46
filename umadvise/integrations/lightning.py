"""A session inside the `Trainer` of Lightning."""

from pathlib import Path
from typing import Any

from umadvise.integrations.framework_loop import FrameworkLoop
from umadvise.training.session import Session

try:
    from pytorch_lightning import Callback
except ImportError:  # the same library by its other name
    from lightning.pytorch import Callback


class LightningCallback(Callback):
    """Trains under a budget: `Trainer(..., callbacks=[LightningCallback(budget="8GiB")])`.

    A session opens when `fit` begins to train, after a checkpoint has been loaded, and closes when that ends or raises.
    A step is what lies between two steps of the optimizer, however many batches are accumulated; validation and
    checkpoints lie between steps. At the end the report is printed.
    """

    def __init__(self, *, profile: str | Path | None = None, **options: Any) -> None:
        """Checks the options; nothing happens before `Trainer.fit()`.

        Args:
            profile: file for the fault profile, written when training has ended; None writes none.
            **options: options of `umadvise.session`, such as `budget`, `policy` and `device`.

        Raises:
            PolicyError: no such policy.
            UsageError: a size or another option that makes no sense.
        """
        self._loop = FrameworkLoop(profile, options)
        self._optimizer_steps = 0

    @property
    def session(self) -> Session | None:
        """The session of the training that runs, or of the last one, whose profile it still has; None before both."""
        return self._loop.session

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Opens a session."""
        # training_step is called as it is, and calls the module or its parts.
        self._loop.open(pl_module, trainer.optimizers, [pl_module, *pl_module.children()])

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Begins a step, unless one waits for more batches."""
        self._optimizer_steps = trainer.global_step
        self._loop.begin_step()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Ends the step, if the optimizer has stepped."""
        if trainer.global_step != self._optimizer_steps:
            self._loop.end_step()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Reports, and closes the session."""
        self._loop.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Closes the session."""
        self._loop.close(exception)
