"""Dry traces of the papers' networks, each recorded once."""

import dataclasses
import functools

from networks import NETWORKS

from umadvise.trace import dry
from umadvise.trace.schema import Trace
from umadvise.trace.workload import Workload


@functools.cache
def trace(network: str, batch: int, device: str) -> Trace:
    """One training step of a network of `examples/networks` on a device of the catalogue."""
    return dry.record(functools.partial(NETWORKS[network], batch), target="cuda", device=device)


@functools.cache
def bert_trace(batch: int, device: str) -> Trace:
    """BERT-Large in the PyTorch 1.6 of Choi and Lee 2021: AdamW takes one parameter at a time."""
    return dry.record(lambda: one_parameter_at_a_time(NETWORKS["bert_large"](batch)), target="cuda", device=device)


def one_parameter_at_a_time(workload: Workload) -> Workload:
    """The workload with optimizers as before PyTorch 1.9, which had no multi-tensor kernels."""
    for optimizer in workload.optimizers:
        for group in optimizer.param_groups:
            group["foreach"] = False
            group["fused"] = False
    return dataclasses.replace(workload)


def largest_batch(network: str, capacity_bytes: int, device: str) -> int:
    """The largest batch whose step peaks within so many bytes of live tensors, no rounding of any allocator.

    The peak is nearly a straight line; two batches give a guess, from which the step to the limit is searched.
    """

    def peak(batch: int) -> int:
        return trace(network, batch, device).peak_bytes

    small, large = 2, 4
    slope = (peak(large) - peak(small)) / (large - small)
    batch = max(small, int(small + (capacity_bytes - peak(small)) / slope))
    while peak(batch) > capacity_bytes:
        batch -= 1
    while peak(batch + 1) <= capacity_bytes:
        batch += 1
    return batch
