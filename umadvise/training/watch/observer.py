"""Watching a training loop: to which module, phase and step an op belongs, what tensors are called, what steps cost."""

import logging
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch.nn.modules import module as torch_module
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.weak import WeakTensorKeyDictionary

from umadvise import _native
from umadvise._native.abi import Counting, Memory
from umadvise._native.readings import (
    chunks_from,
    events_from,
    placed_from,
    residency_from,
    swaps_from,
)
from umadvise._version import __version__
from umadvise.errors import StateError
from umadvise.recording import cut, live
from umadvise.recording.recorded_step import RecordedStep, recorded_step
from umadvise.records.counters import Chunks, Counters, MemoryStats, Placed, Sampling, Swaps
from umadvise.records.enums import Advice, Phase, Role
from umadvise.records.fault_profile import FaultProfile, MeasuredStep, RunEnvironment, RungChange, RungPrediction
from umadvise.records.trace import Target, Trace
from umadvise.records.units import MAX_BYTES, format_bytes, format_duration_ns
from umadvise.reports.counters.builder import ProfileBuilder
from umadvise.torch_seam import signals
from umadvise.torch_seam.runtime import Runtime, address_of, on_device
from umadvise.torch_seam.tensors import tensors_of_state
from umadvise.torch_seam.traced import unless_traced
from umadvise.training.watch.sampling import SAMPLE_EVERY, Sampler

log = logging.getLogger("umadvise")

if TYPE_CHECKING:
    from umadvise.training.loop.steering import Steering


_COMPILED = "_orig_mod"
"""The attribute in which what `torch.compile` makes of a module holds that module."""
_HOOKS_WARNING = r"Using `torch\.compile\(module\)` when there are global hooks on modules"
"""Such hooks also run for what `torch.compile` makes of a module. Ours are meant to."""


def _uncompiled(module: torch.nn.Module) -> torch.nn.Module:
    if _COMPILED not in module._modules:
        return module
    return module._modules[_COMPILED] or module


def _own_name(name: str) -> str:
    """A name as it is without `torch.compile`."""
    return name.removeprefix(_COMPILED).removeprefix(".").replace(f".{_COMPILED}", "")


@dataclass(frozen=True)
class _Readings:
    """What the device said last, before it went."""

    counters: Counters
    memory: MemoryStats
    dropped_events: int
    sampling: Sampling | None
    swaps: Swaps
    chunks: Chunks | None
    placed: dict[tuple[Role, Memory, Advice], int]


class Observer:
    """Hooks on modules, parameters and optimizers, and the fault profile they lead to.

    Attributes:
        shared: that of `umadvise run`, while it runs a script; a session of the script takes it.
        step_count: steps that have begun.
        steps_are_marked: the script says where steps begin and end.
        last_step: what the last whole step cost.
        rungs: of the ladder, with the reasons, for the profile.
        steering: that chooses them and has steps driven.
    """

    shared: ClassVar["Observer | None"] = None

    def __init__(
        self,
        runtime: Runtime,
        script: str | None = None,
        sample_every: int = SAMPLE_EVERY,
        policy: str | None = None,
    ) -> None:
        """Prepares to watch what runs on a runtime's device; `attach` starts.

        Args:
            runtime: what is patched.
            script: as the user typed it.
            sample_every: on CUDA the counters are those of every n-th step and the first three; 0: of none.
            policy: as the user named it.
        """
        self._policy = policy
        self._placed_before: dict[tuple[Role, Memory, Advice], int] = {}
        self._sample_every = sample_every
        self._sampler: Sampler | None = None
        self._runtime = runtime
        self._script = script
        self._handles: list[Any] = []
        # Weak: a script may train one model after another.
        self._module_names: WeakKeyDictionary[torch.nn.Module, str] = WeakKeyDictionary()
        self._modules_entered: list[str] = []
        self._parameter_names = WeakTensorKeyDictionary()
        self._uninitialized: list[tuple[torch.Tensor, str]] = []  # parameters, with their names
        self._state_sizes: WeakKeyDictionary[torch.optim.Optimizer, int] = WeakKeyDictionary()
        self._builder: ProfileBuilder | None = None
        self._in_step = False
        self._last: _Readings | None = None
        self._records = False
        self._recording: _native.Recording | None = None
        self._device_name = ""
        self.step_count = 0
        self.steps_are_marked = False
        self.last_step: MeasuredStep | None = None
        self.rungs: list[RungChange] = []
        self.steering: Steering | None = None
        self._told_of_oversized_ops = self._told_of_ended_exports = False
        self._exports_ended_before = 0

    # ---- names ----------------------------------------------------------------------------------------------------

    def name_module(self, model: torch.nn.Module, prefix: str = "") -> None:
        """Learns a model's names, and labels its tensors and gradients with them."""
        for name, module in model.named_modules():
            self._module_names.setdefault(module, prefix + _own_name(name) or type(_uncompiled(model)).__name__)
        for name, buffer in model.named_buffers():
            self._label(buffer, Role.PARAMETER, prefix + _own_name(name))
        for name, parameter in model.named_parameters():
            self.name_parameter(parameter, prefix + _own_name(name))

    def name_parameter(self, parameter: torch.Tensor, name: str) -> None:
        """Labels a parameter, its gradient now, and each gradient that will follow."""
        if is_lazy(parameter):
            self._uninitialized.append((parameter, name))
            return
        self._label(parameter, Role.PARAMETER, name)
        if parameter in self._parameter_names:
            return
        self._parameter_names[parameter] = name
        if parameter.grad is not None:
            self._label(parameter.grad, Role.GRADIENT, f"{name}.grad")
        if parameter.requires_grad and parameter.is_leaf:
            self._handles.append(parameter.register_post_accumulate_grad_hook(unless_traced(self._gradient_arrived)))

    def _gradient_arrived(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self._label(parameter.grad, Role.GRADIENT, f"{self._parameter_names[parameter]}.grad")

    def label_state(self, optimizer: torch.optim.Optimizer) -> None:
        """Labels the optimizer's state after the parameters that it belongs to."""
        for name, parameter, tensor in tensors_of_state(optimizer):
            owner = self._parameter_names.get(parameter, "parameter")
            self._label(tensor, Role.OPTIMIZER_STATE, f"{owner}.{name}")

    def _label(self, tensor: torch.Tensor, role: Role, name: str) -> None:
        if tensor.layout is torch.strided and on_device(tensor):
            _native.label(address_of(tensor), role, name)

    # ---- hooks ----------------------------------------------------------------------------------------------------

    def attach(self) -> None:
        """Starts to watch."""
        device = self._runtime.device
        device.enable_events(True)
        if not self._runtime.emulated:
            self._sampler = Sampler(device, self._sample_every)
        warnings.filterwarnings("ignore", _HOOKS_WARNING, UserWarning)
        readings = self._readings()
        self._builder = ProfileBuilder(
            self._environment(), readings.counters, readings.swaps, sampled=self._sampler is not None
        )
        self._placed_before = readings.placed
        self._exports_ended_before = device.memory_history().exports_ended
        for each in device.allocations():  # what lives now counts as placed, what is gone does not
            kind = Role(each.role), Memory(each.memory), Advice(each.advice)
            self._placed_before[kind] = self._placed_before.get(kind, 0) - each.bytes
        self._handles += [
            torch_module.register_module_forward_pre_hook(unless_traced(self._enter_module)),
            torch_module.register_module_forward_hook(unless_traced(self._leave_module), always_call=True),
            register_optimizer_step_pre_hook(unless_traced(self._enter_optimizer)),
            register_optimizer_step_post_hook(unless_traced(self._leave_optimizer)),
        ]

    def detach(self) -> None:
        """Ends it. What happened can still be had, though the device may go."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        _native.set_module("")
        _native.set_phase(Phase.NONE)
        self._warn()
        self._drain()
        self.stop_recording()
        self._last = self._readings()
        if self._sampler is not None:
            self._sampler.close()
        self._runtime.device.enable_events(False)

    def _enter_module(self, module: torch.nn.Module, *_: Any) -> None:
        module = _uncompiled(module)
        name = self._module_names.get(module)
        if name is None and not self._modules_entered:  # a root that nobody told us of
            self.name_module(module)
            name = self._module_names[module]
        self._modules_entered.append(_native.set_module(name if name is not None else type(module).__name__))

    def _leave_module(self, *_: Any) -> None:
        if self._uninitialized:  # a lazy module's first forward makes its parameters
            waiting, self._uninitialized = self._uninitialized, []
            for parameter, name in waiting:
                self.name_parameter(parameter, name)
        if self._modules_entered:
            _native.set_module(self._modules_entered.pop())

    def _enter_optimizer(self, *_: Any) -> None:
        self._drain()
        _native.set_phase(Phase.OPTIMIZER)

    def _leave_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        _native.set_phase(Phase.FORWARD if self._in_step else Phase.NONE)
        size = sum(len(entries) for entries in optimizer.state.values())
        if self._state_sizes.get(optimizer) != size:  # new state: after the first step, or for new parameters
            self._state_sizes[optimizer] = size
            self.label_state(optimizer)

    # ---- steps ----------------------------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """A step begins now."""
        assert self._builder is not None
        self._drain()
        self.step_count += 1
        self._in_step = True
        device = self._runtime.device
        device.reset_memory_peaks()
        if self._sampler is not None:
            self._sampler.before_step()
        device.set_step(self.step_count)
        _native.set_phase(Phase.FORWARD)
        readings = self._readings()
        self._builder.begin_step(self.step_count, time.monotonic_ns(), readings.counters, readings.swaps)

    def end_step(self) -> None:
        """The step ends now."""
        assert self._builder is not None
        end_ns = time.monotonic_ns()
        self._in_step = False
        _native.set_phase(Phase.NONE)
        self._runtime.device.set_step(0)
        self._drain()
        sample = None
        if self._sampler is not None and (sampled := self._sampler.after_step()) is not None:
            sample, end_ns = sampled
            self._builder.add_events(events_from(self._runtime.device.drain_events()))
        residency = residency_from(self._runtime.device.residency())
        self._warn()
        readings = self._readings()
        self.last_step = self._builder.end_step(
            end_ns, readings.counters, readings.memory, residency, sample, readings.swaps
        )
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s", in_words(self.last_step))

    def note_plan(self, step: int, reason: str | None) -> None:
        """A step ended that a plan was to drive; `reason`: why none did to its end."""
        if self._builder is not None:
            self._builder.note_plan(step, reason)

    def _warn(self) -> None:
        self._warn_of_oversized_ops()
        self._warn_of_ended_exports()

    def _warn_of_oversized_ops(self) -> None:
        """Once, when ops have needed more than there is: each pages against itself, and takes many times as long."""
        count = self._runtime.device.counters().oversized_ops or 0
        if not count or self._told_of_oversized_ops:
            return
        self._told_of_oversized_ops = True
        room_bytes = min(self._runtime.device.info().total_bytes, self._runtime.limit_bytes or MAX_BYTES)
        log.warning(
            "%d ops worked on more memory than the %s that there are: each of them pages what it has just brought, and "
            "takes many times as long. Give more, or make the batch smaller; the report names the ops",
            count,
            format_bytes(room_bytes),
        )

    def _warn_of_ended_exports(self) -> None:
        """Once, when tensors whose address had left torch gave way to what found no room."""
        count = self._runtime.device.memory_history().exports_ended - self._exports_ended_before
        if not count or self._told_of_ended_exports:
            return
        self._told_of_ended_exports = True
        log.warning(
            "%d tensors whose address had left torch (data_ptr(), DLPack) gave way for room: they leave the device and "
            "come back like any other again. Who still uses an address asks for it again, or holds the tensor: "
            "umadvise.held",
            count,
        )

    def _drain(self) -> None:
        if self._builder is not None:
            if self._runtime.emulated:
                signals.keep()
            self._builder.add_events(events_from(self._runtime.device.drain_events()))

    @property
    def faults_are_known(self) -> bool:
        """Whether the last step says what faults cost, or no step does: where some are sampled, the others do not."""
        known = self.last_step is not None and self.last_step.counters.fault_service_ns is not None
        return known or self._sampler is None or not self._sampler.works()

    # ---- recording ------------------------------------------------------------------------------------------------

    def start_recording(self) -> None:
        """Every op, allocation, copy and fault service from now on goes into the trace.

        Raises:
            StateError: somebody records already.
        """
        if self._records:
            raise StateError("this process is recorded already, by `umadvise run --record` or a session: one at a time")
        self._runtime.device.enable_events(True)
        self._runtime.device.record(True)
        self._records = True
        self._device_name = self._runtime.device.info().name

    def stop_recording(self) -> None:
        """Ends it; nothing where nobody records."""
        if self._records:
            self._runtime.device.record(False)
            self._recording = self._runtime.device.recorded()
        self._records = False

    def trace(self, step: int | None = None) -> Trace:
        """What was recorded, until now or until `stop_recording`: all of it, or one step that may be repeated.

        Raises:
            StateError: nothing was, or the recording is not whole.
            UsageError: there is no such step.
        """
        recording = self._runtime.device.recorded() if self._records else self._recording
        if recording is None:
            raise StateError("nothing was recorded: open the session with record=True, or use umadvise run --record")
        trace = live.trace_of(recording, **self._trace_words())
        return trace if step is None else cut.step(trace, step, *live.edges_of(recording, step))

    def _trace_words(self) -> dict[str, Any]:
        target: Target = "cpu" if self._runtime.emulated else "cuda"
        return {"target": target, "device": self._device_name, "workload": self._script or ""}

    def start_step_recording(self) -> None:
        """What happens from now on is recorded, for `recorded_step`."""
        if not self._records:
            self._runtime.device.record(True)

    def stop_step_recording(self) -> None:
        """Until now; what is recorded anyway goes on."""
        if not self._records:
            self._runtime.device.record(False)

    def recorded_step(self, number: int) -> RecordedStep:
        """A step that was recorded, when the next one is about to begin.

        Raises:
            StateError: the recording is not whole.
            UsageError: nothing ran in that step.
        """
        device = self._runtime.device
        return recorded_step(device.recorded(), number, device.allocations(), **self._trace_words())

    # ---- what happened --------------------------------------------------------------------------------------------

    def _readings(self) -> _Readings:
        if self._last is not None:
            return self._last
        device = self._runtime.device
        return _Readings(
            device.counters(),
            device.memory(),
            device.dropped_events(),
            self._sampler.reading() if self._sampler is not None else None,
            swaps_from(swapped := device.swap_counters()),
            chunks_from(swapped),
            device.placed(),
        )

    def counters(self) -> Counters:
        """The device's totals since it was opened, or until `detach`."""
        return self._readings().counters

    def memory(self) -> MemoryStats:
        """What the device and the heap hold now, or held at `detach`; peaks are of the running or last step."""
        return self._readings().memory

    def placed(self) -> tuple[Placed, ...]:
        """In what memory tensors lay, and with what advice: those that there were at `attach`, and all since."""
        now, before = self._readings().placed, self._placed_before
        return placed_from({kind: now.get(kind, 0) - before.get(kind, 0) for kind in {**now, **before}})

    def profile(self, predictions: Sequence[RungPrediction] = ()) -> FaultProfile:
        """The fault profile so far; `predictions`: of other rungs."""
        if self._builder is None:
            raise StateError("nothing was watched: expected attach() first")
        readings = self._readings()
        return self._builder.build(
            readings.counters,
            readings.dropped_events,
            self.rungs,
            readings.sampling,
            swaps=readings.swaps,
            chunks=readings.chunks,
            placed=self.placed(),
            predictions=predictions,
        )

    def _environment(self) -> RunEnvironment:
        info = self._runtime.device.info()
        return RunEnvironment(
            device_name=info.name,
            provider="emulated" if self._runtime.emulated else "cuda",
            counting="ordered" if info.counting == Counting.ORDERED else "raw",
            capacity_bytes=info.total_bytes,
            budget_bytes=self._runtime.budget_bytes,
            policy=self._policy,
            umadvise_version=__version__,
            torch_version=torch.__version__,
            script=self._script,
        )


def in_words(step: MeasuredStep) -> str:
    """What a step cost, in a line."""
    counted = step.counters
    service, groups = format_duration_ns(counted.fault_service_ns), counted.fault_groups
    parts = [f"step {step.index} took {format_duration_ns(step.duration_ns)}"]
    parts.append(f"{'-' if groups is None else groups} fault groups ({service})")
    if step.swaps is not None and (moved := step.swaps.swap_in_bytes + step.swaps.swap_out_bytes):
        waits = format_duration_ns(step.swaps.wait_copy_ns + step.swaps.wait_room_ns)
        parts.append(f"{format_bytes(moved)} swapped ({waits} of waits)")
    return ", ".join(parts)


def as_list(value: Any) -> list[Any]:
    """One thing or an iterable of them, as a list; None is none."""
    if value is None:
        return []
    return list(value) if isinstance(value, Iterable) and not isinstance(value, torch.nn.Module) else [value]
