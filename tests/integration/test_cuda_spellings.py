"""What CUDA's spellings mean while `umadvise run` runs a script on the emulated device, and how others are refused."""

import importlib
import importlib.util
import pickle
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from accelerate.utils.memory import should_reduce_batch_size
from torch import nn
from torch.jit import _builtins
from torch.overrides import TorchFunctionMode
from torch.utils import cpp_extension

import umadvise
from umadvise._native.abi import Allocation
from umadvise.devices.open_device import EmulatedDevice
from umadvise.errors import UntranslatedError
from umadvise.records.enums import Advice
from umadvise.torch_seam import runtime
from umadvise.torch_seam.cuda_spellings.factories import FACTORIES, METHODS
from umadvise.torch_seam.cuda_spellings.words import ON_DEVICE
from umadvise.torch_seam.runtime import HOST, Runtime, routed
from umadvise.training.script import ScriptRun


@pytest.fixture
def translated() -> Iterator[Runtime]:
    """This process as a script finds it under `umadvise run`, with 32 MiB."""
    with ScriptRun(EmulatedDevice(capacity="32MiB"), None, "advise", "script.py"):
        yield runtime.current()


@pytest.mark.usefixtures("translated")
def test_tensors_are_made_on_the_device() -> None:
    with routed(HOST):  # where what is not told otherwise goes to ordinary memory
        like = torch.zeros(4)
        made = {
            "zeros": torch.zeros(4, device="cuda"),
            "index": torch.ones(4, device=0),
            "device": torch.full((4,), 2.0, device=torch.device("cuda", 0)),
            "tensor": torch.tensor([1.0, 2.0], device="cuda:0"),
            "as_tensor": torch.as_tensor(np.ones(4), device="cuda"),
            "like": torch.randn_like(like, device="cuda"),
            "method": like.new_zeros(4, device="cuda"),
            "sparse": torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], device="cuda", check_invariants=True)._values(),
            "arange": torch.arange(4, device="cuda"),
            "cuda": like.cuda(),
            "to": like.to("cuda"),
            "to its device": like.to(torch.zeros(4, device="cuda").device),
            "type": like.type("torch.cuda.DoubleTensor"),
            "module": nn.Linear(2, 2, device="cuda").weight,
            "empty module": nn.Linear(2, 2, device="meta").to_empty(device="cuda").weight,
        }
        assert {name for name, tensor in made.items() if not umadvise.on_device(tensor)} == set()
        assert not umadvise.on_device(torch.zeros(4, device="cpu"))
        assert not umadvise.on_device(torch.zeros(4, pin_memory=True))
        assert not umadvise.on_device(made["zeros"].cpu())
        assert not umadvise.on_device(made["zeros"].to("cpu"))
        assert not umadvise.on_device(made["zeros"].pin_memory())
    assert not torch.zeros(4).is_pinned()
    assert torch.zeros(4).pin_memory().is_pinned()
    assert torch.as_tensor(like.numpy(), device="cuda").data_ptr() != like.data_ptr()


def test_a_session_translates_if_asked_to() -> None:
    """From its entry to its end, also beneath `umadvise run`, which translates already."""
    model = nn.Linear(4, 2)
    with umadvise.session(model, device="emulated", cuda_spellings=True) as um, um.step():
        made = torch.ones(3, 4, device="cuda")
        assert umadvise.on_device(made)
        assert torch.cuda.is_available()
        model.to(torch.device("cuda"))(made).sum().backward()
    assert not torch.cuda.is_available()
    with umadvise.session(model, device="emulated"):
        assert not torch.cuda.is_available()
    with ScriptRun("emulated", None, "advise", "script.py"):
        with umadvise.session(model, cuda_spellings=True):
            assert torch.cuda.is_available()
        assert torch.cuda.is_available()


@pytest.mark.usefixtures("translated")
def test_explicit_advice_in_a_factory(allocation: Callable[[torch.Tensor], Allocation | None]) -> None:
    placed = allocation(torch.zeros(4, device="cuda:readmostly"))
    assert placed is not None
    assert placed.advice == Advice.READ_MOSTLY


def test_every_factory_of_torch_is_known() -> None:
    """Those of the schemas: whatever has an argument `device` and a Python name."""
    schemas = {
        schema.name.removeprefix("aten::")
        for schema in torch._C._jit_get_all_schemas()
        if any(argument.name == "device" for argument in schema.arguments)
    }
    public = {name for name in schemas if not name.startswith("_")}
    others = {"Generator", "from_file"}  # a class, which is replaced too; a file in ordinary memory
    assert {name for name in public if hasattr(torch, name)} - others <= set(FACTORIES)
    methods = {name for name in public if hasattr(torch.Tensor, name)}
    assert methods - {"to", "pin_memory", "is_pinned"} <= set(METHODS)


class Quantities:
    """Of a library that says by torch's own names what it does with them (`__torch_function__`)."""

    known: ClassVar[dict[Callable[..., Any], str]] = {}

    @classmethod
    def __torch_function__(cls, func: Any, _types: Any, _arguments: Any = (), _named: Any = None) -> Any:
        return cls.known.get(func, NotImplemented)


class Boxes(torch.Tensor):
    """Stays one where it moves, as torchvision's do, and nowhere else."""

    moves: ClassVar[tuple[Any, ...]] = ()

    @classmethod
    def __torch_function__(cls, func: Any, _types: Any, arguments: Any = (), named: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            found = func(*arguments, **(named or {}))
        return found.as_subclass(cls) if func in cls.moves else found


@pytest.mark.parametrize("translates", [True, False])
def test_a_tensor_of_a_class_stays_one_where_it_moves(translates: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a script, which finds our functions in torch, and in a session that comes after the class."""
    moves = (torch.Tensor.clone, torch.Tensor.to)  # those of torch, as a class knows them that was there before
    with ExitStack() as stack:
        if translates:
            stack.enter_context(ScriptRun(EmulatedDevice(capacity="32MiB"), None, "advise", "script.py"))

            class Later(Boxes):
                pass

            kind, moves = Later, (torch.Tensor.clone, torch.Tensor.to)
        else:
            stack.enter_context(umadvise.session(nn.Linear(2, 2), device="emulated"))
            kind = Boxes  # type: ignore[assignment]
        monkeypatch.setattr(Boxes, "moves", moves)
        boxes = torch.arange(12.0).reshape(3, 4).as_subclass(kind)
        moved = boxes.to("cuda")
        back = [moved.to("cpu"), moved.to(device="cpu", copy=True)]
        assert {type(each) for each in [moved, *back]} == {kind}
        assert umadvise.on_device(moved)
        assert not any(map(umadvise.on_device, back))
        assert all(each.sum() == 66 for each in back)


class Names(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        self.seen += [name for name in ("empty", "zeros", "ones_like") if func is getattr(torch, name)]
        return func(*arguments, **(named or {}))


@pytest.mark.usefixtures("translated")
def test_classes_and_modes_are_told_of_what_they_find_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Quantities, "known", {torch.empty_like: "empty", torch.zeros_like: "zeros"})
    quantities: Any = Quantities()
    found: Any = torch.empty_like(quantities), torch.zeros_like(quantities, dtype=torch.int64)
    assert found == ("empty", "zeros")
    with pytest.raises(TypeError, match="ones_like"):
        torch.ones_like(quantities)
    with Names() as names, torch.device("cuda"):
        made = [torch.empty(2), torch.zeros(2), torch.ones_like(torch.zeros(2, device="cpu")), torch.fft.fftfreq(4)]
    assert names.seen == ["empty", "zeros", "zeros", "ones_like"]
    assert all(map(umadvise.on_device, made))


@pytest.mark.usefixtures("translated")
def test_classes_are_made_of_torchs_generator() -> None:
    class Counting(torch.Generator):
        count = 3

    generator = Counting("cuda").manual_seed(1)
    assert isinstance(generator, Counting)
    assert generator.count == 3
    assert torch.equal(torch.rand(2, generator=generator), torch.rand(2, generator=torch.Generator().manual_seed(1)))
    assert type(torch.Generator("cuda")) is torch._C.Generator


@pytest.mark.usefixtures("translated")
def test_functions_are_pickled_by_the_place_where_they_stand() -> None:
    """As arguments of other processes, and in what torch.save is given."""
    methods = [*METHODS, "to", "cpu", "cuda", "numpy"]
    owners = [(torch, FACTORIES), (torch, ["load", "compile"]), (torch.Tensor, methods)]
    functions = [getattr(owner, name) for owner, names in owners for name in names if hasattr(owner, name)]
    assert [each for each in functions if pickle.loads(pickle.dumps(each)) is not each] == []


@pytest.mark.usefixtures("translated")
def test_what_a_tensor_says_of_itself() -> None:
    tensor = torch.zeros(4, device="cuda")
    assert (str(tensor.device), tensor.is_cuda, tensor.get_device()) == ("cpu", True, 0)
    assert tensor.to(tensor.device) is tensor
    host = tensor.to("cpu")
    assert (str(host.device), host.is_cuda, host.get_device()) == ("cpu", False, -1)
    assert isinstance(torch.Generator(device="cuda"), torch.Generator)
    generators = [torch.Generator(device=device).manual_seed(4) for device in ("cuda", "cpu")]
    on_cuda, on_cpu = (torch.randn(4, generator=generator) for generator in generators)
    assert torch.equal(on_cuda, on_cpu)
    with torch.device("cuda"):
        assert umadvise.on_device(torch.zeros(4))
    torch.set_default_device("cuda")
    try:
        assert umadvise.on_device(torch.zeros(4))
    finally:
        torch.set_default_device(None)


@pytest.mark.usefixtures("translated")
def test_a_branch_on_is_cuda_is_taken_and_the_cpus_kernels_compute_it() -> None:
    """As docs/scripts-for-cuda.md says: such results may differ from those of either machine."""

    def scaled(tensor: torch.Tensor, *, as_on_a_gpu: bool) -> torch.Tensor:
        return (tensor * (1 / 0.9)) * (1 / 3.7) if as_on_a_gpu else tensor * (1 / 3.7 / 0.9)

    tensor = torch.randn(300, generator=torch.Generator().manual_seed(1), device="cuda")
    found = scaled(tensor, as_on_a_gpu=tensor.is_cuda)
    assert torch.equal(found, scaled(tensor.cpu(), as_on_a_gpu=True))
    assert not torch.equal(found, scaled(tensor.cpu(), as_on_a_gpu=False))


class Packed(torch.Tensor):
    """Made of a tensor, as the state of 8-bit optimizers is, and no op is known of it: not even a copy."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Packed":
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @classmethod
    def __tensor_unflatten__(cls, tensors: dict[str, torch.Tensor], *_: Any) -> "Packed":
        return cls(tensors["inner"])

    @classmethod
    def __torch_dispatch__(cls, op: Any, *_: Any) -> Any:
        raise NotImplementedError(op)


@pytest.mark.usefixtures("translated")
def test_what_is_made_of_tensors_on_the_device_is_there() -> None:
    packed = Packed(torch.ones(8, device="cuda"))
    assert packed.to(packed.inner.device) is packed
    assert packed.to("cuda") is packed
    with pytest.raises(NotImplementedError, match="clone"):
        Packed(packed.inner.cpu()).to("cuda")


@pytest.mark.usefixtures("translated")
def test_what_the_device_says_of_itself() -> None:
    cuda = torch.cuda
    assert (cuda.is_available(), cuda.device_count(), cuda.current_device()) == (True, 1, 0)
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    assert "emulated" in cuda.get_device_name(0)
    assert cuda.get_device_properties("cuda").total_memory == 32 << 20
    cuda.set_device(0)
    cuda.synchronize()
    with cuda.device(0):
        cuda.manual_seed_all(3)
    cuda.set_per_process_memory_fraction(1.0, 0)
    with pytest.warns(UserWarning, match=f"limits nothing .* set --budget {16 << 20} instead"):
        cuda.set_per_process_memory_fraction(0.5)
    assert torch.equal(cuda.get_rng_state(), torch.get_rng_state())
    free, total = cuda.mem_get_info()
    assert free <= total == 32 << 20


@pytest.mark.usefixtures("translated")
def test_memory_statistics() -> None:
    cuda = torch.cuda
    before = cuda.memory_allocated()
    kept = torch.zeros(1 << 18, device="cuda")
    assert cuda.memory_allocated() == before + (1 << 20)
    gone = torch.zeros(1 << 20, device="cuda")
    del gone
    assert cuda.max_memory_allocated() >= before + (5 << 20)
    cuda.reset_peak_memory_stats()
    assert cuda.max_memory_allocated() == before + (1 << 20) == cuda.memory_stats()["allocated_bytes.all.peak"]
    assert cuda.memory_reserved() >= cuda.memory_allocated()
    assert f"allocated_bytes.all.current: {cuda.memory_allocated():,}" in cuda.memory_summary()
    assert cuda.memory_stats_as_nested_dict()["allocation"]["all"]["allocated"] >= 2
    cuda.reset_accumulated_memory_stats()
    assert cuda.memory_stats()["allocation.all.allocated"] == cuda.memory_stats()["num_ooms"] == 0
    assert kept.numel() == 1 << 18


def test_the_profile_and_the_script_each_have_their_peaks() -> None:
    model = nn.Linear(8, 8)
    with ScriptRun(EmulatedDevice(capacity="32MiB"), None, "advise", "script.py") as watched:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _step in range(2):
            torch.zeros(1 << 20, device="cuda")
            torch.cuda.reset_peak_memory_stats()  # in the midst of the step
            model(torch.zeros(2, 8, device="cuda")).sum().backward()
            optimizer.step()  # the profile's peaks begin again
            assert 0 < torch.cuda.max_memory_allocated() < 4 << 20
        assert watched.profile().memory.requested_peak_bytes >= 4 << 20


@pytest.mark.usefixtures("translated")
def test_autocast_is_the_cpus() -> None:
    matrix = torch.ones(4, 4, device="cuda")
    for context, dtype in (
        (torch.autocast("cuda"), torch.float16),
        (torch.autocast("cuda", dtype=torch.bfloat16), torch.bfloat16),
        (torch.amp.autocast(device_type="cuda", enabled=False), torch.float32),
    ):
        with context:
            assert (matrix @ matrix).dtype == dtype
            assert torch.is_autocast_enabled() == (dtype != torch.float32)
    with pytest.warns(FutureWarning), torch.cuda.amp.autocast():
        assert (matrix @ matrix).dtype == torch.float16 == torch.get_autocast_gpu_dtype()
    assert torch.amp.GradScaler().is_enabled()


@pytest.mark.usefixtures("translated")
def test_custom_functions_under_autocast() -> None:
    class Single(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
        def forward(_ctx: Any, matrix: torch.Tensor) -> torch.Tensor:
            return matrix @ matrix

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient

    with torch.autocast("cuda"):
        assert Single.apply(torch.ones(4, 4, device="cuda").half()).dtype == torch.float32


@pytest.mark.usefixtures("translated")
def test_branches_close_over_tensors_and_name_devices() -> None:
    given, closed_over = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    taken = torch.cond(given.sum() > -1e9, lambda x: x.sin() @ closed_over, lambda x: x @ closed_over, (given,))
    taken.sum().backward()
    assert torch.equal(closed_over.grad, given.detach().sin().t() @ torch.ones(4, 4))
    named = torch.cond(
        given.sum() > -1e9, lambda x: x.cuda() + torch.ones(4, device="cuda"), torch.neg, (given.detach(),)
    )
    assert torch.equal(named, given.detach() + 1)


@pytest.mark.usefixtures("translated")
def test_files(tmp_path: Path) -> None:
    torch.save({"weight": torch.arange(4.0, device="cuda"), "on host": torch.ones(2).cpu()}, tmp_path / "kept.pt")
    for map_location in ("cuda", torch.device("cuda:0"), {"cpu": "cuda"}, lambda storage, _: storage.cuda()):
        loaded = torch.load(tmp_path / "kept.pt", map_location=map_location)
        assert umadvise.on_device(loaded["weight"])
        assert torch.equal(loaded["weight"], torch.arange(4.0))
    for map_location in (None, "cpu", lambda storage, _: storage):
        assert not umadvise.on_device(torch.load(tmp_path / "kept.pt", map_location=map_location)["weight"])
    torch.jit.save(torch.jit.script(nn.Linear(4, 2)), tmp_path / "script.pt")
    for map_location, there in (("cuda", True), (torch.device("cuda:0"), True), ("cpu", False), (None, False)):
        scripted = torch.jit.load(tmp_path / "script.pt", map_location=map_location)
        assert umadvise.on_device(scripted.weight) == there
        assert scripted(torch.ones(3, 4)).shape == (3, 2)


@pytest.mark.usefixtures("translated")
def test_lazy_modules_move_before_they_have_shapes() -> None:
    for move in (lambda lazy: lazy.to("cuda"), lambda lazy: lazy.cuda(), lambda lazy: lazy.to(ON_DEVICE)):
        model = move(nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d()))
        model(torch.ones(2, 3, device="cuda")).sum().backward()
        assert all(umadvise.on_device(each) for each in model.state_dict().values())


@pytest.mark.parametrize(
    "ask", [lambda _: torch.empty(8 << 20, device="cuda"), lambda file: torch.load(file, map_location="cuda")]
)
def test_too_little_memory_is_known_by_torchs_words(ask: Callable[[Path], Any], tmp_path: Path) -> None:
    """Programs try again with a smaller batch if an error's text says so."""
    torch.save(torch.ones(8 << 20), tmp_path / "large.pt")
    device = umadvise.EmulatedDevice(capacity="16MiB")
    with umadvise.session([], device=device, policy="resident", cuda_spellings=True):
        with pytest.raises(torch.OutOfMemoryError) as refused:
            ask(tmp_path / "large.pt")
        assert should_reduce_batch_size(refused.value)


REFUSALS: dict[str, Callable[[], Any]] = {
    "cuda:1": lambda: torch.zeros(2, device="cuda:1"),
    "cuda:2": lambda: torch.cuda.set_device(2),
    "torch.cuda.CUDAGraph": lambda: torch.cuda.CUDAGraph(),
    "torch.cuda.make_graphed_callables": lambda: torch.cuda.make_graphed_callables(None, ()),
    "torch.cuda.nccl.all_reduce": lambda: torch.cuda.nccl.all_reduce([]),
    "cuda:4": lambda: torch.cuda.comm.broadcast(torch.ones(2), [0, 4]),
    "torch.cuda.MemPool": lambda: torch.cuda.MemPool(),
    "CUDA C\\+\\+": lambda: cpp_extension.load("kernel", ["kernel.cpp", "kernel.cu"]),
    "an extension in CUDA": lambda: cpp_extension.CUDAExtension("kernel", ["kernel.cu"]),
    "Triton": lambda: importlib.import_module("triton"),
    "cuda:3": lambda: nn.DataParallel(nn.Linear(2, 2), device_ids=[0, 3]),
    "generator": lambda: torch.cuda.set_rng_state(torch.zeros(16, dtype=torch.uint8)),
    "interprocess": lambda: torch.cuda.Event(interprocess=True),
    "traceback": lambda: torch.cuda._lazy_init(),
}


@pytest.mark.parametrize("name", REFUSALS)
@pytest.mark.usefixtures("translated")
def test_what_is_refused(name: str) -> None:
    with pytest.raises(
        UntranslatedError, match=rf"(?s){name}.* cannot be used on the emulated device: .+; .+"
    ) as error:
        REFUSALS[name]()
    assert error.value.exit_code == 1


@pytest.mark.usefixtures("translated")
def test_triton_may_be_asked_for() -> None:
    with pytest.raises(ImportError):
        importlib.import_module("triton")
    importlib.util.find_spec("triton")


def test_process_groups_outlive_what_else_holds_them(tmp_path: Path) -> None:
    with ScriptRun(EmulatedDevice(capacity="32MiB"), None, "advise", "script.py"):
        store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
        torch.distributed.init_process_group("nccl", store=store, rank=0, world_size=1)
        group = weakref.ref(torch.distributed.distributed_c10d._get_default_group())
        torch.distributed.destroy_process_group()
        assert not torch.distributed.is_initialized()
        assert group() is not None
    assert group() is None


def test_nothing_is_left_behind() -> None:
    def present() -> dict[str, dict[str, Any]]:
        owners = [torch.Tensor, torch.nn.Module, torch.UntypedStorage, torch.TypedStorage, torch.amp.GradScaler]
        owners += [torch.autocast, torch.nn.DataParallel, torch.utils._device.DeviceContext, torch._C]
        owners += [torch.utils.data.dataloader._BaseDataLoaderIter, torch.utils.data.dataloader]
        owners += [module for name, module in sys.modules.items() if name == "torch" or name.startswith("torch.")]
        return {repr(owner): dict(vars(owner)) for owner in owners}

    script_names, finders = dict(_builtins._get_builtin_table()), list(sys.meta_path)
    importlib.import_module("torch.cuda.tunable")
    before = present()
    with ScriptRun(EmulatedDevice(capacity="32MiB"), None, "advise", "script.py"):
        assert torch.cuda.is_available()
    after = present()
    assert {owner for owner, attributes in before.items() if after[owner].keys() != attributes.keys()} == set()
    changed = [
        (owner, name)
        for owner, attributes in before.items()
        for name, value in attributes.items()
        if after[owner][name] is not value
    ]
    assert changed == []
    assert (_builtins._get_builtin_table(), sys.meta_path) == (script_names, finders)
    with pytest.raises(RuntimeError, match="accelerator"):
        torch.device(0)
