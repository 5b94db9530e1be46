"""What test_both_devices.py runs: each function takes a device and returns what it saw, which is printed as JSON.

python programs.py NAME DEVICE [ARGUMENT...]
"""

import hashlib
import json
import sys
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import umadvise
from umadvise import _native
from umadvise._native.abi import Memory
from umadvise.records.enums import Advice, Role
from umadvise.torch_seam import runtime
from umadvise.torch_seam.runtime import address_of

MIB = 1 << 20
CAPACITY_BYTES = 256 * MIB  # of the emulated device


def patch(device: str, budget: str | None = None) -> None:
    umadvise.patch(umadvise.EmulatedDevice(capacity=CAPACITY_BYTES) if device == "emulated" else device, budget=budget)


def factory(device: str) -> dict[str, Any]:
    """Where factories make tensors of the device: on the emulated one, everything that this thread makes."""
    return {"device": "cuda"} if device == "cuda" else {}


# ---- training ------------------------------------------------------------------------------------------------------


def network(name: str) -> tuple[nn.Module, torch.Tensor]:
    """A model and its input; the labels are 0 to 9 in turn."""
    if name == "cnn":
        parts: list[nn.Module] = []
        for inside, outside in ((3, 16), (16, 32), (32, 32)):
            parts += [nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(inplace=True)]
        return nn.Sequential(*parts, nn.Flatten(), nn.Linear(32 * 24 * 24, 10)), torch.randn(20, 3, 24, 24)
    layer = nn.TransformerEncoderLayer(128, 4, dim_feedforward=512, dropout=0.1, batch_first=True)
    encoder = nn.TransformerEncoder(layer, num_layers=3, enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(1000, 128), encoder, nn.Flatten(), nn.Linear(128 * 32, 10))
    return model, torch.randint(1000, (20, 32))


def deterministic() -> None:
    """Same kernels, same sums in the same order: then a difference is in the memory."""
    torch.set_num_threads(1)  # with more, sums on the CPU are now and then added up otherwise on a busy machine
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_flash_sdp(False)


def train(device: str, name: str) -> Any:
    """What training comes to in vanilla torch, in a process that knows no other."""
    deterministic()
    return trained(name, "cuda" if device == "cuda" else "cpu")


def train_unified(device: str, name: str) -> Any:
    """The same in unified memory: under two advices, and under a budget, which is what makes pages move."""
    deterministic()
    results = {}
    for memory, advice, budget in (
        ("plain", "noadvise", None),
        ("read", "readmostly", None),
        ("budget", "noadvise", "8MiB"),
    ):
        patch(device, budget)
        torch.cuda.set_unified(advice)  # type: ignore[attr-defined]  # patch() adds it
        seen = trained(name, f"cuda:{advice}")
        results[memory] = {**seen, "paged": umadvise.memory_stats().host_peak_bytes > 0}
        umadvise.unpatch()
    return results


def trained(name: str, where: str) -> dict[str, Any]:
    """Losses of three steps, to the last bit, and a digest of what they leave behind."""
    torch.manual_seed(0)
    model, inputs = network(name)
    model, inputs, labels = model.to(where), inputs.to(where), (torch.arange(20) % 10).to(where)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(3):
        loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
    state = hashlib.sha256()
    for tensor in model.state_dict().values():
        state.update(tensor.cpu().numpy().tobytes())
    return {"losses": losses, "state": state.hexdigest()}


# ---- placement -----------------------------------------------------------------------------------------------------


def placed(tensor: torch.Tensor) -> list[str] | None:
    """Role and advice of a tensor's memory; None where it is not ours."""
    allocation = _native.allocation_at(address_of(tensor))
    return [Role(allocation.role).name, Advice(allocation.advice).name] if allocation else None


def placement(device: str) -> Any:
    """Role and advice of tensors made in every way, and whether their values arrived."""
    host = torch.arange(1000.0)
    patch(device)
    torch.cuda.set_unified("prefetch")  # type: ignore[attr-defined]  # patch() adds it
    read_mostly = host.to("cuda:readmostly")
    moved = read_mostly.to("cuda:preferredlocation")
    parameter = nn.Linear(10, 10).to("cuda:accessby").weight
    leaf = torch.ones(1000, **factory(device)).requires_grad_()
    gradients = []
    leaf.register_hook(lambda gradient: gradients.append(placed(gradient)))  # in autograd's thread on CUDA
    (leaf * 2).sum().backward()
    return {
        "read_mostly": placed(read_mostly),
        "moved": placed(moved),
        "parameter": placed(parameter),
        "plain": placed(host.to("cuda")),
        "made": placed(leaf),
        "gradient": gradients[0],
        "same": read_mostly.to("cuda:readmostly") is read_mostly,
        "values": bool((moved.cpu() == host).all()),
        "empty": torch.empty(0, **factory(device)).numel(),
    }


def managed(tensor: torch.Tensor) -> bool:
    allocation = _native.allocation_at(address_of(tensor))
    return allocation is not None and allocation.memory == Memory.MANAGED


def unpatch(device: str) -> Any:
    """What a tensor's memory is before, between and after two patches, and whether old tensors keep their values."""
    patch(device)
    first = torch.full((1000,), 1.0, **factory(device))
    umadvise.unpatch()
    between = torch.full((1000,), 2.0, **factory(device))
    sum_between = (between + between).sum().item()
    managed_between = managed(between)
    patch(device)
    last = torch.full((1000,), 3.0, **factory(device))
    return {
        "managed": [managed(first), managed_between, managed(last)],
        "values": [first.sum().item(), sum_between, last.sum().item()],
        "set_unified": hasattr(torch.cuda, "set_unified"),
    }


# ---- limits --------------------------------------------------------------------------------------------------------


def budget(device: str) -> Any:
    """Twelve tensors of 16 MiB under a budget of 64 MiB, swept three times."""
    patch(device, budget="64MiB")
    tensors = [torch.full((4 * MIB,), float(index), **factory(device)) for index in range(12)]
    for _ in range(3):
        for tensor in tensors:
            tensor += 1
    stats = umadvise.memory_stats()
    values = [[tensor.min().item(), tensor.max().item()] for tensor in tensors]
    return {"resident_peak": stats.resident_peak_bytes, "host": stats.host_bytes, "values": values}


def out_of_memory(device: str) -> Any:
    """More managed memory than any machine has, and then something that fits."""
    patch(device)
    try:
        torch.empty(1 << 46, dtype=torch.uint8, **factory(device))
    except torch.OutOfMemoryError as error:
        message = str(error)
    return {"message": message, "after": torch.ones(1000, **factory(device)).sum().item()}


def session(device: str, sample_every: str) -> Any:
    """Two steps of a session on a patched device, and what is told of their faults."""
    torch.manual_seed(0)
    patch(device)
    model, inputs = network("cnn")
    model = model.to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with umadvise.session(model, optimizer, budget="16MiB", policy="advise", sample_every=int(sample_every)) as um:
        for _ in range(2):
            with um.step():
                model(um.to_device(inputs)).square().mean().backward()
                optimizer.step()
        profile, counters = um.profile(), um.counters()
        reason = runtime.current().device.sampling().reason
    return {
        "steps": len(profile.steps),
        "provider": profile.environment.provider,
        "ops": counters.op_count,
        "fault_groups": counters.fault_groups,
        "reason": reason,
    }


if __name__ == "__main__":
    json.dump(globals()[sys.argv[1]](*sys.argv[2:]), sys.stdout)
