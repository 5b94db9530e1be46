"""The memory that bert_large.py trains in: where `.to` puts tensors, how much there is, and what happened in it."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from bert_row import Swaps

from umadvise.records.counters import Counters
from umadvise.records.fault_profile import RungChange

if TYPE_CHECKING:
    import umadvise

StepContext = Callable[[], AbstractContextManager[None]]


class Memory:
    """The memory that a run trains in: unified with advice, a session's with a policy, or memory that holds it all.

    That is the process's, a GPU's, or the emulated device's.

    Attributes:
        batch_target: argument for `.to` that puts a batch where it is trained.
        peak_bytes: the most bytes that the device held, or without a device the bytes that the process grew by; None
            before `training` has ended.
        counters: what unified memory counted in `training`; None without unified memory.
        swaps: what swapping did in `training`; None without a session.
        rungs: the rungs of the ladder that `training` was on; empty without a session.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        """Takes the options of bert_large.py; call it before the model is made."""
        self._options = options
        self._baseline_bytes = _process_bytes("VmRSS")
        self.batch_target = f"cuda:{options.input_advice}" if options.unified else options.device
        self.peak_bytes: int | None = None
        self.counters: Counters | None = None
        self.swaps: Swaps | None = None
        self.rungs: tuple[RungChange, ...] = ()

    def place(self, model: torch.nn.Module) -> torch.nn.Module:
        """Moves the model to where it is trained."""
        if self._options.unified:
            import umadvise

            umadvise.patch(device=self._device(), budget=self._options.budget)
            return model.to(f"cuda:{self._options.parameter_advice}")
        if self._options.device == "emulated":
            self.batch_target = "cpu"  # a session takes the model in, and what torch makes inside it is on the device
            return model
        if self._options.policy is not None:
            import umadvise

            umadvise.patch(device="cuda", budget=self._options.budget)
            return model.to("cuda")
        if self._options.capacity is not None:
            from umadvise.records.units import parse_bytes

            total_bytes = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(parse_bytes(self._options.capacity) / total_bytes)
        return model.to(self._options.device)

    def _device(self) -> "str | umadvise.EmulatedDevice":
        import umadvise

        if self._options.device != "emulated":
            return "cuda"
        return umadvise.EmulatedDevice(capacity=self._options.capacity or "2GiB", clock=self._options.clock)

    @contextmanager
    def training(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[StepContext]:
        """A context around the training loop; it yields what makes a context around each step."""
        if self._options.unified or self._options.policy is not None or self._options.device == "emulated":
            with self._session(model, optimizer) as session:
                try:
                    yield session.step
                finally:
                    self._observe(session)
            return
        yield nullcontext
        on_gpu = self._options.device == "cuda"
        self.peak_bytes = (
            torch.cuda.max_memory_allocated() if on_gpu else _process_bytes("VmHWM") - self._baseline_bytes
        )

    @contextmanager
    def _session(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> "Iterator[umadvise.training.session.Session]":
        import umadvise

        if not self._options.unified:
            policy, patched = self._options.policy or "resident", self._options.device == "cuda"
            device = None if patched else self._device()
            with umadvise.session(
                model, optimizer, device=device, budget=self._options.budget, policy=policy
            ) as session:
                yield session
            return
        with umadvise.session(model, optimizer, policy="advise") as session:
            torch.cuda.set_unified(self._options.intermediate_advice)  # type: ignore[attr-defined]  # patch() added it
            yield session

    def _observe(self, session: "umadvise.training.session.Session") -> None:
        from umadvise.records.fault_profile import write

        swapped = session.swap_counters()
        self.peak_bytes = session.memory_stats().resident_peak_bytes
        self.counters = session.counters()
        self.swaps = Swaps(
            bytes_h2d=swapped.swap_in_bytes, bytes_d2h=swapped.swap_out_bytes, evictions=swapped.evictions
        )
        self.rungs = session.profile().rungs
        if self._options.report is not None:
            write(session.profile(predict=True), self._options.report)

    def synchronize(self) -> None:
        """Waits for the device, so that the clock is read when the work is done."""
        if self._options.device == "cuda":
            torch.cuda.synchronize()


def _process_bytes(field: str) -> int:
    """Resident bytes now (VmRSS) or at most (VmHWM). getrusage will not do: its peak survives exec."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}: expected Linux")
