"""The memory that bert_large.py trains in: where `.to` puts tensors, how much there is, and what happened in it."""

import argparse
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch


class Memory:
    """Unified memory with advice, or memory that must hold everything: the process's, a GPU's, the emulated device's.

    Attributes:
        model_target: what `.to` takes for the model.
        batch_target: what `.to` takes for a batch.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        """Prepares the memory that the options of bert_large.py name."""
        self.model_target = self.batch_target = "cuda" if options.device == "cuda" else "cpu"
        self._options = options
        self._baseline_bytes = _process_bytes("VmRSS")
        if options.unified:
            import umadvise

            umadvise.patch(device=self._device(), budget=options.budget)
            torch.cuda.set_unified(options.intermediate_advice)  # type: ignore[attr-defined]  # patch() adds it
            self.model_target = f"cuda:{options.parameter_advice}"
            self.batch_target = f"cuda:{options.input_advice}"
        elif options.device == "cuda" and options.capacity is not None:
            from umadvise.units import parse_bytes

            total_bytes = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(parse_bytes(options.capacity) / total_bytes)

    def _device(self) -> object:
        import umadvise

        if self._options.device == "cuda":
            return "cuda"
        return umadvise.EmulatedDevice(capacity=self._options.capacity)

    def hold(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> AbstractContextManager[object]:
        """Around the training: without unified memory the emulated device holds everything or runs out of memory."""
        if self._options.device != "emulated" or self._options.unified:
            return nullcontext()
        import umadvise

        return umadvise.session(model, optimizer, device=self._device(), policy="resident")

    def synchronize(self) -> None:
        """Waits for the device, so that the clock is read when the work is done."""
        if self._options.device == "cuda":
            torch.cuda.synchronize()

    def observed(self) -> dict[str, object]:
        """`peak_bytes`, what the device held at most (without one: what the process grew by), and the counters."""
        if self._options.device == "cpu":
            return {"peak_bytes": _process_bytes("VmHWM") - self._baseline_bytes, "counters": None, "report": None}
        if self._options.device == "cuda" and not self._options.unified:
            return {"peak_bytes": torch.cuda.max_memory_allocated(), "counters": None, "report": None}
        import umadvise

        return {"peak_bytes": umadvise.memory_stats().resident_peak_bytes, "counters": msgspec.to_builtins(umadvise.read_counters())}


def _process_bytes(field: str) -> int:
    """Resident bytes now (VmRSS) or at most (VmHWM). getrusage will not do: its peak survives exec."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}: expected Linux")
