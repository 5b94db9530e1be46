"""A workload trained by umadvise: on a rung of the ladder under a budget, or in unified memory that nobody advises."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from workloads import UNADVISED

import umadvise
from umadvise import _native
from umadvise._native.abi import ChunkOptions, Memory
from umadvise.devices.rungs import LADDER, Policy
from umadvise.devices.rungs import UNADVISED as UNADVISED_POLICY
from umadvise.errors import BudgetError
from umadvise.records.counters import Counters, Swaps, subtract
from umadvise.records.plan import ActionKind
from umadvise.torch_seam.runtime import current
from umadvise.training.plans.plan_memory import chunk_bytes_of
from umadvise.training.session import Session

CAPACITY = "1GiB"
"""Of the emulated device."""
_ADVICE = {UNADVISED: "noadvise", "advise": "preferredlocation", "window": "preferredlocation"}
"""Of the model, by rung."""
_WAYS = {"in": ActionKind.SWAP_IN, "out": ActionKind.SWAP_OUT}
_SWAPPED = tuple(Swaps.__struct_fields__)


Calls = dict[str, dict[str, int]]
"""Of the driver, by function: how many, and what they took of the threads that called."""


@dataclass
class Training:
    """One workload in a session.

    Attributes:
        session: the session that trains it.
        step: one step of it.
        on_gpu: whether the device is CUDA's; else it is an emulated one.
    """

    session: Session
    step: Callable[[], Any]
    on_gpu: bool

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Around the one step whose faults, copies and evictions are counted; of a GPU only CUPTI knows them."""
        device = current().device
        before, swapped = self.session.counters(), self.session.swap_counters()
        sampled = device.sampling().steps if self.on_gpu else 0
        yield
        after = self.session.swap_counters()
        self._swaps = {name: getattr(after, name) - getattr(swapped, name) for name in _SWAPPED}
        self._followed = after.programs_followed
        self._counters, self._uncounted = subtract(self.session.counters(), before), ""
        if self.on_gpu and (reading := device.sampling()).steps == sampled:
            self._counters, self._uncounted = Counters(), reading.reason or "the step was not sampled"

    def driver_calls(self) -> Calls:
        """By function, what the core has called of the driver; nanoseconds only of a real one."""
        if self.on_gpu:
            return {made.function: {"calls": made.calls, "ns": made.ns} for made in _native.cuda_calls()}
        device = current().device
        return {name: {"calls": calls} for name in device.driver_functions() if (calls := device.calls(name))}

    def observed(self) -> dict[str, Any]:
        """What was seen in the counted step, and since; what nobody could see is None."""
        swaps, stats = self.session.swap_counters(), self.session.memory_stats()
        return {
            "counters": msgspec.to_builtins(self._counters),
            "uncounted": self._uncounted or None,
            "swaps": self._swaps,
            "followed_steps": swaps.programs_followed - self._followed,
            "needed_bytes": stats.requested_peak_bytes,
            "reserved_peak_bytes": stats.reserved_peak_bytes,
            "model_resident_peak_bytes": stats.resident_peak_bytes,
            "chunks_used_peak_bytes": swaps.used_peak_bytes,
            "peak_bytes": max(stats.resident_peak_bytes or 0, swaps.used_peak_bytes),
            "host_peak_bytes": max(stats.host_peak_bytes or 0, swaps.host_peak_bytes),
            "pinned_bytes": swaps.pinned_peak_bytes,
            "chunk_bytes": swaps.chunk_bytes or None,
            "rung_at_end": self.session.rung,
            **self._promised(),
        }

    def _promised(self) -> dict[str, Any]:
        """What the plan in force promises and moves, and how long the ops of its recorded step are together."""
        plan, step = self.session.plan, self.session.planned_step
        promised: dict[str, Any] = {"predicted_step_ns": None, "planned_bytes": None, "recorded_ops_ns": None}
        if step is not None:
            promised |= {"recorded_ops_ns": step.duration_ns, "recorded_ops": len(step.ops.duration_ns)}
        if plan is not None:
            moved = {way: plan.actions.kind == kind for way, kind in _WAYS.items()}
            promised["planned_bytes"] = {way: int(plan.actions.bytes[rows].sum()) for way, rows in moved.items()}
            try:
                predicted = self.session.predicted_step()
            except BudgetError as error:
                return {**promised, "not_predicted": str(error)}
            promised["predicted_step_ns"] = None if predicted is None else predicted.duration_ns
        return promised


@contextmanager
def training(
    build: Callable[[], Any],
    rung: str,
    budget_bytes: int | None,
    most_managed_bytes: int,
    *,
    counted_step: int,
    on_gpu: bool,
) -> Iterator[Training]:
    """Builds the workload and opens a session; all of it ends with this.

    Args:
        build: the workload, on the device.
        rung: a rung of the ladder, or UNADVISED.
        budget_bytes: the limit of device memory; None: no limit.
        most_managed_bytes: the limit of managed memory on a GPU.
        counted_step: 1, 2, ...: of a GPU faults are counted in it, in the first three, and in none soon after it.
        on_gpu: whether the device is CUDA's; else it is an emulated one.
    """
    umadvise.patch("cuda" if on_gpu else umadvise.EmulatedDevice(capacity=CAPACITY), most_managed=most_managed_bytes)
    try:
        _place(LADDER.get(rung, UNADVISED_POLICY), budget_bytes)
        yield from _in_session(build(), rung, budget_bytes, counted_step, on_gpu=on_gpu)
    finally:
        umadvise.unpatch()


def _place(policy: Policy, budget_bytes: int | None) -> None:
    """What is built from now on lies where the rung wants it: a session on CUDA moves no tensor of the model."""
    state = current()
    if policy.memory == Memory.CHUNKED:
        room_bytes = budget_bytes or state.device.info().free_bytes
        state.device.set_chunks(ChunkOptions(room_bytes, chunk_bytes=chunk_bytes_of(room_bytes)))
    state.set_policy(policy)


def _in_session(
    workload: Any, rung: str, budget_bytes: int | None, counted_step: int, *, on_gpu: bool
) -> Iterator[Training]:
    advice, policy = _ADVICE.get(rung), "advise" if rung == UNADVISED else rung
    if advice is not None:  # as the paper's user says it
        for model in workload.modules:
            model.to(f"cuda:{advice}")
    with umadvise.session(
        workload.modules, workload.optimizers, budget=budget_bytes, policy=policy, sample_every=counted_step
    ) as session:
        if rung == UNADVISED:
            torch.cuda.set_unified("noadvise")  # type: ignore[attr-defined]  # patch() added it
        yield Training(session, lambda: _step(session, workload), on_gpu)


def _step(session: Session, workload: Any) -> Any:
    with session.step():
        return workload.step()
