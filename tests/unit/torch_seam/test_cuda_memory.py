"""torch's questions about CUDA memory, asked through torch, answered from emulated devices in place of GPUs."""

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import msgspec
import pytest
import torch

from umadvise import _native
from umadvise._native.abi import EmulatedOptions, Memory, Placement
from umadvise.errors import NativeError
from umadvise.torch_seam import cuda_memory
from umadvise.torch_seam.cuda_memory import CudaMemory
from umadvise.torch_seam.memory_peaks import Peaks
from umadvise.torch_seam.replacements import Replacements
from umadvise.torch_seam.runtime import Runtime

MIB = 1 << 20
OpenDevice = Callable[..., _native.Device]


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[CudaMemory]:
    """Answers torch, which thinks that CUDA is set up; no memory is plain."""
    monkeypatch.setattr(torch.cuda.memory, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch._C, "_accelerator_isAllocatorInitialized", lambda: False)  # of torch's own allocator
    monkeypatch.setattr(_native, "plain_cuda_device", lambda _ordinal: None)
    replaced, answers = Replacements(), CudaMemory()
    answers.install(replaced)
    yield answers
    replaced.undo()


def documented_keys() -> set[str]:
    """What torch promises in the docstring of memory_stats(), its braces written out; "allocated." is a slip there."""
    keys: set[str] = set()
    for pattern in re.findall(r'``"([a-z_.{},]+)"``', torch.cuda.memory_stats.__doc__ or ""):
        parts = [group.split(",") if index % 2 else [group] for index, group in enumerate(re.split(r"[{}]", pattern))]
        keys |= {"".join(words) for words in itertools.product(*parts)}
    return {key for key in keys if "." in key or key.startswith("num_")} - {
        key for key in keys if key.startswith("allocated.")
    }


def test_every_documented_key_is_there(memory: CudaMemory, device: _native.Device) -> None:
    memory.add(0, Peaks(device))
    stats = torch.cuda.memory_stats(0)
    assert len(documented_keys()) > 90
    assert documented_keys() <= set(stats)
    assert all(isinstance(value, int) for value in stats.values())


def test_what_came_and_went_is_counted(memory: CudaMemory, device: _native.Device) -> None:
    memory.add(0, Peaks(device))
    kept, gone = device.allocate(3 * MIB, Placement()), device.allocate(MIB, Placement())
    _native.free(gone)
    stats = torch.cuda.memory_stats(0)
    sizes = {"current": 3 * MIB, "peak": 4 * MIB, "allocated": 4 * MIB, "freed": MIB}
    for name in ("allocated_bytes", "active_bytes", "requested_bytes"):
        assert {key: stats[f"{name}.all.{key}"] for key in sizes} == sizes
    counts = {"current": 1, "peak": 2, "allocated": 2, "freed": 1}
    for name in ("allocation", "active"):
        assert {key: stats[f"{name}.all.{key}"] for key in counts} == counts
    assert torch.cuda.memory_allocated(0) == 3 * MIB
    assert torch.cuda.max_memory_allocated(0) == 4 * MIB
    assert torch.cuda.memory_reserved(0) == device.memory().reserved_bytes == torch.cuda.max_memory_reserved(0) > 0
    with pytest.raises(NativeError):
        device.allocate(1024 * MIB, Placement(memory=Memory.DEVICE))
    assert torch.cuda.memory_stats(0)["num_ooms"] == 1
    _native.free(kept)


def test_peaks_and_sums_start_again_apart(memory: CudaMemory, device: _native.Device) -> None:
    memory.add(0, Peaks(device))
    kept = device.allocate(MIB, Placement())
    _native.free(device.allocate(2 * MIB, Placement()))
    torch.cuda.reset_peak_memory_stats(0)
    stats = torch.cuda.memory_stats(0)
    assert (stats["allocated_bytes.all.peak"], stats["allocation.all.peak"]) == (MIB, 1)
    assert stats["allocated_bytes.all.allocated"] == 3 * MIB
    torch.cuda.reset_accumulated_memory_stats(0)
    _native.free(kept)
    stats = torch.cuda.memory_stats(0)
    assert (stats["allocated_bytes.all.allocated"], stats["allocated_bytes.all.freed"]) == (0, MIB)
    assert (stats["allocation.all.allocated"], stats["allocation.all.freed"]) == (0, 1)


def test_the_profiles_peaks_and_the_scripts_are_apart(memory: CudaMemory, device: _native.Device) -> None:
    replaced = Replacements()
    peaks = Peaks(device)
    peaks.install(replaced)
    memory.add(0, peaks)
    _native.free(device.allocate(2 * MIB, Placement()))
    device.reset_memory_peaks()  # the profile's, at the end of a step
    assert device.memory().requested_peak_bytes == 0
    assert torch.cuda.max_memory_allocated(0) == 2 * MIB
    assert torch.cuda.memory_stats(0)["allocation.all.peak"] == 1
    torch.cuda.reset_peak_memory_stats(0)
    assert torch.cuda.max_memory_allocated(0) == 0
    replaced.undo()


@pytest.mark.parametrize("abbreviated", [True, False])
def test_torch_formats_its_summary(memory: CudaMemory, device: _native.Device, abbreviated: bool) -> None:
    memory.add(0, Peaks(device))
    address = device.allocate(3 * MIB, Placement())
    lines = torch.cuda.memory_summary(0, abbreviated).splitlines()
    _native.free(address)
    row = next(line for line in lines if "Allocated memory" in line)
    assert [cell.strip() for cell in row.split("|")[2:6]] == ["3072 KiB", "3072 KiB", "3072 KiB", "0 B"]


def test_torch_accelerator_asks_the_same(memory: CudaMemory, device: _native.Device) -> None:
    memory.add(0, Peaks(device))
    address = device.allocate(3 * MIB, Placement())
    assert torch._C._accelerator_getDeviceStats(0) == torch.cuda.memory_stats_as_nested_dict(0)
    torch._C._accelerator_resetPeakStats(0)
    torch._C._accelerator_resetAccumulatedStats(0)
    assert torch.cuda.memory_stats(0)["allocated_bytes.all.allocated"] == 0
    _native.free(address)


def test_torch_accelerator_tells_statistics_and_gives_back(
    memory: CudaMemory, device: _native.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_back: list[int] = []
    monkeypatch.setattr(torch._C, "_cuda_emptyCache", lambda: given_back.append(1), raising=False)
    monkeypatch.setattr(torch.accelerator.memory, "_get_device_index", lambda *_, **__: 0)
    memory.add(0, Peaks(device))
    address = device.allocate(3 * MIB, Placement())
    assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated(0) == 3 * MIB
    _native.free(address)
    assert torch.accelerator.max_memory_allocated() == 3 * MIB
    torch.accelerator.reset_peak_memory_stats()
    assert torch.accelerator.max_memory_allocated() == 0
    torch.accelerator.empty_cache()
    assert given_back == [1]


def test_gpus_are_apart_and_plain_memory_counts(
    memory: CudaMemory, open_device: OpenDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, plain = open_device(64 * MIB), open_device(64 * MIB)
    monkeypatch.setattr(_native, "plain_cuda_device", lambda ordinal: plain if ordinal == 1 else None)
    memory.add(0, Peaks(first))
    addresses = [first.allocate(3 * MIB, Placement()), plain.allocate(2 * MIB, Placement(memory=Memory.DEVICE))]
    assert [torch.cuda.memory_allocated(ordinal) for ordinal in (0, 1, 2)] == [3 * MIB, 2 * MIB, 0]
    _native.free(addresses[1])
    torch.cuda.reset_peak_memory_stats(1)
    assert torch.cuda.max_memory_allocated(1) == 0
    _native.free(addresses[0])


def test_who_was_patched_before_counts_as_long_as_its_tensors_live(memory: CudaMemory, open_device: OpenDevice) -> None:
    before, now = open_device(64 * MIB), _native.Device.open_emulated(EmulatedOptions(64 * MIB))
    memory.add(0, Peaks(before))
    memory.add(0, Peaks(now))
    addresses = [each.allocate(MIB, Placement()) for each in (before, now)]
    now.close()
    assert torch.cuda.memory_allocated(0) == 2 * MIB
    for address in addresses:
        _native.free(address)
    assert torch.cuda.memory_allocated(0) == 0


# ---- free memory ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget_bytes", "free_bytes", "expected"),
    [
        (None, 40 * MIB, (40 * MIB, 64 * MIB)),  # what the driver says
        (16 * MIB, 40 * MIB, (16 * MIB - 6 * MIB, 16 * MIB)),  # what the budget leaves
        (16 * MIB, 4 * MIB, (4 * MIB, 16 * MIB)),  # as far as the GPU has it
        (1 << 40, 40 * MIB, (40 * MIB, 64 * MIB)),  # more than there is
        (4 * MIB, 40 * MIB, (0, 4 * MIB)),  # more is there than the budget, for now
    ],
)
def test_free_memory_is_what_the_budget_leaves(
    budget_bytes: int | None,
    free_bytes: int,
    expected: tuple[int, int],
    open_device: OpenDevice,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = open_device(64 * MIB)
    described = device.info
    monkeypatch.setattr(device, "info", lambda: replace(described(), free_bytes=free_bytes))
    held = msgspec.structs.replace(device.memory(), resident_bytes=6 * MIB)
    monkeypatch.setattr(device, "memory", lambda: held)
    assert cuda_memory.free_and_total(device, budget_bytes) == expected


def test_torch_asks_of_the_patched_gpu_and_tells_of_others_itself(
    device: _native.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    for owner in (torch.cuda, torch.cuda.memory):
        monkeypatch.setattr(owner, "mem_get_info", lambda of: ("torch's own", of))
    monkeypatch.setattr(torch._C, "_accelerator_getMemoryInfo", lambda of: ("torch's own", of), raising=False)
    state = Runtime(device, emulated=False, ordinal=1, budget_bytes=32 * MIB)
    cuda_memory.answer_free_memory(state)
    try:
        ours = (32 * MIB, 32 * MIB)
        assert (
            torch.cuda.mem_get_info() == torch.cuda.mem_get_info(1) == torch.cuda.memory.mem_get_info("cuda:1") == ours
        )
        state.session_budget_bytes = 16 * MIB  # a session's is closer
        assert torch.cuda.mem_get_info() == (16 * MIB, 16 * MIB)
        assert torch.cuda.mem_get_info(0) == ("torch's own", 0)
        assert torch._C._accelerator_getMemoryInfo(1) == (16 * MIB, 16 * MIB)
        assert torch._C._accelerator_getMemoryInfo(0) == ("torch's own", 0)
    finally:
        state.replaced.undo()
    assert torch.cuda.mem_get_info(1) == ("torch's own", 1)
