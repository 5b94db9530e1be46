"""What torch cannot do with our CUDA allocator, through torch's own entries, on torch's build for the CPU."""

import io
import logging
import multiprocessing.reduction
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch

from umadvise.errors import UmadviseError, UnsupportedError
from umadvise.torch_seam import cuda_limits
from umadvise.torch_seam.eager_compile import Compiler
from umadvise.torch_seam.replacements import Replacements


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    replaced = Replacements()
    cuda_limits.install(replaced)
    yield
    replaced.undo()


class OnCuda:
    """A tensor's storage that says it is on a GPU; it is shared with other processes as torch shares one."""

    def __init__(self) -> None:
        self._untyped_storage = self
        self.device = torch.device("cuda:0")

    def _share_cuda_(self) -> Any:
        return torch.UntypedStorage(8)._share_cuda_()


def graph() -> None:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        pass


REFUSED = {
    "a CUDA graph": [
        torch.cuda.CUDAGraph,
        lambda: torch.cuda.CUDAGraph(keep_graph=True),
        graph,
        lambda: torch.cuda.CUDAGraph.capture_begin(object()),  # type: ignore[arg-type]  # one from before patch()
        lambda: torch.cuda.make_graphed_callables(torch.nn.Linear(2, 2), (torch.ones(2),)),
    ],
    "torch.cuda.MemPool": [torch.cuda.MemPool, lambda: torch.cuda.MemPool(use_on_oom=True)],
    "sharing CUDA tensors with another process": [
        lambda: torch.UntypedStorage(8)._share_cuda_(),
        lambda: torch.UntypedStorage._new_shared_cuda(0, b"", 8, 0, b"", 0, b"", False),
    ],
    "a snapshot of torch's CUDA memory": [
        torch.cuda.memory_snapshot,
        torch.cuda.memory._snapshot,
        torch.cuda.memory._dump_snapshot,
        torch.cuda.memory._record_memory_history,
        lambda: torch._C._cuda_record_memory_history("all", None, "all", 1000),  # type: ignore[attr-defined]
        lambda: torch._C._cuda_record_memory_history_legacy(True, False, 1, True, True),  # type: ignore[attr-defined]
        lambda: torch._C._cuda_attach_out_of_memory_observer(print),  # type: ignore[attr-defined]
    ],
    "torch.cuda.set_per_process_memory_fraction": [
        lambda: torch._C._cuda_setMemoryFraction(0.5, 0),  # type: ignore[attr-defined]
    ],
}


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize(("what", "use"), [(what, use) for what, uses in REFUSED.items() for use in uses])
def test_it_is_refused_in_words_when_it_is_used(what: str, use: Any) -> None:
    with pytest.raises(UnsupportedError) as raised:
        use()
    message = str(raised.value)
    assert message.startswith(f"{what} cannot be used while umadvise is torch's CUDA allocator: ")
    assert "; " in message  # what to do about it


@pytest.mark.usefixtures("limited")
def test_sending_a_tensor_of_the_gpu_to_another_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through torch.multiprocessing's own pickling, with a storage that only says that it is on a GPU."""
    from torch.multiprocessing import reductions

    tensor = torch.ones(4)
    monkeypatch.setattr(torch.Tensor, "_typed_storage", lambda _: OnCuda())
    with pytest.raises(UnsupportedError, match=r"send tensor\.cpu\(\)"):
        reductions.reduce_tensor(tensor)


@pytest.mark.usefixtures("limited")
def test_tensors_of_the_cpu_are_shared_as_ever() -> None:
    file = io.BytesIO()
    ForkingPickler(file).dump(torch.ones(4))
    assert multiprocessing.reduction.ForkingPickler.loads(file.getvalue()).sum().item() == 4.0


@pytest.mark.usefixtures("limited")
def test_switching_off_what_is_off_is_no_error() -> None:
    torch._C._cuda_record_memory_history(None, None, "all", 0)  # type: ignore[attr-defined]
    torch._C._cuda_setMemoryFraction(1.0, 0)  # type: ignore[attr-defined]
    assert torch._C._cuda_getMemoryFraction(0) == 1.0  # type: ignore[attr-defined]


def test_refusals_are_umadvises_and_runtime_errors_as_torchs_own_are() -> None:
    assert issubclass(UnsupportedError, UmadviseError)
    assert issubclass(UnsupportedError, RuntimeError)


def set_benchmark() -> None:
    torch.backends.cudnn.benchmark = True


def flags_benchmark() -> None:
    with torch.backends.cudnn.flags(benchmark=True):
        assert not torch.backends.cudnn.benchmark


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize("switch_on", [set_benchmark, flags_benchmark])
def test_cudnn_benchmark_stays_off_with_a_word(switch_on: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "umadvise"):
        switch_on()
    assert not torch.backends.cudnn.benchmark
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "torch.backends.cudnn.benchmark stays off"
    ]
    torch.backends.cudnn.benchmark = False
    assert len(caplog.records) == 1


def test_cudnn_benchmark_that_is_on_already_goes_off(caplog: pytest.LogCaptureFixture) -> None:
    replaced = Replacements()
    torch.backends.cudnn.benchmark = True
    try:
        with caplog.at_level(logging.WARNING, "umadvise"):
            cuda_limits.install(replaced)
        assert "stays off" in caplog.text
        assert not torch.backends.cudnn.benchmark
    finally:
        replaced.undo()
        torch.backends.cudnn.benchmark = False
    set_benchmark()
    assert torch.backends.cudnn.benchmark  # torch's own again
    torch.backends.cudnn.benchmark = False


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_settings_of_torchs_allocator_are_said_to_have_no_effect(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(name, "expandable_segments:True")
    replaced = Replacements()
    with caplog.at_level(logging.WARNING, "umadvise"):
        cuda_limits.install(replaced)
        torch.cuda.memory._set_allocator_settings("max_split_size_mb:128")
    replaced.undo()
    from_environment, from_call = (record.message for record in caplog.records)
    assert from_environment.startswith(f"{name}: 'expandable_segments:True' is for torch's own allocator")
    assert "expandable" in from_environment.partition(";")[2]
    assert from_call.endswith("has no effect on umadvise's")


def test_afterwards_torch_is_as_it_was() -> None:
    before = {name: vars(torch._C).get(name) for name in ("_cuda_memorySnapshot", "_set_cudnn_benchmark")}
    new, capture = torch.cuda.CUDAGraph.__new__, torch.cuda.CUDAGraph.capture_begin
    replaced = Replacements()
    cuda_limits.install(replaced)
    replaced.undo()
    assert {name: vars(torch._C).get(name) for name in before} == before
    assert (torch.cuda.CUDAGraph.__new__, torch.cuda.CUDAGraph.capture_begin) == (new, capture)
    assert "_share_cuda_" not in vars(torch.UntypedStorage)


def refuse_to_compile(_module: Any, _inputs: Any) -> Any:
    raise AssertionError("something was compiled")


@pytest.mark.parametrize("mode", [None, "reduce-overhead", "max-autotune"])
def test_compiled_functions_run_eagerly_until_it_ends(mode: str | None, caplog: pytest.LogCaptureFixture) -> None:
    """With cudagraphs or without: what was compiled before it began, too."""
    early = torch.compile(lambda x: x + 1, backend=refuse_to_compile)
    replaced, compiler = Replacements(), Compiler()
    replaced.around(torch, "compile", compiler.compile)
    try:
        with caplog.at_level(logging.WARNING, "umadvise"):
            late = torch.compile(lambda x: x + 2, mode=mode)
            assert late(torch.zeros(1)).item() == 2.0
        assert early(torch.zeros(1)).item() == 1.0
        assert caplog.messages == ["torch.compile is passed through: what it is given runs eagerly"]
    finally:
        compiler.undo()
        replaced.undo()
    with pytest.raises(Exception, match="something was compiled"):
        early(torch.zeros(1))
