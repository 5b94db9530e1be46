"""What an access outside of torch ops meets where a tensor is swapped out."""

import subprocess
from collections.abc import Callable

Run = Callable[..., "subprocess.CompletedProcess[str]"]

# Weights of 4 MiB a layer, of which four fit; after the last op most of them are on the host.
SCRIPT = """
import ctypes
import torch, umadvise
from umadvise.torch_seam import runtime

torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8))).requires_grad_(False)
expected = [layer.weight[3, 5].item() for layer in model]
inputs = torch.randn(4, 1024)
device = umadvise.EmulatedDevice("64MiB")
with umadvise.session(model, device=device, budget="16MiB", policy="swap") as um:
    for _ in range(2):
        with um.step(), torch.no_grad():
            model(inputs)
    device = runtime.current().device
    assert device.swap_counters().host_bytes >= 16 << 20
    found = sorted((each.serial, each.address) for each in device.allocations() if each.bytes == 4 << 20)
    weights = [address for _, address in found]
    print("looking", flush=True)
    found = [ctypes.c_float.from_address(address + 4 * (3 * 1024 + 5)).value for address in weights]
    assert found == expected, (found, expected)
"""


def test_it_is_found_there(python: Run) -> None:
    finished = python(SCRIPT)
    assert finished.returncode == 0, finished.stderr
