"""umadvise as torch's CUDA allocator without a GPU: torch's half is a stand-in, ours real, on the emulated device."""

import ctypes
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from umadvise import _native
from umadvise._native.abi import ChunkOptions, Memory, Placement, Route, RouteState
from umadvise._native.library import hooks_library
from umadvise.errors import (
    DeviceUnavailableError,
    HooksUnavailableError,
    NativeError,
    StateError,
    UmadviseError,
    UnsupportedError,
    UsageError,
)
from umadvise.records.enums import Advice, Role
from umadvise.torch_seam import cuda_allocator, patching, runtime
from umadvise.torch_seam.cuda_memory import CudaMemory
from umadvise.torch_seam.replacements import Replacements

MIB = 1 << 20


class TorchWithCuda:
    """The parts of a CUDA build of torch that install() talks to, and what it was told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.initialized = False
        self.present: object | None = None

    def pluggable(self, path: str, allocate: str, free: str) -> "TorchWithCuda":
        self.told.append(("created", path, allocate, free))
        return self

    def allocator(self) -> object:
        return self if self.told else self.present

    def set_record_stream_fn(self, address: int) -> None:
        self.told.append(("record_stream", address))

    def set_reset_fn(self, address: int) -> None:
        self.told.append(("reset", address))

    def change(self, allocator: object) -> None:
        assert allocator is self and not self.initialized
        self.told.append(("changed",))


@pytest.fixture
def cuda_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[TorchWithCuda]:
    fake = TorchWithCuda()
    monkeypatch.setattr(cuda_allocator, "_installed", False)
    monkeypatch.setattr(cuda_allocator, "_for_good", Replacements())
    monkeypatch.setattr(cuda_allocator, "_memory", CudaMemory())
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: fake.initialized)
    monkeypatch.setattr(torch.cuda.memory, "CUDAPluggableAllocator", fake.pluggable)
    monkeypatch.setattr(torch.cuda.memory, "change_current_allocator", fake.change)
    monkeypatch.setattr(torch.cuda.memory, "_get_current_allocator", lambda: fake)
    yield fake
    cuda_allocator.release()
    cuda_allocator._for_good.undo()  # nothing but a test can


def test_torch_gets_our_functions_before_it_changes_its_allocator(cuda_torch: TorchWithCuda) -> None:
    cuda_allocator.install(0)
    (created, path, *names), (record_stream, address), (reset, reset_address), (changed,) = cuda_torch.told
    assert (created, record_stream, reset, changed) == ("created", "record_stream", "reset", "changed")
    library = ctypes.CDLL(path)
    for name in names:
        assert ctypes.cast(getattr(library, name), ctypes.c_void_p).value == _native.hooks_function(name)
    assert address == _native.hooks_function("um_hooks_cuda_record_stream")
    assert reset_address == _native.hooks_function("um_hooks_cuda_reset")


def test_it_is_installed_once_and_used_again_after_torch_has_set_cuda_up(cuda_torch: TorchWithCuda) -> None:
    cuda_allocator.install(0)
    cuda_allocator.release()
    cuda_torch.initialized = True
    cuda_allocator.install(0)
    assert [what for what, *_ in cuda_torch.told].count("changed") == 1


@pytest.mark.usefixtures("cuda_torch")
def test_what_cublas_works_in_does_not_outlive_the_routing(monkeypatch: pytest.MonkeyPatch) -> None:
    cleared: list[bool] = []
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: cleared.append(True), raising=False)
    cuda_allocator.install(0)
    assert not cleared
    cuda_allocator.release()
    assert cleared == [True]


def test_too_late_is_a_clear_error(cuda_torch: TorchWithCuda) -> None:
    cuda_torch.initialized = True
    with pytest.raises(StateError, match=r"set CUDA up already.*call umadvise\.patch\(\) before .*umadvise run"):
        cuda_allocator.install(0)
    assert cuda_torch.told == []


def test_another_librarys_allocator_is_a_clear_error(cuda_torch: TorchWithCuda) -> None:
    cuda_torch.present = object()
    with pytest.raises(StateError, match=r"another library has replaced torch's CUDA allocator"):
        cuda_allocator.install(0)
    assert cuda_torch.told == []


def test_a_torch_without_cuda_is_a_clear_error(cuda_torch: TorchWithCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(DeviceUnavailableError, match=r"built without CUDA.*device=\"emulated\""):
        cuda_allocator.install(0)
    assert cuda_torch.told == []


# ---- the functions, on the emulated device in place of a GPU -------------------------------------------------------


@pytest.fixture
def cuda_device(
    cuda_torch: TorchWithCuda, open_device: Callable[..., _native.Device], monkeypatch: pytest.MonkeyPatch
) -> _native.Device:
    """An emulated device that says it is CUDA's device 0, with torch's CUDA memory routed to it."""
    described = _native.Device.info
    monkeypatch.setattr(_native.Device, "info", lambda self: replace(described(self), provider="cuda", ordinal=0))
    device = open_device(64 * MIB)
    patching.start(device, None)
    assert cuda_torch.told[-1] == ("changed",)
    return device


@pytest.fixture(autouse=True)
def unpatched_afterwards() -> Iterator[None]:
    yield
    if runtime.is_patched():
        patching.stop(runtime.current())


def allocate(size_bytes: int, stream: int = 0, ordinal: int = 0) -> int:
    """What torch would get."""
    address = ctypes.c_void_p()
    hooks_library().um_hooks_cuda_try_allocate(size_bytes, ordinal, stream or None, ctypes.byref(address))
    return address.value or 0


def free(address: int, size_bytes: int, stream: int = 0) -> None:
    hooks_library().um_hooks_cuda_free(address, size_bytes, 0, stream or None)


def in_another_thread(work: Callable[[], Any]) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


def test_every_threads_memory_follows_the_policy(cuda_device: _native.Device) -> None:
    torch.cuda.set_unified("readmostly")  # type: ignore[attr-defined]
    here, there = allocate(100), in_another_thread(lambda: allocate(200))
    for address, size_bytes in ((here, 100), (there, 200)):
        allocation = _native.allocation_at(address)
        assert allocation is not None
        assert (allocation.bytes, allocation.role, allocation.advice) == (
            size_bytes,
            Role.INTERMEDIATE,
            Advice.READ_MOSTLY,
        )
        assert address % 512 == 0
        free(address, size_bytes)
    assert cuda_device.info().live_allocations == 0


@pytest.mark.usefixtures("cuda_device")
def test_a_threads_own_route_wins() -> None:
    with runtime.routed(runtime.placed(Placement(role=Role.PARAMETER, advice=Advice.PREFERRED_LOCATION))):
        mine, others = allocate(100), in_another_thread(lambda: allocate(100))
    advice = [allocation.advice for address in (mine, others) if (allocation := _native.allocation_at(address))]
    assert advice == [Advice.PREFERRED_LOCATION, Advice.NONE]
    free(mine, 100)
    free(others, 100)


def test_torchs_own_figures_are_ours(cuda_device: _native.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda.memory, "is_initialized", lambda: True)
    first, second = allocate(3 * MIB), allocate(MIB)
    free(second, MIB)
    assert torch.cuda.memory_allocated(0) == 3 * MIB
    assert torch.cuda.max_memory_allocated(0) == 4 * MIB
    assert torch.cuda.memory_reserved(0) == cuda_device.memory().reserved_bytes > 0
    torch.cuda.reset_peak_memory_stats(0)
    assert torch.cuda.memory_stats(0)["allocated_bytes.all.peak"] == 3 * MIB
    patching.stop(runtime.current())
    assert torch.cuda.memory_allocated(0) == 3 * MIB  # the allocator stays, and so do the answers
    free(first, 3 * MIB)
    assert torch.cuda.memory_allocated(0) == 0


@pytest.mark.usefixtures("cuda_device")
def test_what_needs_torchs_own_allocator_stays_refused() -> None:
    with pytest.raises(UnsupportedError, match="a CUDA graph cannot be used"):
        torch.cuda.CUDAGraph()
    patching.stop(runtime.current())
    with pytest.raises(UnsupportedError, match="a snapshot of torch's CUDA memory cannot be used"):
        torch.cuda.memory_snapshot()


def test_nothing_costs_nothing(cuda_device: _native.Device) -> None:
    nothing = {allocate(0), allocate(0)}
    assert len(nothing) == 2  # torch knows what is live by its address
    assert 0 not in nothing
    for address in nothing:
        assert not _native.owns(address)
        free(address, 0)
    assert cuda_device.memory().allocation_count == 0


@pytest.mark.usefixtures("cuda_device")
@pytest.mark.parametrize("name", ["cuda:1", torch.device("cuda", 1), 1])
def test_another_gpu_is_torchs_alone(name: Any) -> None:
    moves: list[Callable[[], Any]] = [
        lambda: torch.ones(4).to(name),
        lambda: torch.ones(4).cuda(name),
        lambda: torch.nn.Linear(4, 4).to(name),
        lambda: torch.nn.Linear(4, 4).cuda(name),
    ]
    for move in moves:  # it gets as far as this torch, which has no CUDA
        with pytest.raises((AssertionError, RuntimeError), match=r"CUDA|cuda|accelerator") as raised:
            move()
        assert not isinstance(raised.value, UmadviseError)
    with pytest.raises(UsageError, match="CUDA device 1 is not in use"):
        torch.ones(4).to("cuda:1:readmostly")


def test_the_cpu_allocator_routes_nothing_meanwhile(cuda_device: _native.Device) -> None:
    _native.install_allocator()
    with runtime.routed(Route(RouteState.ON, Placement(), cuda_device.handle)):
        assert not _native.owns(torch.empty(1000).data_ptr())


@pytest.mark.parametrize("how", ["unpatched", "thread switched off", "another device"])
def test_what_is_not_routed_goes_to_another_device_of_the_core(cuda_device: _native.Device, how: str) -> None:
    if how == "unpatched":
        patching.stop(runtime.current())
    elif how == "thread switched off":
        _native.set_thread_route(runtime.HOST)
    ordinal = 1000 if how == "another device" else 0
    if ordinal != 0 or _native.cuda_unavailable_reason() is not None:
        with pytest.raises(NativeError, match=r"no CUDA device"):
            allocate(100, ordinal=ordinal)
    else:
        address = allocate(100)
        assert _native.owns(address)
        free(address, 100)
    assert cuda_device.memory().allocation_count == 0


def test_out_of_memory_tells_why(cuda_device: _native.Device) -> None:
    with (
        runtime.routed(runtime.placed(replace(Placement(), memory=Memory.DEVICE))),
        pytest.raises(
            NativeError, match=r"out of device memory: tried to allocate 1024 MiB .* on umadvise emulated device"
        ),
    ):
        allocate(1024 * MIB)
    assert cuda_device.memory().live_allocations == 0


# torch calls the function from C++ and expects an exception: so does this program, which knows torch by name alone.
CALLER = """
#include <dlfcn.h>
#include <cstdio>
#include <exception>
#include <typeinfo>

extern "C" void call(void* function, long bytes) {
  try {
    reinterpret_cast<void* (*)(long, int, void*)>(function)(bytes, 0, nullptr);
    std::puts("returned");
  } catch (const std::exception& error) {
    std::printf("%s: %s\\n", typeid(error).name(), error.what());
  }
  std::fflush(stdout);
}
"""


def test_what_torch_calls_throws_torchs_own_exception(
    cuda_device: _native.Device, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    library = tmp_path / "caller.so"
    compiler = os.environ.get("CXX", "c++").split()
    subprocess.run(
        [*compiler, "-x", "c++", "-", "-shared", "-fPIC", "-o", str(library)], input=CALLER, text=True, check=True
    )

    def call() -> None:
        with runtime.routed(runtime.placed(replace(Placement(), memory=Memory.DEVICE))):
            ctypes.CDLL(str(library)).call(
                ctypes.c_void_p(_native.hooks_function("um_hooks_cuda_allocate")), ctypes.c_long(1024 * MIB)
            )

    in_another_thread(call)  # where no message is left of a call before
    out = capfd.readouterr().out
    assert out.startswith(
        "N3c1016OutOfMemoryErrorE: CUDA out of memory. umadvise: out of device memory: tried to allocate 1024 MiB"
    )
    assert cuda_device.memory().live_allocations == 0


# ---- streams: 0 and 1 are two names that the driver takes, and all that counts here is that they differ --------------


@pytest.fixture
def waits(cuda_device: _native.Device) -> Iterator[Callable[[], int]]:
    """How often a stream was to wait for another since the test began; what earlier tests freed is waited for by then.

    An event is recorded for each. The emulated device has no other stream to offer than 0 under its two names, and is
    not made to wait for itself.
    """
    held = [(allocate(100, stream), stream) for stream in (0, 1)]
    before = cuda_device.calls("cuEventRecord")
    yield lambda: cuda_device.calls("cuEventRecord") - before
    for address, stream in held:
        free(address, 100, stream)


def test_one_stream_never_waits(waits: Callable[[], int]) -> None:
    for _ in range(3):
        free(allocate(100), 100)
    assert waits() == 0


def test_a_stream_waits_once_for_what_another_has_freed(waits: Callable[[], int]) -> None:
    free(allocate(100), 100)
    assert waits() == 0
    taken = [allocate(100, stream=1) for _ in range(2)]
    assert waits() == 1
    for address in taken:
        free(address, 100, stream=1)
    free(allocate(100), 100)
    assert waits() == 2


def test_a_lent_block_is_waited_for_where_it_was_used(waits: Callable[[], int]) -> None:
    address = allocate(100)
    hooks_library().um_hooks_cuda_record_stream(address, 1)
    free(allocate(100), 100)
    assert waits() == 0  # still lent: nobody can get it
    free(address, 100)
    free(allocate(100), 100)
    assert waits() == 1
    free(allocate(100), 100)
    assert waits() == 1


@pytest.mark.usefixtures("waits")
def test_memory_that_cannot_be_waited_for_is_not_given_out(cuda_device: _native.Device) -> None:
    free(allocate(100), 100)
    live = cuda_device.memory().live_allocations
    cuda_device.fail("cuEventRecord", 1)
    with pytest.raises(NativeError, match="recording an event"):
        allocate(100, stream=1)
    assert cuda_device.memory().live_allocations == live


# ---- what ops tell the core ------------------------------------------------------------------------------------------

# The one function of torch's CUDA half that the extension asks.
TORCH_CUDA = """
#include <cstdint>
extern "C" void* current_stream = nullptr;
extern "C" int32_t status = 0;
extern "C" int32_t aoti_torch_get_current_cuda_stream(int32_t, void** stream) {
  *stream = current_stream;
  return status;
}
"""


@pytest.fixture(scope="module")
def torch_cuda(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """A libtorch_cuda.so of this process; it stays, and ops are in the default stream unless a test says otherwise."""
    library = tmp_path_factory.mktemp("torch_cuda") / "libtorch_cuda.so"
    compiler = os.environ.get("CXX", "c++").split()
    command = [*compiler, "-x", "c++", "-", "-shared", "-fPIC", "-Wl,-soname,libtorch_cuda.so", "-o", str(library)]
    subprocess.run(command, input=TORCH_CUDA, text=True, check=True)
    return ctypes.CDLL(str(library))


@pytest.fixture
def chunked(cuda_device: _native.Device) -> torch.Tensor:
    """A tensor in chunked memory."""
    _native.install_allocator()
    cuda_device.set_chunks(ChunkOptions(budget_bytes=16 * MIB))
    tensor = torch.ones(MIB)
    _native.adopt_storage(tensor.untyped_storage()._cdata, cuda_device, Placement(Memory.CHUNKED))
    return tensor


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("current_stream", 2, r"an op runs in the per-thread default stream.* Use the default stream, or one of"),
        ("status", 1, r"torch does not tell the current stream of CUDA device 0"),
    ],
)
def test_an_op_runs_in_torchs_current_stream(
    chunked: torch.Tensor, torch_cuda: ctypes.CDLL, variable: str, value: int, expected: str
) -> None:
    assert (chunked + 1).sum().item() == 2 * MIB
    kind = ctypes.c_void_p if variable == "current_stream" else ctypes.c_int32
    told = kind.in_dll(torch_cuda, variable)
    told.value = value
    try:
        with pytest.raises(RuntimeError, match=expected):
            chunked + 1
    finally:
        told.value = 0
    assert (chunked + 1).sum().item() == 2 * MIB


def test_empty_cache_gives_back_what_no_tensor_has(cuda_device: _native.Device) -> None:
    with runtime.routed(runtime.placed(replace(Placement(), memory=Memory.DEVICE))):
        free(allocate(8 * MIB), 8 * MIB)
        assert cuda_device.memory().reserved_bytes >= 8 * MIB
        hooks_library().um_hooks_cuda_reset()
    assert cuda_device.memory().reserved_bytes == 0


def test_without_a_compiler_cuda_is_refused_with_the_remedy(
    cuda_torch: TorchWithCuda, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("CXX", "no-such-compiler")
        patch.setenv("XDG_CACHE_HOME", str(tmp_path))
        hooks_library.cache_clear()  # it is loaded, by tests before
        with pytest.raises(HooksUnavailableError, match=r"'no-such-compiler' was not found.*Install one"):
            cuda_allocator.install(0)
    assert cuda_torch.told == []
