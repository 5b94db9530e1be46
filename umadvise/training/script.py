"""A script that knows nothing of umadvise: roles come from Module and Optimizer, steps from what repeats.

On the emulated device it may be written for CUDA: see `cuda_spellings`.
"""

from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self
from weakref import WeakSet

import torch

from umadvise.devices import open_device as devices
from umadvise.devices.budget import parse_budget
from umadvise.devices.open_device import EmulatedDevice
from umadvise.errors import BudgetError
from umadvise.records.counters import MemoryStats
from umadvise.records.enums import Role
from umadvise.records.fault_profile import FaultProfile, MeasuredStep
from umadvise.records.trace import Trace
from umadvise.torch_seam import cuda_spellings, patching
from umadvise.torch_seam.tensors import is_marked_pinned, strided_parts
from umadvise.training.loop.loop import Loop
from umadvise.training.policy.degraded import fit_policy
from umadvise.training.policy.parsing import parse_policy
from umadvise.training.watch.observer import Observer
from umadvise.training.watch.sampling import SAMPLE_EVERY, check_every


class ScriptRun:
    """Watches and drives a script that knows nothing of umadvise, and makes its fault profile.

    Steps are those of `umadvise.training.watch.unmarked_steps`. A script that opens a session and marks its steps is
    taken at its word instead.
    """

    def __init__(
        self,
        device: str | EmulatedDevice,
        budget: int | str | None,
        policy: str,
        script: str,
        *,
        record: bool = False,
        sample_every: int = SAMPLE_EVERY,
    ) -> None:
        """Checks the arguments; nothing happens before the `with`.

        Raises:
            PolicyError: no such policy.
            UsageError: a size that cannot be read, or a `sample_every` that makes no sense.
        """
        self._policy = parse_policy(policy)
        self._policy_word = policy
        self._device = device
        self._budget = parse_budget(budget)
        self._script = script
        self._records = record
        self._sample_every = check_every(sample_every)
        self._optimizers: WeakSet[torch.optim.Optimizer] = WeakSet()

    def __enter__(self) -> Self:
        """Patches torch and starts to watch."""
        device = devices.open_device(self._device)
        try:
            self._policy, unified = fit_policy(self._policy, device)
            self._runtime = patching.start(device, self._budget, unified=unified)
        except BaseException:
            device.close()
            raise
        self._translation = ExitStack()
        if self._runtime.emulated:
            self._translation.enter_context(cuda_spellings.translated(self._runtime))
        self._runtime.watch("`umadvise run`")
        self._runtime.remember_owners()
        self._runtime.replaced.around(torch.optim.Optimizer, "add_param_group", self._add_param_group)
        observer = Observer(self._runtime, self._script, self._sample_every, self._policy_word)
        self._loop = Loop.shared = Loop(self._runtime, observer, self._policy)
        self._loop.optimizers = self._optimizers
        observer.attach()
        if self._records:
            observer.recorder.start()
        observer.unmarked.optimizers = self._optimizers
        observer.unmarked.driver = self._loop
        observer.unmarked.begin()
        return self

    @property
    def _drives(self) -> bool:
        """Whether no session of the script has taken over."""
        return Loop.shared is self._loop

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Ends it; what the script left alive stays valid.

        Raises:
            BudgetError: ops of its last step found no room on the device, and nothing of the script is left to be told.
        """
        self._loop.observer.unmarked.driver = None
        if not self._runtime.forked:
            self._loop.close()
            self._loop.observer.detach()
            self._loop.split.release()
        self._translation.close()
        Loop.shared = None
        patching.finish(self._runtime)
        if kind is None and (refusal := self._loop.observer.clock.refusal) is not None:
            raise BudgetError(refusal)

    def _add_param_group(
        self, original: Callable[..., None], optimizer: torch.optim.Optimizer, group: dict[str, Any]
    ) -> None:
        """What an optimizer trains has the role of a parameter, wherever the script put it but in pinned memory."""
        original(optimizer, group)
        self._optimizers.add(optimizer)
        here = self._runtime.emulated and not self.forked
        for parameter in optimizer.param_groups[-1]["params"] if here else ():
            for part in strided_parts(parameter):
                if part.device.type == "cpu" and not is_marked_pinned(part.untyped_storage()):
                    self._runtime.take_in(part.untyped_storage(), Role.PARAMETER)

    def watch(self, watcher: Callable[[MeasuredStep, MemoryStats, str], None]) -> None:
        """Has a function told of each step when it has ended, with the memory that there was and the rung it ran on."""
        loop = self._loop
        loop.observer.clock.watcher = lambda step, memory: watcher(step, memory, loop.rung)

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that the script was started in."""
        return self._runtime.forked

    def trace(self) -> Trace:
        """The trace of what the script did, if it was recorded.

        Raises:
            StateError: it is not, or the recording is not whole.
        """
        return self._loop.observer.recorder.trace()

    def profile(self, *, predict: bool = False) -> FaultProfile:
        """The fault profile so far; a step that had not ended counts as outside of the steps.

        Args:
            predict: whether to ask the simulator how long a step would take on other rungs, where steps stood still too
                long.
        """
        return self._loop.profile(predict=predict and self._drives)
