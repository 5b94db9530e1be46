"""Counters of a CUDA device: which steps are sampled, and that torch.profiler and we stay out of each other's way."""

import msgspec
import torch

from umadvise import _native
from umadvise.errors import UsageError
from umadvise.records.counters import Sampling
from umadvise.records.sampled_step import SampledStep

SAMPLE_EVERY = 10
"""Every so many steps are sampled, and the first three, and those that are recorded."""


def check_every(every: int) -> int:
    """Returns how often steps are to be sampled; 0 is never.

    Raises:
        UsageError: it is no whole number, or below 0.
    """
    if isinstance(every, int) and not isinstance(every, bool) and 0 <= every < 2**32:
        return every
    raise UsageError(f"sample_every={every!r}: expected a whole number, n for every n-th step, or 0 for none")


class Sampler:
    """The sampled steps of an open CUDA device."""

    def __init__(self, device: _native.Device, every: int) -> None:
        """Steps that begin from now on may be sampled."""
        self._device = device
        self._every = every
        device.set_sampling(every)
        self._before = device.sampling()
        self._sampled = 0
        self._profiled = False

    def before_step(self) -> None:
        """A step is about to begin. CUPTI's buffers go to one client: a profiler that is active has them."""
        self._profiled = torch._C._autograd._profiler_enabled()
        self._device.set_sampling(0 if self._profiled else self._every)
        self._sampled = self._device.sampling().steps

    def after_step(self) -> SampledStep | None:
        """What a step that has just ended counted; None: it was not sampled."""
        steps = self._device.sampling().steps
        self._profiled = self._profiled or torch._C._autograd._profiler_enabled()  # it may have taken the buffers over
        return None if steps == self._sampled or self._profiled else self._device.last_sample()

    def reading(self) -> Sampling:
        """How sampling went so far: which steps were sampled, and why others were not."""
        reading = self._device.sampling().minus(self._before)
        if self._profiled and self._every:
            reason = "torch.profiler was active in the last step: counters are read while it is not"
            reading = msgspec.structs.replace(reading, reason=reason)
        return msgspec.structs.replace(reading, every=self._every)

    def works(self) -> bool:
        """Whether any step was sampled."""
        return self._device.sampling().steps > self._before.steps

    def close(self) -> None:
        """Ends sampling: no later step is sampled."""
        self._device.set_sampling(0)
