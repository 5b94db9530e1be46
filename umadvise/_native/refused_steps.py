"""Steps that were refused: whether one is, ending it before its end, and what it wrote."""

import ctypes

from umadvise._native.device import Device
from umadvise._native.library import core_library


def refusal_pending(device: Device) -> bool:
    """Whether an op of the running step was refused and its refusal put off to the step's end."""
    return bool(core_library().um_refusal_pending(device.handle))


def end_refusals(device: Device, update_bytes: int = 0, update_tensors: int = 0) -> None:
    """Raises now what was put off in the running step.

    Args:
        device: open device that the step runs on.
        update_bytes: size in bytes of each tensor that an update would use which will not run.
        update_tensors: number of such tensors that it would use at once.

    Raises:
        NativeError: an op of the step was refused.
    """
    core_library().um_refusals_end(device.handle, update_bytes, update_tensors)


def undo_step(device: Device) -> int:
    """Writes back what was kept of the step that runs or has just ended: see um_step_undo.

    Args:
        device: open device that the step runs on.

    Returns:
        Serial of the latest allocation before the step was refused; 0 where no refusal was put off.
    """
    refused_at = ctypes.c_uint64()
    core_library().um_step_undo(device.handle, ctypes.byref(refused_at))
    return refused_at.value


def watch_in_steps(address: int) -> None:
    """Has the contents of an allocation kept in each step before they are written first: see um_step_watch."""
    core_library().um_step_watch(address)
