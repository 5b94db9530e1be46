"""What test_cuda_sessions.py runs, each function in a process of its own: sessions on a CUDA device, without a GPU.

The driver is the test library behind which an emulated device works (csrc/tests/fake_libcuda), so the core has a CUDA
device like any other, and torch's CPU plays the GPU: its kernels run where the default stream is, and what CUDA's
allocator would be asked for, the CPU's is.

python cuda_programs.py LIBCUDA NAME [ARGUMENT...]
"""

import ctypes
import gc
import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

import umadvise
from umadvise import _native
from umadvise.devices import open_device as devices
from umadvise.errors import UmadviseError
from umadvise.torch_seam import cuda_allocator, runtime
from umadvise.torch_seam.runtime import address_of
from umadvise.training.script import ScriptRun

MIB = 1 << 20
CAPACITY_BYTES = 512 * MIB
CHUNK_BYTES = 20 * MIB  # the default on CUDA
WAITS = ("wait_copy_ns", "wait_room_ns")
HOST_VIRTUAL_MEMORY = 141
CONCURRENT_MANAGED_ACCESS = 89
VIRTUAL_MEMORY = 102


class StandIn:
    """The driver library; its functions say what the device behind it lacks."""

    def __init__(self, path: str) -> None:
        # Local: its copy of the core must serve nobody else. The core finds it by its name, which is libcuda.so.1.
        self.library = ctypes.CDLL(path)
        self.library.emulated_libcuda_devices(1, ctypes.c_uint64(CAPACITY_BYTES), 0)
        cuda_allocator.install = lambda _ordinal: _native.install_allocator()
        cuda_allocator.attend = lambda _state: None
        cuda_allocator.release = lambda: None
        runtime.Runtime.torch_device = "cpu"  # type: ignore[assignment, method-assign]

    def lacks(self, attribute: int) -> None:
        self.library.emulated_libcuda_attribute(attribute, 0)


width = 2345


def network() -> nn.Module:
    """Parameters of 21 MiB each: a chunk and a bit; or as wide as `width` says."""
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def train(around: Callable[[], Any], optimizer_of: Any, model: nn.Module, moved: Any, steps: int = 3) -> list[str]:
    losses = []
    for index in range(steps):
        inputs = torch.full((16, width), 0.01 * (index + 1))
        with around():
            loss = model(moved(inputs)).square().mean()
            loss.backward()
            optimizer_of.step()
            optimizer_of.zero_grad()
            losses.append(loss.item().hex())
    return losses


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    tensors = [*model.parameters()]
    for entries in optimizer.state.values():
        tensors += [value for value in entries.values() if isinstance(value, torch.Tensor)]
    return [tensor.detach().double().sum().item() for tensor in tensors]


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = network()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def vanilla() -> dict[str, Any]:
    model, optimizer = made()
    losses = train(nullcontext, optimizer, model, lambda tensor: tensor)
    return {"losses": losses, "state": digest(model, optimizer)}


def in_session(policy: str, budget: str, **options: Any) -> dict[str, Any]:
    """What a session on a CUDA device makes of the same training, and where its memory was."""
    model, optimizer = made()
    memories: set[int] = set()
    with umadvise.session(model, optimizer, device="cuda", budget=budget, policy=policy, **options) as um:
        state = runtime.current()
        assert not state.emulated
        losses = train(um.step, optimizer, model, um.to_device)
        for parameter in model.parameters():
            allocation = _native.allocation_at(address_of(parameter))
            assert allocation is not None
            memories.add(int(allocation.memory))
        swaps, rung, features = um.swap_counters(), um.rung, state.device.features()
        profile = um.profile()
        exports_ended = state.device.memory_history().exports_ended
    left = [tensor for entries in optimizer.state.values() for tensor in entries.values()]
    owned = any(_native.owns(address_of(tensor)) for tensor in (*model.parameters(), *left))
    seen = {
        "losses": losses,
        "state": digest(model, optimizer),
        "memories": sorted(memories),
        "swapped": swaps.swap_outs > 0 and swaps.swap_ins > 0,
        "within": swaps.used_peak_bytes <= swaps.budget_bytes,
        "followed": swaps.programs_followed,
        "exports_ended": exports_ended,
        "chunk_bytes": swaps.chunk_bytes,
        "rung": rung,
        "timed": [step.index for step in profile.steps if step.times is not None],
        "explained": all(0 < step.times.sum_ns <= step.duration_ns for step in profile.steps if step.times is not None),
        "apart": waits_apart(profile),
        "provider": profile.environment.provider,
        "lacks": sorted(name for name, reason in features.items() if reason is not None),
        "owned_afterwards": owned,
    }
    del model, optimizer
    gc.collect()
    return seen


def waits_apart(profile: Any) -> list[int]:
    """Nanoseconds by which each table parts from what ops stood still for in all steps, and from how long they ran."""
    swaps, tables, times = profile.swaps, profile.tables, profile.times
    if swaps is None or tables is None or times is None:
        return []
    names = ("role", "phase", "module", "tensor", "op")
    sums = {name: [sum(getattr(row, field) for row in getattr(tables, name).rows) for field in WAITS] for name in names}
    apart = [abs(sum(each) - swaps.wait_copy_ns - swaps.wait_room_ns) for each in sums.values()]
    ran = [sum(row.compute_ns for row in getattr(tables, name).rows) for name in ("phase", "module", "op")]
    return [*apart, *(abs(each - times.compute_ns) for each in ran)]


# ---- programs --------------------------------------------------------------------------------------------------------


def swapping(stand_in: StandIn, host_memory: str) -> Any:
    """Where the driver has memory on the host, or has not, or dies when it is asked for it."""
    if host_memory == "none":
        stand_in.lacks(HOST_VIRTUAL_MEMORY)
    stand_in.library.emulated_libcuda_host_memory_crashes(int(host_memory == "crashes"))
    expected = vanilla()
    return {"vanilla": expected, "session": in_session("swap", "200MiB")}


def smaller(_stand_in: StandIn) -> Any:
    """Parameters of 4 MiB each."""
    global width
    width = 1024
    return {"vanilla": vanilla(), "session": in_session("swap", "48MiB")}


def unified(_stand_in: StandIn, policy: str) -> Any:
    return {"vanilla": vanilla(), "session": in_session(policy, "200MiB")}


def refused(stand_in: StandIn, attribute: str, policy: str) -> Any:
    """What a session says that needs what is missing."""
    stand_in.lacks(int(attribute))
    model, optimizer = made()
    try:
        with umadvise.session(model, optimizer, device="cuda", budget="200MiB", policy=policy):
            message = ""
    except UmadviseError as error:
        message = str(error)
    return {"message": message, "patched": runtime.is_patched()}


def lacking(stand_in: StandIn, attribute: str, policy: str) -> Any:
    """A session that does without what is missing."""
    stand_in.lacks(int(attribute))
    return {"vanilla": vanilla(), "session": in_session(policy, "200MiB")}


def script(stand_in: StandIn, attribute: str, policy: str) -> Any:
    """What `umadvise run` does without what is missing. The script's tensors are where the driver's are."""
    stand_in.lacks(int(attribute))
    expected = vanilla()
    try:
        with ScriptRun("cuda", "200MiB", policy, "script.py", sample_every=0) as watched:
            model, optimizer = made()
            losses = train(nullcontext, optimizer, model, lambda tensor: tensor)
            memories = {allocation.memory for allocation in runtime.current().device.allocations()}
            seen = {"losses": losses, "state": digest(model, optimizer), "memories": sorted(memories)}
            return {"vanilla": expected, "script": seen, "steps": watched.profile().step_count}
    except UmadviseError as error:
        return {"message": str(error), "patched": runtime.is_patched()}


def addresses(stand_in: StandIn) -> Any:
    """An address that leaves torch is good at once, whatever else comes; what outlives the session stays good."""
    stand_in.lacks(HOST_VIRTUAL_MEMORY)
    model, optimizer = made()
    with umadvise.session(model, optimizer, device="cuda", budget="200MiB", policy="swap:lru") as um:
        with um.step():
            kept = um.to_device(torch.arange(6 * MIB, dtype=torch.float32)) + 1
        train(um.step, optimizer, model, um.to_device, steps=1)
        address = kept.data_ptr()
        train(um.step, optimizer, model, um.to_device, steps=1)
        raw = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
        inside = [raw[0], raw[6 * MIB - 1]]
        allocation = _native.allocation_at(address)
        assert allocation is not None
        memory, exports = int(allocation.memory), allocation.exports
        survivor = um.to_device(torch.full((6 * MIB,), 7.0)) + 1
    outside = [kept[0].item(), kept[-1].item(), survivor[0].item(), survivor[-1].item()]
    return {"inside": inside, "outside": outside, "memory": memory, "exports": exports}


def addresses_of_all(_stand_in: StandIn) -> Any:
    """Before each step the address of every parameter leaves torch; they cannot all stay."""
    global width
    width = 1024

    def take(module: nn.Module, _inputs: Any) -> None:
        for parameter in module.parameters():
            assert parameter.data_ptr()

    register_module_forward_pre_hook(take)
    return {"vanilla": vanilla(), "session": in_session("swap", "20MiB")}


def features(stand_in: StandIn) -> Any:
    stand_in.lacks(CONCURRENT_MANAGED_ACCESS)
    stand_in.lacks(VIRTUAL_MEMORY)
    device = devices.open_device("cuda")
    told = device.features()
    device.close()
    return told


if __name__ == "__main__":
    torch.set_num_threads(1)
    _library, _name, *_arguments = sys.argv[1:]
    json.dump(globals()[_name](StandIn(_library), *_arguments), sys.stdout)
