"""Dry traces of the papers' networks, each recorded once."""

import functools

import torch
from networks import NETWORKS

from umadvise.recording.dry import recorder as dry
from umadvise.recording.workload import Workload
from umadvise.records.trace import Trace


@functools.cache
def trace(network: str, batch: int, device: str) -> Trace:
    """One training step of a network of `examples/networks` on a device of the catalogue."""
    return dry.record(functools.partial(NETWORKS[network], batch), target="cuda", device=device)


@functools.cache
def bert_trace(batch: int, device: str) -> Trace:
    """BERT-Large in the PyTorch 1.6 of Choi and Lee 2021."""
    return dry.record(lambda: as_in_torch_1_6(NETWORKS["bert_large"](batch)), target="cuda", device=device)


def as_in_torch_1_6(workload: Workload) -> Workload:
    """The workload with its optimizers as they were then.

    They took one parameter at a time: there were no multi-tensor kernels. And `zero_grad` filled gradients with zeros
    and kept them: it could not drop them before 1.7.
    """
    for optimizer in one_at_a_time(workload).optimizers:
        _keep_gradients(optimizer)
    return workload


def one_at_a_time(workload: Workload) -> Workload:
    """The workload with optimizers that take one parameter at a time."""
    for optimizer in workload.optimizers:
        for group in optimizer.param_groups:
            group.update(foreach=False, fused=False)
    return workload


def _keep_gradients(optimizer: torch.optim.Optimizer) -> None:
    zero_grad = optimizer.zero_grad
    # Whatever its caller wishes, who knows a newer torch.
    optimizer.zero_grad = lambda **_: zero_grad(set_to_none=False)  # type: ignore[method-assign]


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
