"""A step that its user marks, from one edge to the other."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from umadvise.errors import BudgetError, StateError
from umadvise.torch_seam.runtime import Runtime
from umadvise.training.loop.loop import Loop


@contextmanager
def marked_step(state: Runtime, loop: Loop) -> Iterator[None]:
    """Does what is due at both edges of a step. What a step changed that memory cannot hold is changed back.

    Args:
        state: patched state of the process.
        loop: loop that the step belongs to.

    Raises:
        StateError: another step is open.
        torch.OutOfMemoryError: ops of the step found no room on the device.
    """
    if loop.in_marked_step:
        raise StateError(
            "a step is open already, and steps cannot overlap: end it before the next `with um.step():`, "
            "in asyncio without an `await` inside of it"
        )
    loop.observer.unmarked.leave_to_marks()
    state.follow_thread()
    clock = loop.observer.clock
    number = clock.step_count + 1
    if not state.forked:
        loop.before_step(number)
    clock.begin_step()
    whole = refused = False
    loop.in_marked_step = True
    try:
        yield
        whole = True
    except (torch.OutOfMemoryError, BudgetError):
        refused = True
        raise
    finally:
        loop.in_marked_step = False
        if not (state.forked or sys.is_finalizing()):  # a child may end here, and so may a generator at Python's end
            clock.end_step()
            refused = loop.observer.refused.end_marked(number, refused=refused or clock.refusal is not None)
            loop.after_step(number, whole=whole, refused=refused)
            if not whole:
                clock.refusal = None  # what ended it says more
    clock.check()
