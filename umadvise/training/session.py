"""`umadvise.session`: a training loop under a byte budget, with roles, plans and the fault profile by itself."""

import logging
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import torch

from umadvise._native.abi import GpuStep
from umadvise.devices import open_device as devices
from umadvise.devices.budget import budget_on, parse_budget
from umadvise.devices.open_device import EmulatedDevice
from umadvise.devices.ranks import ranks
from umadvise.devices.rungs import ADVISE, AUTO, LADDER, Policy
from umadvise.errors import StateError, UsageError
from umadvise.records.counters import Counters, MemoryStats, SwapCounters
from umadvise.records.fault_profile import FaultProfile, write
from umadvise.records.plan import Plan
from umadvise.records.trace import Trace
from umadvise.records.units import format_bytes, parse_bytes
from umadvise.reports.reporters import text
from umadvise.torch_seam import cuda_spellings, patching, runtime, signals
from umadvise.torch_seam.adoption import Adoption, as_list, batch_moved_in
from umadvise.torch_seam.interrupts import signals_held
from umadvise.training.earlier_memory import move_earlier, page_left, take_budget
from umadvise.training.loop.loop import Loop
from umadvise.training.loop.marked_step import marked_step
from umadvise.training.policy.degraded import fit_policy
from umadvise.training.policy.governor import FAULT_THRESHOLD, check_threshold
from umadvise.training.policy.parsing import parse_policy
from umadvise.training.watch.observer import Observer
from umadvise.training.watch.sampling import SAMPLE_EVERY, check_every

log = logging.getLogger("umadvise")
Batch = TypeVar("Batch")
Part = TypeVar("Part")


class Session:
    """A training loop whose tensors live in memory of umadvise. Use it as a context manager.

    The model's and the optimizer's tensors move onto the device on entry and back on exit, also after an exception. On
    CUDA those that are there already stay there; they must have been allocated after `umadvise.patch()`.
    """

    def __init__(
        self,
        model: torch.nn.Module | Iterable[torch.nn.Module],
        optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None = None,
        *,
        device: str | EmulatedDevice | None = None,
        capacity: int | str | None = None,
        budget: int | str | None = None,
        policy: str = AUTO.name,
        record: bool = False,
        fault_threshold: float = FAULT_THRESHOLD,
        sample_every: int = SAMPLE_EVERY,
        most_managed: int | str | None = None,
        cuda_spellings: bool = False,
    ) -> None:
        """Checks the arguments; nothing happens before the `with`.

        Args:
            model: the module to train, or several.
            optimizer: its optimizer, or several, or None.
            device: "auto", "cuda", `"cuda:<index>"`, "emulated" or an `EmulatedDevice`, as `umadvise.patch` takes them;
                None is the device that is patched already, else "auto".
            capacity: size of the emulated device's memory, in bytes or as text; only with `device="emulated"`.
            budget: bytes that tensors may take on the device, as a number or text such as "8GiB"; "auto" is what a
                shared card has to spare when the session opens (`umadvise.devices.budget` has the rule); None is the
                budget that `umadvise.patch` was given, else the whole device.
            policy: a rung of the ladder ("resident", "advise", "window", "swap", "swap+recompute"), which all steps
                run on; a planner's name, whose plans they follow; or "auto", which chooses a rung when it has seen a
                step, and goes up where stalls cost too much.
            record: whether to keep every op, allocation, copy and fault service for `trace()`.
            fault_threshold: cost at which "auto" goes up the ladder: the part of a step that stalls may take (0.0 to
                1.0), or, as a whole number, how many fault groups a step may have.
            sample_every: distance between the steps in which faults are counted on CUDA, where counting takes time: the
                first three and every n-th; 0 counts in none, for measurements. The emulated device counts in every
                step.
            most_managed: bytes of CUDA's unified memory that this process may have at once, over all devices, as a
                number or text; None leaves it as `umadvise.patch` has set it.
            cuda_spellings: whether code in the session that is written for a GPU, as by `device="cuda"`, means the
                emulated device, as it does under `umadvise run`; on CUDA it means what it says anyhow.

        Raises:
            PolicyError: another policy.
            UsageError: a size, threshold or `sample_every` that makes no sense, or `capacity` for a device that has its
                own.
        """
        self._policy = parse_policy(policy)
        self._policy_word = policy
        self._threshold = check_threshold(fault_threshold)
        if capacity is not None:
            if device != "emulated":
                raise UsageError('capacity goes with device="emulated": a GPU has its own; limit it with budget=')
            device = EmulatedDevice(capacity=capacity)
        self._device = device
        self._budget = parse_budget(budget)
        self._most_managed = None if most_managed is None else parse_bytes(most_managed)
        self._models: list[torch.nn.Module] = as_list(model)
        self._optimizers: list[torch.optim.Optimizer] = as_list(optimizer)
        self._adoption = Adoption(self._models, self._optimizers)
        self._records = record
        self._spells_cuda = cuda_spellings
        self._translation = ExitStack()
        self._sample_every = check_every(sample_every)
        self._owns_patch = False
        self._unified = True  # the budget is for unified memory too
        self._loop: Loop | None = None
        self._runtime: runtime.Runtime | None = None
        self._policy_before: Policy | None = None
        self._watched_before: str | None = None
        self._handles: list[Any] = []
        self._rehearses = False

    # ---- entry and exit -------------------------------------------------------------------------------------------

    @patching.one_at_a_time()
    def __enter__(self) -> Self:
        """Moves the model and the optimizer's state, and starts to watch.

        Raises:
            UsageError: a tensor among them has no memory of its own, as one that is made of others.
            torch.OutOfMemoryError: they do not fit the device, and the policy is "resident".
        """
        self._adoption.check()
        self._owns_patch = not runtime.is_patched()
        if not self._owns_patch:
            runtime.current().check_free()
        if self._owns_patch or self._most_managed is not None:
            patching.limit_managed(self._most_managed)
        if self._owns_patch:
            device = devices.open_device(self._device or "auto")
            try:
                self._policy, self._unified = fit_policy(self._policy, device)
                state = patching.start(device, self._budget, unified=self._unified)
            except BaseException:
                device.close()
                raise
        elif self._device is not None:
            raise StateError(
                "umadvise is patched already: open the session without device=, or call umadvise.unpatch()"
            )
        else:
            state = runtime.current()
            self._policy, self._unified = fit_policy(self._policy, state.device)
        self._watched_before = state.watch(runtime.SESSION)
        self._runtime = state
        self._policy_before = state.policy
        state.follow_thread()
        try:
            self._begin(state)
        except BaseException:
            self._end(state)
            raise
        return self

    def _begin(self, state: runtime.Runtime) -> None:
        signals.keep()
        if self._spells_cuda and state.emulated and Loop.shared is None:  # else `umadvise run` has it translated
            self._translation.enter_context(cuda_spellings.translated(state))
        budget_bytes = state.budget_bytes if self._owns_patch else budget_on(state.device, self._budget)
        shared = Loop.shared
        observer = (
            shared.observer if shared else Observer(state, sample_every=self._sample_every, policy=self._policy_word)
        )
        if shared is not None:  # that of `umadvise run`: the session's own rules from here on
            shared.close()
        state.session_budget_bytes = budget_bytes
        first = ADVISE if self._policy == AUTO else self._policy
        paged = not self._owns_patch and take_budget(state, first, unified=self._unified)
        if shared is not None:
            observer.belongs_to_session(self._policy_word)
        self._loop = Loop(state, observer, self._policy, fault_threshold=self._threshold)
        if shared is not None:
            self._loop.split_around = shared.split_around or shared.split
            Loop.shared = self._loop
        if paged:
            move_earlier(state, self._loop.split, LADDER[self._loop.rung], limited=self._policy.keeps_budget)
        if self._records:
            observer.recorder.start()
        self._adoption.take_in(state)
        for index, model in enumerate(self._models):
            observer.names.learn(model, f"{index}." if len(self._models) > 1 else "")
        for optimizer in self._optimizers:
            observer.names.label_state(optimizer)
        # Loading a checkpoint replaces the optimizer's state by tensors in ordinary memory.
        self._handles = [
            optimizer.register_load_state_dict_post_hook(lambda _: self._adoption.take_in(state))
            for optimizer in self._optimizers
        ]
        if shared is None:
            observer.attach()
        self._loop.begin_with_kept(self._models, self._optimizers)
        observer.unmarked.optimizers = self._optimizers
        observer.unmarked.driver = self._loop

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Gives every tensor of the model and the optimizer that was moved back as an ordinary one.

        All but those whose address left torch, to a live numpy array for one: they stay where they are, and valid.

        Raises:
            torch.OutOfMemoryError: ops of an unmarked step that had not ended found no room on the device.
        """
        if self._runtime is None:
            return
        with signals_held():
            self._end(self._runtime)
        if kind is None and self._loop is not None:
            self._loop.observer.clock.check()

    @patching.one_at_a_time()
    def _end(self, state: runtime.Runtime) -> None:
        self._runtime = None
        if sys.is_finalizing():  # modules are gone that the way out needs, and the memory goes with the process
            return
        signals.keep()  # tensors are touched on the way out
        with ExitStack() as stack:  # one failure must not keep the rest from its end
            stack.callback(self._leave, state)
            stack.callback(self._translation.close)
            if not state.forked:
                self._end_loop(state, stack)
            for handle in self._handles:
                stack.callback(handle.remove)

    def _end_loop(self, state: runtime.Runtime, stack: ExitStack) -> None:
        """What the stack does, the last first."""
        loop = self._loop
        if loop is not None:
            stack.callback(loop.split.release)
        stack.callback(self._adoption.give_back, state)
        if loop is None:
            return
        loop.observer.unmarked.driver = None
        if Loop.shared is None:
            stack.callback(loop.observer.detach)
        if self._records:
            stack.callback(loop.observer.recorder.stop)
        stack.callback(loop.close)

    def _leave(self, state: runtime.Runtime) -> None:
        state.session_budget_bytes = None
        state.watched_by = self._watched_before
        if self._owns_patch:
            self._name_survivors(state)
            patching.finish(state)
        elif not state.forked:
            policy = self._policy_before or state.policy
            if self._unified:
                page_left(state)
            state.set_policy(policy)
            state.follow_own_thread()
            state.device.set_budget(state.budget_bytes or 0)
            if self._loop is not None and self._loop.split_around is not None:
                self._loop.split_around.resume(policy)

    def _name_survivors(self, state: runtime.Runtime) -> None:
        alive = state.device.allocations() if not state.forked else []
        if alive:
            size = format_bytes(sum(allocation.bytes for allocation in alive))
            log.info("%d tensors (%s) outlive the session; their device goes with the last of them", len(alive), size)

    # ---- the loop -------------------------------------------------------------------------------------------------

    def step(self) -> AbstractContextManager[None]:
        """Marks one training step: `with um.step():`. If memory cannot hold it, what it changed is changed back.

        Raises:
            StateError: the session is not open, or another step is, as that of another asyncio task.
        """
        state, loop = _opened(self._runtime), self._open_loop()
        return nullcontext() if self._rehearses else marked_step(state, loop)

    def plan_ahead(self, step: Callable[[], object]) -> None:
        """Plans the next steps before they run, so that the first one is driven already.

        The function is called twice, on torch's meta device: for the model, the optimizer and every other tensor that
        it has in its hands there are stand-ins of the same form, no value is computed, and model, optimizer and
        generators of random numbers are as before afterwards, and learning-rate schedulers do nothing. What else the
        function does it does twice: it should take no batch from a loader and append to no list.

        Args:
            step: function that runs one whole step, as it stands in `with um.step():`: zero_grad, forward, loss,
                backward, optimizer.

        Raises:
            UsageError: the function reads the value of a tensor (`.item()`, `if tensor:`), or makes one whose size
                depends on values. Nothing has changed then, and steps are recorded as they run.
            StateError: the session is not open, or a step runs.
        """
        _opened(self._runtime)
        loop = self._open_loop()
        if loop.observer.clock.in_step:
            raise StateError("plan_ahead is for the steps that follow: call it between two steps")
        self._rehearses = True
        try:
            loop.plan_ahead(step, self._models, self._optimizers)
        finally:
            self._rehearses = False

    def to_device(self, batch: Batch) -> Batch:
        """A batch's tensors on the device, with the role of inputs; containers keep their form.

        Raises:
            UsageError: one of them has no memory of its own, as one that is made of others.
        """
        return batch_moved_in(_opened(self._runtime), batch, keep_meta=self._rehearses)

    # ---- what happened --------------------------------------------------------------------------------------------

    def profile(self, *, predict: bool = False) -> FaultProfile:
        """The fault profile so far; after the session too.

        Args:
            predict: while the session is open, where steps stand still too long: also ask the simulator how long they
                would take on other rungs, so that findings can name one. That takes some seconds.
        """
        return self._open_loop().profile(predict=predict and self._runtime is not None)

    def trace(self, step: int | None = None) -> Trace:
        """The trace of a session with `record=True`, since its entry; also after the session.

        Args:
            step: 1, 2, ...: cuts that step out, with all that was there at its beginning, as the dry recorder gives
                one. The last step's end is that of the recording. None is everything.

        Raises:
            StateError: it does not record, or the recording is not whole.
            UsageError: there is no such step.
        """
        return self._open_loop().observer.recorder.trace(step)

    def report(self, path: str | Path | None = None) -> None:
        """Prints the report, and writes the profile to a file for `umadvise report` where one is named.

        Of several processes the first prints, and each has a file of its own: `umadvise.devices.ranks.Ranks.own`.
        """
        profile, here = self.profile(predict=True), ranks()
        if path is not None:
            write(profile, here.own(Path(path)))
        if here.speaks:
            print(text.render(profile))  # noqa: T201  # a report is asked for

    def counters(self) -> Counters:
        """The device's totals since it was opened; None for what cannot be seen."""
        return self._open_loop().observer.reader.now().counters

    def memory_stats(self) -> MemoryStats:
        """Requested, reserved, resident, host and workspace bytes, by role, with the peaks of the last step."""
        return self._open_loop().observer.reader.now().memory

    @property
    def rung(self) -> str:
        """The rung of the ladder that steps run on now, or ran on last."""
        return self._open_loop().rung

    @property
    def plan(self) -> Plan | None:
        """The plan that drives the steps now; None while there is none, and on rungs without one."""
        return self._open_loop().plan

    @property
    def planned_step(self) -> Trace | None:
        """The recorded step that the plan is for; without a plan the steady one that was recorded last."""
        return self._open_loop().planned_step

    def predicted_step(self) -> GpuStep | None:
        """A simulated steady step with the plan that drives now; None without a plan of swaps.

        Its `swaps` are what `swap_counters` counts in such a step, its peak is that of all chunks: see
        `umadvise.training.plans.prediction`.

        Raises:
            BudgetError: an op finds no room.
        """
        simulation = self._open_loop().predicted()
        return None if simulation is None else simulation.steps[-1]

    def swap_counters(self) -> SwapCounters:
        """What explicit swapping did since the device was opened, and where its chunks are."""
        if self._runtime is None:
            return self._open_loop().cycle.counters
        return self._runtime.device.swap_counters()

    def _open_loop(self) -> Loop:
        return _opened(self._loop)


def _opened(part: Part | None) -> Part:
    if part is None:
        raise StateError("the session is not open: use it as `with umadvise.session(...) as um:`")
    return part
