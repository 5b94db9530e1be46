"""A session inside the `Trainer` of Lightning."""

from typing import Any

from umadvise.integrations.framework_loop import SessionOwner

try:
    from pytorch_lightning import Callback
except ImportError:  # the same library by its other name
    from lightning.pytorch import Callback


class LightningCallback(SessionOwner, Callback):
    """Trains under a budget: `Trainer(..., callbacks=[LightningCallback(budget="8GiB")])`.

    A session opens when `fit` begins to train, after a checkpoint has been loaded, and closes when that ends or raises.
    A step is what lies between two steps of the optimizer, however many batches are accumulated; validation and
    checkpoints lie between steps. At the end the report is printed.
    """

    _optimizer_steps = 0

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
