"""A program of its own, `python -m umadvise.doctor.trial emulated|cuda`: can a tensor live in unified memory here?

It prints one JSON object. A driver or a kernel that does not keep its promises may end it, and the doctor goes on.
"""

import json
import sys
from typing import Any

from umadvise.errors import UmadviseError

_ELEMENTS = 1 << 20


def try_device(kind: str) -> dict[str, Any]:
    """Makes a tensor there, computes with it in a step, and looks at what the device says of itself.

    Raises:
        UmadviseError: with the reason.
    """
    import torch

    import umadvise
    from umadvise.torch_seam import runtime

    umadvise.patch(umadvise.EmulatedDevice(capacity="64MiB") if kind == "emulated" else "cuda")
    device = runtime.current().device
    seen: dict[str, Any] = {"functions": device.driver_functions(), "features": device.features()}
    if kind == "cuda":
        device.set_sampling(1)
    device.set_step(1)
    tensor = torch.full((_ELEMENTS,), 1.5, device="cpu" if kind == "emulated" else "cuda")
    total = (tensor + tensor).sum().item()
    device.set_step(0)
    if total != 3.0 * _ELEMENTS or not umadvise.on_device(tensor):
        raise UmadviseError(f"a sum of {_ELEMENTS} elements in unified memory gave {total}, expected {3.0 * _ELEMENTS}")
    if kind == "cuda":
        seen |= _auto_budget() | {"unsampled": device.sampling().reason or None}
    return seen


def _auto_budget() -> dict[str, Any]:
    from umadvise.devices.budget import budget_on
    from umadvise.torch_seam import runtime

    try:
        return {"auto_budget_bytes": budget_on(runtime.current().device, "auto"), "no_auto_budget": None}
    except UmadviseError as error:
        return {"auto_budget_bytes": None, "no_auto_budget": str(error)}


if __name__ == "__main__":
    try:
        found = {"error": None, **try_device(sys.argv[1])}
    except UmadviseError as error:
        found = {"error": str(error)}
    json.dump(found, sys.stdout)
