"""What a device argument of a CUDA script means on the emulated device, and who asks."""

import sys
from typing import Any

import torch

from umadvise._native.abi import Route
from umadvise.devices.ranks import ranks
from umadvise.errors import UntranslatedError
from umadvise.records.advice import Target, parse_target
from umadvise.records.enums import Role
from umadvise.torch_seam.runtime import current, placed

ON_DEVICE = torch.device("cpu")
"""What `tensor.device` answers for a tensor on the emulated device: this very object.

It prints and compares as torch's "cpu", which is what it is to every kernel; but handed back (`x.to(model.device)`) it
is known by its identity, and means the device. Every other torch.device("cpu"), and the word, mean ordinary memory.
"""


def target_of(device: Any) -> Target | None:
    """The emulated device that a device argument means, with its advice if any; None for any other device.

    Raises:
        UntranslatedError: another GPU, or a process that was forked from the one that has the device.
        InvalidAdviceError: the advice is unknown.
    """
    if device is None:
        return None
    if device is ON_DEVICE:
        target: Target | None = Target(None, None)
    elif isinstance(device, int) and not isinstance(device, bool):
        target = Target(device, None)
    elif isinstance(device, str | torch.device):
        target = parse_target(str(device))
    else:
        return None
    if target is not None:
        check_index(target.index)
        check_process()
    return target


def check_index(index: Any) -> None:
    """Refuses any GPU but this process's: the first, or that of its local rank.

    Raises:
        UntranslatedError: it is another.
    """
    if index not in (None, 0, own_index()):
        own = f"cuda:{own_index()}"
        raise UntranslatedError(f"cuda:{index}", f"it is one GPU a process, {own}", f"use {own}")


def own_index() -> int:
    """Index of the GPU that this process has."""
    return ranks().local_rank


def check_process() -> None:
    """Refuses the device to a child of the process that has it.

    Raises:
        UntranslatedError: this is one.
    """
    if current().forked:
        raise UntranslatedError(
            "CUDA in a forked process",
            "it stays with the process that opened it, as a GPU does",
            "move tensors to the GPU in the training process",
        )


def route_to(target: Target) -> Route:
    """The route for allocations onto the device, with the target's advice."""
    return placed(current().policy.placement(Role.INTERMEDIATE, target.advice))


def asked_by_torch(depth: int = 3) -> bool:
    """Whether torch's own code calls the replacement (`Replacements.around`) whose function calls this.

    torch sees the truth, a machine without a GPU, and so takes the paths that it takes on the CPU: results are the
    CPU's to the last bit. All other code sees a GPU.

    Args:
        depth: frames from here to the caller; 2 where the function itself is the replacement.
    """
    return str(sys._getframe(depth).f_globals.get("__name__")).split(".", 1)[0] in ("torch", "umadvise")
