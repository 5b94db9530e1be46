"""A session inside the `Trainer` of transformers."""

from typing import Any

from transformers import TrainerCallback

from umadvise.integrations.framework_loop import SessionOwner


class UmadviseCallback(SessionOwner, TrainerCallback):
    """Trains under a budget: `Trainer(..., callbacks=[UmadviseCallback(budget="8GiB")])`.

    A session opens when training begins, after a checkpoint has been loaded, and closes when it ends. A step is what
    lies between two steps of the optimizer, however many micro-batches are accumulated; evaluations and checkpoints lie
    between steps. At the end the report is printed.
    """

    def close(self) -> None:
        """Closes the session of a training that raised: Trainer tells callbacks nothing of that."""
        self._loop.close(report=False)

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Opens a session."""
        model, optimizer = parts["model"], parts["optimizer"]
        self._loop.open(model, getattr(optimizer, "optimizer", optimizer), [model])  # accelerate wraps the optimizer

    def on_step_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Begins a step."""
        self._loop.begin_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Ends the step."""
        self._loop.end_step()

    def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Reports, and closes the session."""
        self._loop.close()
