"""`umadvise.session`: a training loop under a byte budget, with roles, advice and the fault profile by itself."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import torch
from torch.utils import _pytree as pytree

from umadvise import _native, devices, patching, runtime
from umadvise._abi import Memory, Role
from umadvise.counters.records import Counters, MemoryStats
from umadvise.devices import EmulatedDevice
from umadvise.errors import StateError, UsageError
from umadvise.observer import Observer, as_list, strided_parts, tensors_of_state
from umadvise.placement import to_device
from umadvise.profile import FaultProfile, write
from umadvise.reporters import text
from umadvise.roles import ADVISE, AUTO, POLICIES, RESIDENT, Policy, check_policy
from umadvise.runtime import on_device
from umadvise.trace.schema import Trace
from umadvise.units import format_bytes, parse_bytes

log = logging.getLogger("umadvise")
Batch = TypeVar("Batch")

_FITS = 0.9
"""`auto` calls a step that needed up to this share of the budget one that fits; the rest is for what varies."""


class Session:
    """A training loop whose tensors live in memory of umadvise. Use it as a context manager.

    On the emulated device the model's and the optimizer's tensors move onto it on entry and back on exit, also after an
    exception. On CUDA they must have been allocated after `umadvise.patch()`.
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
    ) -> None:
        """Checks the arguments; nothing happens before the `with`.

        Args:
            model: the module to train, or several.
            optimizer: its optimizer, or several, or None.
            device: as in `umadvise.patch`; None takes what is patched, else "auto".
            capacity: of the emulated device, if `device` is "emulated".
            budget: bytes that unified memory may keep on the device; None is all that is free.
            policy: "resident", "advise", or "auto", which picks between the two after it has seen a step.
            record: keep every op, allocation, copy and fault service for `trace()`.

        Raises:
            PolicyError: another policy.
            UsageError: a size that cannot be read, or `capacity` for a device that has its own.
        """
        self._policy_name = check_policy(policy)
        if capacity is not None:
            if device != "emulated":
                raise UsageError('capacity goes with device="emulated": a GPU has its own; limit it with budget=')
            device = EmulatedDevice(capacity=capacity)
        self._device = device
        self._budget_bytes = parse_bytes(budget) if budget is not None else None
        self._models: list[torch.nn.Module] = as_list(model)
        self._optimizers: list[torch.optim.Optimizer] = as_list(optimizer)
        self._records = record
        self._owns_patch = False
        self._runtime: runtime.Runtime | None = None
        self._observer: Observer | None = None
        self._policy_before: Policy | None = None
        self._handles: list[Any] = []

    # ---- entry and exit -------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Moves the model and the optimizer's state, and starts to watch."""
        self._owns_patch = not runtime.is_patched()
        if self._owns_patch:
            device = devices.open_device(self._device or "auto")
            try:
                state = patching.start(device, self._budget_bytes)
            except BaseException:
                device.close()
                raise
        elif self._device is not None:
            raise StateError(
                "umadvise is patched already: open the session without device=, or call umadvise.unpatch()"
            )
        else:
            state = runtime.current()
        if state.script_observer is None:
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
        if self._budget_bytes is not None:
            state.device.set_budget(self._budget_bytes)
        state.set_policy(POLICIES.get(self._policy_name, ADVISE))
        self._observer = state.script_observer or Observer(state)
        if self._records:
            self._observer.start_recording()
        self._take_in(state)
        for index, model in enumerate(self._models):
            self._observer.name_module(model, f"{index}." if len(self._models) > 1 else "")
        for optimizer in self._optimizers:
            self._observer.label_state(optimizer)
        # Loading a checkpoint replaces the optimizer's state by tensors in ordinary memory.
        loaded = [
            optimizer.register_load_state_dict_post_hook(lambda _: self._take_in(state))
            for optimizer in self._optimizers
        ]
        self._handles = loaded
        if state.script_observer is None:
            self._observer.attach()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Gives every tensor of the model and the optimizer back as an ordinary one (emulated device).

        All but those whose address left torch, to a live numpy array for one: they stay where they are, and valid.
        """
        if self._runtime is not None:
            self._end(self._runtime)

    def _end(self, state: runtime.Runtime) -> None:
        self._runtime = None
        with ExitStack() as stack:  # one failure must not keep the rest from its end
            stack.callback(self._leave, state)
            if state.emulated and not state.forked:
                stack.callback(self._give_back)
            if self._observer is not None and not state.forked and state.script_observer is None:
                stack.callback(self._observer.detach)
            if self._observer is not None and self._records and not state.forked:
                stack.callback(self._observer.stop_recording)
            for handle in self._handles:
                stack.callback(handle.remove)

    def _leave(self, state: runtime.Runtime) -> None:
        if state.script_observer is None:
            state.watched_by = None
        if self._owns_patch:
            self._name_survivors(state)
            patching.finish(state)
        elif not state.forked:
            state.set_policy(self._policy_before or state.policy)
            state.device.set_budget(state.budget_bytes or 0)

    def _give_back(self) -> None:
        with ExitStack() as stack:
            for storage in {storage._cdata: storage for storage, _ in self._storages()}.values():
                placed = _native.allocation_at(runtime.storage_address(storage))
                if placed is not None and placed.exports == 0:  # an address that left torch must stay good
                    stack.callback(_native.give_back_storage, storage._cdata)

    def _name_survivors(self, state: runtime.Runtime) -> None:
        alive = state.device.allocations() if not state.forked else []
        if alive:
            size = format_bytes(sum(allocation.bytes for allocation in alive))
            log.info("%d tensors (%s) outlive the session; their device goes with the last of them", len(alive), size)

    def _storages(self) -> Iterator[tuple[torch.UntypedStorage, Role]]:
        """Every storage of the models and optimizers, with the role of the arena that it belongs in."""
        tensors: list[tuple[torch.Tensor, Role]] = []
        parameters = [parameter for model in self._models for parameter in model.parameters()]
        for optimizer in self._optimizers:
            parameters += (parameter for group in optimizer.param_groups for parameter in group["params"])
            tensors += ((tensor, Role.PARAMETER) for _, _, tensor in tensors_of_state(optimizer))
        for tensor in (*parameters, *(buffer for model in self._models for buffer in model.buffers())):
            tensors.append((tensor, Role.PARAMETER))
            if tensor.grad is not None:
                tensors.append((tensor.grad, Role.INTERMEDIATE))
        for tensor, role in tensors:
            for part in strided_parts(tensor):
                if part.device.type == "cpu":
                    yield part.untyped_storage(), role

    def _take_in(self, state: runtime.Runtime) -> None:
        if not state.emulated:
            for model in self._models:
                foreign = [name for name, tensor in model.named_parameters() if not on_device(tensor)]
                if foreign:
                    raise StateError(
                        f"{foreign[0]!r} was not allocated by umadvise: call umadvise.patch() before the model is "
                        'moved to the GPU with .to("cuda")'
                    )
            return
        for storage, role in self._storages():
            state.take_in(storage, role)

    # ---- the loop -------------------------------------------------------------------------------------------------

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around one training step."""
        state, observer = self._state(), self._watching()
        observer.steps_are_marked = True
        observer.begin_step()
        try:
            yield
        finally:
            if not state.forked:  # a child may leave through here
                observer.end_step()
        self._choose_rung(observer)

    def to_device(self, batch: Batch) -> Batch:
        """A batch's tensors on the device, with the role of inputs; containers keep their form."""

        def move(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            return to_device(leaf, Role.INPUT, None) if self._state().emulated else leaf.to("cuda")

        moved: Batch = pytree.tree_map(move, batch)
        return moved

    def _choose_rung(self, observer: Observer) -> None:
        """`auto`: a step that fits needs no paging; new blocks then live in plain memory, where there is any left."""
        state = self._state()
        if (
            state.forked
            or self._policy_name != AUTO
            or state.policy.memory != Memory.MANAGED
            or state.intermediate_advice is not None
            or observer.step_count < 2
        ):
            return  # the first step lacks the optimizer's state
        needed, room = observer.memory().requested_peak_bytes, self._room_bytes(state)
        if needed <= _FITS * room:
            log.info(
                "policy auto: a step needs %s of %s: new tensors are resident from now on",
                format_bytes(needed),
                format_bytes(room),
            )
            state.set_policy(replace(RESIDENT, memory=Memory.PREFER_DEVICE))

    def _room_bytes(self, state: runtime.Runtime) -> int:
        capacity = state.device.info().total_bytes
        return min(capacity, self._budget_bytes or state.budget_bytes or capacity)

    # ---- what happened --------------------------------------------------------------------------------------------

    def profile(self) -> FaultProfile:
        """The fault profile so far; after the session too."""
        return self._watching().profile()

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
        """Prints the page-fault report, and writes the profile to a file for `umadvise report` where one is named."""
        profile = self.profile()
        if path is not None:
            write(profile, Path(path))
        print(text.render(profile))  # noqa: T201  # a report is asked for

    def counters(self) -> Counters:
        """The device's totals since it was opened; None for what cannot be seen."""
        return self._watching().counters()

    def memory_stats(self) -> MemoryStats:
        """Requested, reserved, resident, host and workspace bytes, by role, with the peaks of the last step."""
        return self._watching().memory()

    def _watching(self) -> Observer:
        if self._observer is None:
            raise StateError("the session is not open: use it as `with umadvise.session(...) as um:`")
        return self._observer

    def _state(self) -> runtime.Runtime:
        if self._runtime is None:
            raise StateError("the session is not open: use it as `with umadvise.session(...) as um:`")
        return self._runtime
