"""Names that only torch's CUDA build has, while `umadvise run` runs a script on the emulated device."""

import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import umadvise
from umadvise.devices.open_device import EmulatedDevice
from umadvise.errors import UntranslatedError
from umadvise.torch_seam.cuda_spellings import build_names
from umadvise.training.script import ScriptRun


@pytest.fixture
def translated() -> Iterator[None]:
    """This process as a script finds it under `umadvise run`, with 32 MiB."""
    with ScriptRun(EmulatedDevice(capacity="32MiB"), None, "advise", "script.py"):
        yield


@pytest.mark.usefixtures("translated")
def test_all_that_torch_declares_of_a_cuda_build_is_there() -> None:
    declared = (Path(torch.__file__).parent / "_C" / "__init__.pyi").read_text(encoding="utf-8")
    names = re.findall(r"^def (_cuda_\w+|_nccl_\w+|_broadcast\w*|_scatter\w*|_gather\w*)\(", declared, re.MULTILINE)
    names += re.findall(r"^class (_Cuda\w+|_CUDA\w+|_cuda_\w+|_MemPool)\b", declared, re.MULTILINE)
    assert len(names) > 60
    assert [name for name in names if not hasattr(torch._C, name)] == []


@pytest.mark.usefixtures("translated")
def test_refused_names_are_refused_when_they_are_called() -> None:
    bound = {f"_cuda_{name}": getattr(torch._C, f"_cuda_{name}") for name in build_names.REFUSED}
    bound |= {name: getattr(torch._C, name) for name in (*build_names.OTHERS_REFUSED, *build_names.CLASSES_REFUSED)}
    bound |= {name: getattr(getattr(torch._C, name), "anything") for name in build_names.MODULES}  # noqa: B009
    answered = {f"_cuda_{name}" for name in build_names.answers()}
    for name in bound.keys() - answered:
        with pytest.raises(UntranslatedError, match=rf"torch\._C\.{name}"):
            bound[name]()


CALLS: dict[str, Callable[[], Any]] = {
    "torch.cuda.memory._record_memory_history": lambda: torch.cuda.memory._record_memory_history(max_entries=100),
    "torch.cuda.memory._snapshot": lambda: torch.cuda.memory._snapshot(),
    "torch.cuda.memory._dump_snapshot": lambda: torch.cuda.memory._dump_snapshot("snapshot.pickle"),
    "torch.cuda.memory._get_current_allocator": lambda: torch.cuda.memory._get_current_allocator(),
    "torch.cuda.memory_snapshot": lambda: torch.cuda.memory_snapshot(),
    "torch.cuda.gds.gds_register_buffer": lambda: torch.cuda.gds.gds_register_buffer(torch.UntypedStorage(8)),
    "torch.cuda._get_rng_state_offset": lambda: torch.cuda._get_rng_state_offset(),
    "torch._C._cuda_memorySnapshot": lambda: torch._C._cuda_memorySnapshot(None),
    "torch._C._cudnn.getVersionInt": lambda: torch._C._cudnn.getVersionInt(),
    "torch._C._cudart.cudaStreamCreate": lambda: torch.cuda.cudart().cudaStreamCreate(0),
    "torch.accelerator.Graph": lambda: torch.accelerator.Graph(),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.usefixtures("translated")
def test_a_refusal_names_the_call_of_the_program(name: str) -> None:
    with pytest.raises(UntranslatedError, match=rf"^{re.escape(name)}(?: \(torch\._C\.\w+\))? cannot be used on"):
        CALLS[name]()


@pytest.mark.usefixtures("translated")
def test_what_tells_of_the_device_is_answered() -> None:
    private: Any = torch._C
    assert (private._cuda_getDeviceCount(), private._cuda_getDevice(), private._cuda_exchangeDevice(0)) == (1, 0, 0)
    assert torch.cuda._is_compiled()
    assert private._cuda_maybeExchangeDevice(-1) == -1
    assert not private._cuda_isInBadFork()
    assert not private._cuda_isCurrentStreamCapturing()
    tensor = torch.zeros(1 << 18, device="cuda")
    statistics = private._cuda_memoryStats(0)
    assert statistics["allocated_bytes"]["all"]["current"] == torch.cuda.memory_allocated() >= tensor.nbytes
    for order in (private._cuda_synchronize, private._cuda_emptyCache, private._cuda_init, private._cuda_ipc_collect):
        assert order() is None
    torch.cuda._sleep(1000)
    torch.cuda.memory._record_memory_history(enabled=None)
    for refused in (private._cuda_setDevice, private._cuda_getCurrentRawStream, private._cuda_memoryStats):
        with pytest.raises(UntranslatedError, match="cuda:1"):
            refused(1)
    runtime, success = torch.cuda.cudart(), torch.cuda.cudart().cudaError.success
    assert {runtime.cudaProfilerStart(), runtime.cudaProfilerStop(), runtime.cudaHostRegister(0, 0, 0)} == {success}
    torch.cuda.check_error(success)
    assert runtime.cudaMemGetInfo(0) == torch.cuda.mem_get_info()
    private._nvtx.rangePushA("step")


@pytest.mark.usefixtures("translated")
def test_torch_itself_sees_a_machine_without_a_gpu() -> None:
    """Its own paths stay the CPU's, although `torch._C` has the names by which it looks for CUDA."""
    assert torch._utils._get_available_device_type() is None
    assert not torch.cuda.is_available.__wrapped__()  # type: ignore[attr-defined]


@pytest.mark.usefixtures("translated")
def test_a_tensor_has_no_array_interface_for_other_libraries() -> None:
    tensor = torch.zeros(2, device="cuda")
    assert not hasattr(tensor, "__cuda_array_interface__")
    with pytest.raises(UntranslatedError, match="__cuda_array_interface__"):
        _ = tensor.__cuda_array_interface__
    with pytest.raises(AttributeError, match="non-CUDA tensor"):
        _ = tensor.cpu().__cuda_array_interface__


@pytest.mark.usefixtures("translated")
def test_properties_of_one_card_are_refused() -> None:
    properties = torch.cuda.get_device_properties(0)
    assert isinstance(properties, torch._C._CudaDeviceProperties)
    assert (properties.warp_size, properties.shared_memory_per_block) == (32, 49152)
    assert getattr(properties, "L2_cache_size", None) is None
    with pytest.raises(UntranslatedError, match=r"get_device_properties\(\)\.uuid"):
        _ = properties.uuid
    assert pickle.loads(pickle.dumps(properties)) == properties


@pytest.mark.usefixtures("translated")
def test_modules_run_in_parallel_on_one_device() -> None:
    torch.manual_seed(3)
    model, given = nn.Linear(4, 3), torch.randn(6, 4)
    wanted = model(given)
    wanted.sum().backward()
    gradient = model.weight.grad
    model.cuda().zero_grad()
    parallel = torch.nn.parallel
    for devices in ([0], [0, 0]):
        scattered = parallel.scatter(given, devices)
        assert all(map(umadvise.on_device, scattered))
        replicas = parallel.replicate(model, devices)
        gathered = parallel.gather(parallel.parallel_apply(replicas, scattered), 0)
        assert torch.equal(gathered, wanted)
        gathered.sum().backward()
        assert torch.allclose(model.weight.grad, gradient)
        model.zero_grad()
    result = parallel.data_parallel(model, given, [0], output_device=-1)
    assert torch.equal(result, wanted)
    assert not umadvise.on_device(result)
    assert torch.equal(torch.cuda.comm.reduce_add([given.cuda(), given.cuda()]), given + given)
    (sums,) = torch.cuda.comm.reduce_add_coalesced([[given.cuda()], [given.cuda()]])
    assert torch.equal(sums, given + given)
    assert torch.equal(torch.cuda.comm.gather(torch.cuda.comm.scatter(given, [0, 0], [2, 4])), given)
    assert torch.equal(torch.cuda.comm.broadcast(given, [0])[0], given)
    with pytest.raises(UntranslatedError, match="cuda:1"):
        parallel.scatter(given, [0, 1])


class Quantized(nn.Parameter):
    """Quantized where it arrives on a GPU, as bitsandbytes' parameters are."""

    def to(self, *arguments: Any, **named: Any) -> Any:
        device = torch._C._nn._parse_to(*arguments, **named)[0]
        self.data = self.data.round().to(device)
        return self


@pytest.mark.usefixtures("translated")
def test_parameters_that_move_themselves_are_asked_to() -> None:
    module = nn.Module()
    module.weight = Quantized(torch.tensor([1.2, 2.7]))
    module.to("cuda")
    assert umadvise.on_device(module.weight)
    assert module.weight.tolist() == [1, 3]


def test_reserved_is_never_less_than_allocated() -> None:
    with ScriptRun(EmulatedDevice(capacity="64MiB"), None, "swap", "script.py"):
        kept = [torch.ones(1 << 20, device="cuda") for _ in range(24)]
        assert torch.cuda.memory_allocated() >= 24 * kept[0].nbytes > 64 << 20
        assert torch.cuda.memory_reserved() >= torch.cuda.memory_allocated()
        assert torch.cuda.max_memory_reserved() >= torch.cuda.max_memory_allocated()


@pytest.mark.usefixtures("translated")
def test_choices_of_libraries_for_gpus_change_nothing() -> None:
    plans = torch.backends.cuda.cufft_plan_cache
    plans[0].max_size = 10
    plans[torch.device(0)].clear()
    assert (plans.size, plans.max_size) == (0, 10)
    torch.backends.cuda.preferred_linalg_library("magma")
    torch.backends.cuda.preferred_blas_library("cublaslt")
    assert torch.backends.cuda.is_built()
    tensor = torch.ones(3, device="cuda")
    with torch.autograd.profiler.emit_nvtx():
        tensor.sum()
    assert tensor.untyped_storage().is_cuda
    assert not tensor.cpu().untyped_storage().is_cuda
    private: Any = torch._C
    assert private._accelerator_getStream(0) == torch.cuda.current_stream()
    assert private._accelerator_getAccelerator() == torch.device("cuda")
    assert private._get_accelerator() == torch.device("cuda")
    assert private._accelerator_getDeviceIndex() == 0
