"""`umadvise.session`: a training loop under a byte budget, with roles, plans and the fault profile by itself."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import torch
from torch.utils import _pytree as pytree

from umadvise.devices import open_device as devices
from umadvise.devices.budget import budget_on, parse_budget
from umadvise.devices.open_device import EmulatedDevice
from umadvise.devices.rungs import Policy
from umadvise.errors import BudgetError, StateError, UsageError
from umadvise.records.counters import Counters, MemoryStats, SwapCounters
from umadvise.records.enums import Role
from umadvise.records.fault_profile import FaultProfile, write
from umadvise.records.plan import Plan
from umadvise.records.trace import Trace
from umadvise.records.units import format_bytes, parse_bytes
from umadvise.reports.findings import stands_still
from umadvise.reports.reporters import text
from umadvise.simulator.swap import SwapSimulation
from umadvise.torch_seam import patching, runtime, signals
from umadvise.torch_seam.adoption import Adoption, check_kind
from umadvise.torch_seam.placement import to_device
from umadvise.torch_seam.torch_api import moved_in
from umadvise.training.loop.steering import Steering, steer
from umadvise.training.policy.course import AUTO, course_of
from umadvise.training.policy.degraded import fit_course
from umadvise.training.policy.governor import FAULT_THRESHOLD, check_threshold
from umadvise.training.watch.observer import Observer, as_list
from umadvise.training.watch.sampling import SAMPLE_EVERY, check_every

log = logging.getLogger("umadvise")
Batch = TypeVar("Batch")


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
        policy: str = AUTO,
        record: bool = False,
        fault_threshold: float = FAULT_THRESHOLD,
        sample_every: int = SAMPLE_EVERY,
        most_managed: int | str | None = None,
    ) -> None:
        """Checks the arguments; nothing happens before the `with`.

        Args:
            model: the module to train, or several.
            optimizer: its optimizer, or several, or None.
            device: as in `umadvise.patch`; None takes what is patched, else "auto".
            capacity: of the emulated device, if `device` is "emulated".
            budget: bytes that tensors may take on the device; "auto" is what a card that is shared has to spare when
                the session opens (`umadvise.devices.budget` has the rule); None is all that it has.
            policy: a rung of the ladder ("resident", "advise", "window", "swap", "swap+recompute"), which all steps
                run on; a planner's name, whose plans they follow; or "auto", which chooses a rung when it has seen a
                step, and goes up where stalls cost too much.
            record: keep every op, allocation, copy and fault service for `trace()`.
            fault_threshold: of "auto": the part of a step that stalls may take (0.0 to 1.0), or, as a whole number,
                how many fault groups a step may have.
            sample_every: on CUDA faults are counted in every n-th step and the first three, as collecting them takes
                time; 0: in none, for measurements. The emulated device counts every step.
            most_managed: as in `umadvise.patch`; None changes nothing where that was called.

        Raises:
            PolicyError: another policy.
            UsageError: a size, threshold or `sample_every` that makes no sense, or `capacity` for a device that has its
                own.
        """
        self._course = course_of(policy)
        self._policy = policy
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
        self._sample_every = check_every(sample_every)
        self._owns_patch = False
        self._unified = True  # the budget is for unified memory too
        self._steering: Steering | None = None
        self._runtime: runtime.Runtime | None = None
        self._observer: Observer | None = None
        self._policy_before: Policy | None = None
        self._handles: list[Any] = []

    # ---- entry and exit -------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Moves the model and the optimizer's state, and starts to watch.

        Raises:
            UsageError: a tensor among them has no memory of its own, as a DTensor.
        """
        self._adoption.check()
        self._owns_patch = not runtime.is_patched()
        if self._owns_patch or self._most_managed is not None:
            patching.limit_managed(self._most_managed)
        if self._owns_patch:
            device = devices.open_device(self._device or "auto")
            try:
                self._course, self._unified = fit_course(self._course, device)
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
            self._course, self._unified = fit_course(self._course, state.device)
        if Observer.shared is None:
            state.watch("a session")
        self._runtime = state
        self._policy_before = state.policy
        try:
            self._begin(state)
        except BaseException:
            self._end(state)
            raise
        return self

    def _begin(self, state: runtime.Runtime) -> None:
        signals.keep()
        budget_bytes = state.budget_bytes if self._owns_patch else budget_on(state.device, self._budget)
        if budget_bytes is not None and self._unified:
            state.device.set_budget(budget_bytes)
        state.session_budget_bytes = budget_bytes
        self._observer = Observer.shared or Observer(state, sample_every=self._sample_every, policy=self._policy)
        if self._observer.steering is not None:  # that of `umadvise run`: the session's own rules from here on
            self._observer.steering.close()
        self._steering = self._observer.steering = steer(
            state,
            self._observer,
            self._course,
            budget_bytes=budget_bytes,
            fault_threshold=self._threshold,
            persistent_sizes=self._adoption.persistent_sizes,
            follow=partial(self._adoption.follow, state),
        )
        if self._records:
            self._observer.start_recording()
        self._adoption.take_in(state)
        for index, model in enumerate(self._models):
            self._observer.name_module(model, f"{index}." if len(self._models) > 1 else "")
        for optimizer in self._optimizers:
            self._observer.label_state(optimizer)
        # Loading a checkpoint replaces the optimizer's state by tensors in ordinary memory.
        self._handles = [
            optimizer.register_load_state_dict_post_hook(lambda _: self._adoption.take_in(state))
            for optimizer in self._optimizers
        ]
        if Observer.shared is None:
            self._observer.attach()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Gives every tensor of the model and the optimizer that was moved back as an ordinary one.

        All but those whose address left torch, to a live numpy array for one: they stay where they are, and valid.
        """
        if self._runtime is not None:
            self._end(self._runtime)

    def _end(self, state: runtime.Runtime) -> None:
        self._runtime = None
        signals.keep()  # tensors are touched on the way out
        with ExitStack() as stack:  # one failure must not keep the rest from its end
            stack.callback(self._leave, state)
            if self._steering is not None and not state.forked:
                stack.callback(self._steering.split.release)
            if not state.forked:
                stack.callback(self._adoption.give_back, state)
            if self._observer is not None and not state.forked and Observer.shared is None:
                stack.callback(self._observer.detach)
            if self._observer is not None and self._records and not state.forked:
                stack.callback(self._observer.stop_recording)
            if self._steering is not None and not state.forked:
                stack.callback(self._steering.close)
            for handle in self._handles:
                stack.callback(handle.remove)

    def _leave(self, state: runtime.Runtime) -> None:
        state.session_budget_bytes = None
        if Observer.shared is None:
            state.watched_by = None
        if self._owns_patch:
            self._name_survivors(state)
            patching.finish(state)
        elif not state.forked:
            state.set_policy(self._policy_before or state.policy)
            state.device.set_budget(state.budget_bytes or 0)

    def _name_survivors(self, state: runtime.Runtime) -> None:
        alive = state.device.allocations() if not state.forked else []
        if alive:
            size = format_bytes(sum(allocation.bytes for allocation in alive))
            log.info("%d tensors (%s) outlive the session; their device goes with the last of them", len(alive), size)

    # ---- the loop -------------------------------------------------------------------------------------------------

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around one training step."""
        state, observer, steering = self._state(), self._watching(), self._steering
        assert steering is not None
        observer.steps_are_marked = True
        number = observer.step_count + 1
        if not state.forked:
            signals.keep()
            steering.before_step(number)
        observer.begin_step()
        whole = refused = False
        try:
            yield
            whole = True
        except (torch.OutOfMemoryError, BudgetError):
            refused = True
            raise
        finally:
            if not state.forked:  # a child may leave through here
                observer.end_step()
                steering.after_step(number, whole=whole, refused=refused)

    def to_device(self, batch: Batch) -> Batch:
        """A batch's tensors on the device, with the role of inputs; containers keep their form.

        Raises:
            UsageError: one of them has no memory of its own, as a DTensor.
        """

        def move(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            check_kind(leaf, "a tensor of the batch")
            return to_device(leaf, Role.INPUT, None) if self._state().emulated else moved_in(leaf, Role.INPUT)

        moved: Batch = pytree.tree_map(move, batch)
        return moved

    # ---- what happened --------------------------------------------------------------------------------------------

    def profile(self, *, predict: bool = False) -> FaultProfile:
        """The fault profile so far; after the session too.

        Args:
            predict: while the session is open, where steps stand still too long: also ask the simulator how long they
                would take on other rungs, so that findings can name one. That takes some seconds.
        """
        profile = self._watching().profile()
        if not predict or self._runtime is None or not stands_still(profile):
            return profile
        return self._watching().profile(self._steered().predictions())

    def trace(self, step: int | None = None) -> Trace:
        """What a session with `record=True` did since its entry; after the session too.

        Args:
            step: 1, 2, ...: cuts that step out, with all that was there at its beginning, as the dry recorder gives
                one. The last step's end is that of the recording. None is everything.

        Raises:
            StateError: it does not record, or the recording is not whole.
            UsageError: there is no such step.
        """
        return self._watching().trace(step)

    def report(self, path: str | Path | None = None) -> None:
        """Prints the report, and writes the profile to a file for `umadvise report` where one is named."""
        profile = self.profile(predict=True)
        if path is not None:
            write(profile, Path(path))
        print(text.render(profile))  # noqa: T201  # a report is asked for

    def counters(self) -> Counters:
        """The device's totals since it was opened; None for what cannot be seen."""
        return self._watching().counters()

    def memory_stats(self) -> MemoryStats:
        """Requested, reserved, resident, host and workspace bytes, by role, with the peaks of the last step."""
        return self._watching().memory()

    @property
    def rung(self) -> str:
        """The rung of the ladder that steps run on now, or ran on last."""
        return self._steered().rung

    @property
    def plan(self) -> Plan | None:
        """The plan that drives the steps now; None while there is none, and on rungs without one."""
        return self._steered().plan

    @property
    def planned_step(self) -> Trace | None:
        """The recorded step that the plan is for; without a plan the steady one that was recorded last."""
        return self._steered().planned_step

    def predicted_step(self) -> SwapSimulation | None:
        """What the simulator says that the device does in a step with the plan; None without a plan of swaps.

        Its steady counters are those of `swap_counters` for each step, its peak is that of all chunks: see
        `umadvise.training.plans.prediction`.

        Raises:
            NoRoomError: by the simulator's rules an op finds no room.
        """
        return self._steered().predicted()

    def swap_counters(self) -> SwapCounters:
        """What explicit swapping did since the device was opened, and where its chunks are."""
        if self._runtime is None:
            return self._steered().driver.counters
        return self._runtime.device.swap_counters()

    def _steered(self) -> Steering:
        if self._steering is None:
            raise StateError("the session is not open: use it as `with umadvise.session(...) as um:`")
        return self._steering

    def _watching(self) -> Observer:
        if self._observer is None:
            raise StateError("the session is not open: use it as `with umadvise.session(...) as um:`")
        return self._observer

    def _state(self) -> runtime.Runtime:
        if self._runtime is None:
            raise StateError("the session is not open: use it as `with umadvise.session(...) as um:`")
        return self._runtime
