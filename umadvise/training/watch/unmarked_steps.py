"""Where the steps of a loop begin that nobody marks: where an optimizer has stepped, else where ops come again."""

import logging
from collections.abc import Collection
from itertools import count
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from umadvise import _native
from umadvise._native.abi import Status
from umadvise.records.enums import Role
from umadvise.torch_seam.out_of_memory import out_of_memory
from umadvise.torch_seam.runtime import Runtime, this_thread
from umadvise.torch_seam.tensors import strided_parts
from umadvise.torch_seam.traced import unless_traced
from umadvise.training.watch.module_names import ModuleNames
from umadvise.training.watch.refused_steps import UNMARKED, RefusedSteps
from umadvise.training.watch.step_clock import StepClock

log = logging.getLogger("umadvise")

PATIENCE = 64
"""Repetitions without a step of an optimizer that is there: as many parts of a batch may be added up before it."""


_TIMES_TO_TRAIN = 2
"""Calls of modules and updates in a row, of which the last is an update, by which another thread is known for the
loop's: a forward and its update, or two updates."""
_TIMES_TO_INFER = 8
"""The same where it only calls modules: a few calls may be those of an evaluation beside the training."""


class Driver(Protocol):
    """What does something at the edges of steps."""

    def before_step(self, number: int) -> None:
        """Does what is due before a step."""

    def after_step(self, number: int, *, whole: bool, refused: bool = False) -> None:
        """Does what is due after a step."""

    def drop_step(self, number: int) -> None:
        """Forgets what has begun: it was no step."""

    def forget_steps(self) -> None:
        """Forgets what was learned: those that came until now were no steps."""


class _Leader:
    """Whose steps are the run's, of several optimizers. None of them is kept alive."""

    def __init__(self) -> None:
        self._leader: ref[torch.optim.Optimizer] | None = None
        self._without_it: WeakSet[torch.optim.Optimizer] = WeakSet()

    def steps(self, optimizer: torch.optim.Optimizer) -> bool:
        """An optimizer has stepped: whether that ends a step of the run."""
        leader = None if self._leader is None else self._leader()
        if leader is None or optimizer in self._without_it:
            self._leader, leader = ref(optimizer), optimizer
        if optimizer is not leader:
            self._without_it.add(optimizer)
            return False
        self._without_it.clear()
        return True


class UnmarkedSteps:
    """Begins and ends steps until somebody marks them.

    A step ends when `optimizer.step()` returns, and the next one begins: with several optimizers, at the one that was
    stepped first in the run, until another one has stepped twice without it, as in the next of several trainings. As
    long as no optimizer steps, the core looks for repetition (csrc/engine/repetition.h).

    Attributes:
        driver: what does something at the edges, beside the clock; None: nothing does.
        optimizers: optimizers that are expected to step.
    """

    def __init__(self, runtime: Runtime, names: ModuleNames, refused: RefusedSteps) -> None:
        """Nothing is looked for before `attach`.

        Args:
            runtime: what is patched.
            names: what sees the calls of modules.
            refused: what keeps refused steps from training.
        """
        self._runtime = runtime
        self._names = names
        self._refused = refused
        self._leader = _Leader()
        self._handles: Any = None
        self._came_from: tuple[object, int] = None, 0  # a thread, and how often it came last, with no other one between
        self._numbers: WeakKeyDictionary[torch.nn.Module, int] = WeakKeyDictionary()
        self._next_number = count(1)  # none comes twice, as of a module that is gone
        self._stepped = False
        self._unbelieved = 0
        self.driver: Driver | None = None
        self.optimizers: Collection[torch.optim.Optimizer] = ()

    def attach(self, clock: StepClock) -> None:
        """Follows optimizers, and looks for repetition in what this thread does; a clock is told of the steps."""
        self._clock = clock
        self._handles = [
            register_optimizer_step_pre_hook(unless_traced(self._before_step)),
            register_optimizer_step_post_hook(unless_traced(self._after_step)),
        ]
        self._refused.edge = self._refuse
        self._names.outermost = self._call
        _native.set_edge(self._edge_at_op)
        self._runtime.device.find_steps(True)

    def detach(self) -> None:
        """Leaves the steps to those who mark them, from now on. One that is open is none."""
        if self._handles is None:
            return
        for handle in self._handles:
            handle.remove()
        self._handles = None
        self._refused.edge = None
        self._leave_repetition()
        if not self._runtime.forked and self._clock.in_step:
            self._drop()

    def leave_to_marks(self) -> None:
        """A step is about to be marked: none is looked for any more."""
        self.detach()
        self._clock.steps_are_found = False
        self._refused.begin_marked()

    def _leave_repetition(self) -> None:
        if self._names.outermost is None:
            return
        self._names.outermost = None
        if not self._runtime.forked:
            self._runtime.device.find_steps(False)
        _native.set_edge(None)

    # ---- edges ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begins a step."""
        if self.driver is not None:
            self.driver.before_step(self._clock.step_count + 1)
        self._clock.begin_step()

    def _begin_next(self) -> None:
        """Begins a step, and only then raises what the one before was refused for: it is over whoever catches that.

        Raises:
            torch.OutOfMemoryError: ops of the step before found no room on the device.
        """
        refusal, self._clock.refusal = self._clock.refusal, None
        self.begin()
        if refusal is not None:
            raise out_of_memory(refusal + UNMARKED)

    def _end(self) -> None:
        self._clock.end_step()
        refused = self._clock.refusal is not None
        if refused:
            self._refused.undo(self.optimizers)
        if self.driver is not None:
            self.driver.after_step(self._clock.step_count, whole=True, refused=refused)

    def _refuse(self) -> None:
        """The step ends before its update, which is refused; a script that tries again does so in the next one."""
        self._clock.end_step()
        if self.driver is not None:
            self.driver.after_step(self._clock.step_count, whole=False, refused=True)
        self.begin()

    def _drop(self) -> None:
        self._clock.drop_step()
        if self.driver is not None:
            self.driver.drop_step(self._clock.step_count)

    def _came(self, times: int) -> None:
        """This thread calls a module or steps an optimizer; having come so often in a row, it is the loop's."""
        thread, count = self._came_from
        own = this_thread()
        self._came_from = own, count + 1 if thread is own else 1
        if own is not self._runtime.thread and self._came_from[1] >= times:
            self._runtime.follow_thread()

    def _before_step(self, optimizer: torch.optim.Optimizer, _arguments: Any, _named: Any) -> None:
        """The loop may run in another thread: what that has made until now was its own (`torch_seam/threads.py`)."""
        if torch._C._current_graph_task_id() != -1 or self._runtime.forked:
            return  # of an optimizer that steps within backward
        before = self._runtime.thread
        self._came(_TIMES_TO_TRAIN)
        if self._runtime.thread is before or not self._runtime.emulated:
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                for part in strided_parts(parameter.grad) if parameter.grad is not None else ():
                    self._runtime.take_in(part.untyped_storage(), Role.INTERMEDIATE)

    def _after_step(self, optimizer: torch.optim.Optimizer, _arguments: Any, _named: Any) -> None:
        if self._runtime.forked or not self._leader.steps(optimizer):
            return
        self._leave_repetition()
        if self._clock.in_step:
            self._drop() if self._clock.steps_are_found else self._end()
        elif not self._stepped:  # a first one may be there to warm up, before steps are marked
            self._stepped = True
            return
        if self._clock.steps_are_found and self.driver is not None:
            self.driver.forget_steps()
        self._clock.forget_found()
        self._begin_next()

    def _call(self, module: torch.nn.Module) -> None:
        """A module is called from outside of modules."""
        if torch._C._current_graph_task_id() != -1 or self._runtime.forked:
            return
        own = this_thread()
        if own is not self._runtime.thread or own is not self._came_from[0]:
            self._came(_TIMES_TO_INFER)
            if self._runtime.thread is not own:
                return
        number = self._numbers.get(module)
        if number is None:
            if next(module.parameters(), None) is None:  # a loss, or a part of the preparation of a batch
                return
            number = self._numbers[module] = next(self._next_number)
        if self._runtime.device.step_begins(number, differentiated=torch.is_grad_enabled()):
            self._edge()

    def _edge_at_op(self) -> Status:
        try:
            self._edge()
        except torch.OutOfMemoryError:
            return Status.OUT_OF_DEVICE_MEMORY
        except BaseException:  # an interrupt too: nothing else would hear of it, as C called
            log.exception("the edge between two steps failed")
            return Status.BAD_STATE
        return Status.OK

    def _edge(self) -> None:
        """A step begins that was found by its repetition. What came before the first one was none."""
        if self.optimizers and self._unbelieved < PATIENCE:
            self._unbelieved += 1
            return
        if self._clock.in_step:
            self._end() if self._clock.steps_are_found else self._drop()
        self._clock.steps_are_found = True
        self._begin_next()
