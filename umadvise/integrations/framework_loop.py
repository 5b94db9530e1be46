"""A session in a loop that a framework owns: it is opened, marked and closed by calls, and not by `with`."""

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from umadvise.training.session import Session


class StepMarks:
    """The marks of one step at a time, which begins in one call and ends in another."""

    def __init__(self) -> None:
        """No step is open."""
        self._open: ExitStack | None = None

    def begin(self, session: Session) -> None:
        """Begins a step, unless one is open: micro-batches of one optimizer step are one step."""
        if self._open is None:
            self._open = ExitStack()
            self._open.enter_context(session.step())

    def end(self, error: BaseException | None = None) -> None:
        """Ends the step, if one is open.

        Args:
            error: what ended it, if it did not end by itself.

        Raises:
            torch.OutOfMemoryError: ops of the step found no room on the device.
        """
        step, self._open = self._open, None
        if step is not None:
            step.__exit__(None if error is None else type(error), error, None)


class FrameworkLoop:
    """Opens a session for each training of a framework, marks its steps, and reports at its end.

    Attributes:
        session: session of the training that runs, or of the last one; None before the first.
    """

    def __init__(self, profile: str | Path | None, options: dict[str, Any]) -> None:
        """Checks the options; nothing happens before `open`.

        Args:
            profile: file for the fault profile, written when a training has ended; None writes none.
            options: what `umadvise.session` takes beside the model and the optimizer.

        Raises:
            PolicyError: no such policy.
            UsageError: a size or another option that makes no sense.
        """
        Session((), **options)
        self.session: Session | None = None
        self._profile = profile
        self._options = options
        self._opened: ExitStack | None = None
        self._marks = StepMarks()

    def open(
        self,
        model: torch.nn.Module,
        optimizers: torch.optim.Optimizer | Iterable[torch.optim.Optimizer],
        entrances: Iterable[torch.nn.Module],
    ) -> None:
        """Opens a session; what a training before it has left open is closed first.

        Args:
            model: the module to train.
            optimizers: its optimizers, as torch has them: not in wrappers of the framework.
            entrances: modules that the framework gives batches to, which may lie in ordinary memory.
        """
        self.close(report=False)
        self.session = Session(model, optimizers, **self._options)
        with ExitStack() as opened:
            opened.enter_context(self.session)
            for module in entrances:
                opened.callback(module.register_forward_pre_hook(self._move_in, with_kwargs=True).remove)
            self._opened = opened.pop_all()

    def _move_in(self, _module: torch.nn.Module, arguments: Any, named: Any) -> Any:
        assert self.session is not None
        return self.session.to_device((arguments, named))

    def begin_step(self) -> None:
        """Begins a step, unless one is open."""
        if self.session is not None:
            self._marks.begin(self.session)

    def end_step(self) -> None:
        """Ends the step that is open, if one is."""
        self._marks.end()

    def close(self, error: BaseException | None = None, *, report: bool = True) -> None:
        """Closes the session, if one is open.

        Args:
            error: what ended the training, if it did not end by itself: nothing is reported then.
            report: whether to print the report and to write the profile.
        """
        opened, self._opened = self._opened, None
        if opened is None or self.session is None:
            return
        with opened:
            self._marks.end(error)
            if report and error is None:
                self.session.report(self._profile)


class SessionOwner:
    """What the callbacks of frameworks have in common."""

    def __init__(self, *, profile: str | Path | None = None, **options: Any) -> None:
        """Checks the options; nothing happens before the framework trains.

        Args:
            profile: file for the fault profile, written when training has ended; None writes none.
            **options: options of `umadvise.session`, such as `budget`, `policy` and `device`.

        Raises:
            PolicyError: no such policy.
            UsageError: a size or another option that makes no sense.
        """
        self._loop = FrameworkLoop(profile, options)

    @property
    def session(self) -> Session | None:
        """The session of the training that runs, or of the last one, whose profile it still has; None before both."""
        return self._loop.session
