"""The two changed lines: every form of `.to`, `.cuda` and `.cpu`; roles and advice; what stays torch's own."""

import copy
import threading
from collections.abc import Callable

import pytest
import torch
from small_networks import bits
from torch import nn

import umadvise
from umadvise import _native
from umadvise._native.abi import Allocation, Memory
from umadvise.errors import DeviceUnavailableError, InvalidAdviceError, InvalidSizeError, StateError, UsageError
from umadvise.records.enums import Advice, Role

Patch = Callable[..., _native.Device]
Find = Callable[[torch.Tensor], Allocation | None]


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.stride() == other.stride() and torch.equal(bits(one), bits(other))


# ---- Tensor.to, .cuda, .cpu ----------------------------------------------------------------------------------------

# name: (the call, what torch makes of the same without a device)
INTO = {
    "word": (lambda t: t.to("cuda"), lambda t: t),
    "keyword": (lambda t: t.to(device="cuda"), lambda t: t),
    "index": (lambda t: t.to("cuda:0"), lambda t: t),
    "number": (lambda t: t.to(0), lambda t: t),
    "number by keyword": (lambda t: t.to(device=0), lambda t: t),
    "device": (lambda t: t.to(torch.device("cuda")), lambda t: t),
    "device with index": (lambda t: t.to(torch.device("cuda", 0)), lambda t: t),
    "device by keyword": (lambda t: t.to(device=torch.device("cuda:0")), lambda t: t),
    "advice": (lambda t: t.to("cuda:readmostly"), lambda t: t),
    "index and advice": (lambda t: t.to("cuda:0:readmostly"), lambda t: t),
    "dtype": (lambda t: t.to("cuda", torch.float64), lambda t: t.double()),
    "dtype by keyword": (lambda t: t.to("cuda", dtype=torch.int32), lambda t: t.int()),
    "dtype first by keyword": (lambda t: t.to(dtype=torch.half, device="cuda"), lambda t: t.half()),
    "no dtype": (lambda t: t.to("cuda", None), lambda t: t),
    "non_blocking": (lambda t: t.to("cuda", non_blocking=True), lambda t: t),
    "non_blocking by position": (lambda t: t.to("cuda", torch.float64, True), lambda t: t.double()),
    "copy": (lambda t: t.to("cuda", copy=True), lambda t: t),
    "copy by position": (lambda t: t.to("cuda", torch.float32, False, True), lambda t: t),
    "memory_format": (
        lambda t: t.to("cuda:prefetch", memory_format=torch.channels_last),
        lambda t: t.to(memory_format=torch.channels_last),
    ),
    "everything": (
        lambda t: t.to("cuda:0:accessby", torch.float64, True, True, memory_format=torch.channels_last),
        lambda t: t.double().to(memory_format=torch.channels_last),
    ),
    "cuda": (lambda t: t.cuda(), lambda t: t),
    "cuda index": (lambda t: t.cuda(0), lambda t: t),
    "cuda advice": (lambda t: t.cuda("cuda:readmostly"), lambda t: t),
    "cuda device": (lambda t: t.cuda(device=torch.device("cuda:0"), non_blocking=True), lambda t: t),
    "cuda memory_format": (
        lambda t: t.cuda(memory_format=torch.channels_last),
        lambda t: t.to(memory_format=torch.channels_last),
    ),
}


@pytest.mark.parametrize("form", INTO)
def test_moves_to_the_device(form: str, patched: Patch, allocation: Find) -> None:
    move, plain = INTO[form]
    x = torch.randn(2, 3, 4, 5)
    expected = plain(x)
    patched()
    moved = move(x)
    found = allocation(moved)
    assert found is not None
    assert found.role == Role.INPUT
    assert same(moved, expected)
    assert moved.data_ptr() != x.data_ptr()


@pytest.mark.parametrize(
    ("target", "advice"),
    [
        ("cuda", Advice.NONE),
        ("cuda:noadvise", Advice.NONE),
        ("cuda:preferredlocation", Advice.PREFERRED_LOCATION),
        ("cuda:accessby", Advice.ACCESSED_BY),
        ("cuda:readmostly", Advice.READ_MOSTLY),
        ("cuda:0:prefetch", Advice.PREFETCH),
        ("cuda:ReadMostly", Advice.READ_MOSTLY),
        ("cuda:accessed_by", Advice.ACCESSED_BY),
    ],
)
def test_advice_reaches_the_allocation(target: str, advice: Advice, patched: Patch, allocation: Find) -> None:
    patched()
    for moved in (torch.ones(100).to(target), torch.ones(100).cuda(target), nn.Linear(4, 4).to(target).weight):
        found = allocation(moved)
        assert found is not None
        assert found.advice == advice
        assert found.memory == Memory.MANAGED


def test_what_is_there_already_is_returned_itself(patched: Patch, allocation: Find) -> None:
    patched()
    x = torch.randn(10).to("cuda:readmostly")
    assert x.to("cuda") is x
    assert x.to("cuda:readmostly") is x
    assert x.cuda() is x
    assert x.to("cuda", torch.float32) is x
    copied = x.to("cuda", copy=True)
    assert copied is not x
    assert copied.data_ptr() != x.data_ptr()
    other = x.to("cuda:preferredlocation")
    found = allocation(other)
    assert found is not None
    assert found.advice == Advice.PREFERRED_LOCATION
    assert torch.equal(other, x)


OUT_OF = {
    "cpu": lambda t: t.cpu(),
    "cpu keyword": lambda t: t.cpu(memory_format=torch.preserve_format),
    "word": lambda t: t.to("cpu"),
    "device": lambda t: t.to(torch.device("cpu")),
    "keyword": lambda t: t.to(device="cpu", non_blocking=True),
    "copy": lambda t: t.to("cpu", copy=True),
}


@pytest.mark.parametrize("form", OUT_OF)
def test_moves_to_ordinary_memory(form: str, patched: Patch) -> None:
    patched()
    x = torch.randn(2, 3, 4, 5)
    inside = x.to("cuda")
    outside = OUT_OF[form](inside)
    assert not umadvise.on_device(outside)
    assert same(outside, x)
    outside.zero_()
    assert same(inside, x)


AWKWARD = {
    "strided": lambda: torch.randn(6, 8)[::2, 1::3],
    "expanded": lambda: torch.randn(1, 4).expand(3, 4),
    "transposed": lambda: torch.randn(3, 5, 7).permute(2, 0, 1),
    "offset": lambda: torch.randn(100)[17:60],
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "scalar": lambda: torch.tensor(3.5),
    "empty": lambda: torch.empty(0, 4),
    "one": lambda: torch.randn(1, 1, 1),
    "bool": lambda: torch.tensor([True, False, True]),
    "complex": lambda: torch.randn(5, dtype=torch.complex64),
    "conjugate": lambda: torch.randn(5, dtype=torch.complex64).conj(),
    "negative": lambda: torch.randn(5, dtype=torch.complex64).conj().imag,
    "half": lambda: torch.randn(33).half(),
    "sparse": lambda: torch.tensor([[0.0, 2.0], [3.0, 0.0]]).to_sparse(),
    "csr": lambda: torch.tensor([[0.0, 2.0], [3.0, 0.0]]).to_sparse_csr(),
}


@pytest.mark.parametrize("kind", AWKWARD)
def test_there_and_back(kind: str, patched: Patch) -> None:
    x = AWKWARD[kind]()
    patched()
    inside = x.to("cuda")
    back = inside.cpu()
    assert not umadvise.on_device(back)
    for moved in (inside, back):
        assert (moved.dtype, moved.shape, moved.layout) == (x.dtype, x.shape, x.layout)
        assert torch.equal(moved.to_dense().resolve_conj(), x.to_dense().resolve_conj())
    assert umadvise.on_device(inside) == (x.numel() > 0)
    if x.layout is torch.strided and x.dim() > 0:
        assert torch.equal(inside[..., :1].cpu(), x[..., :1])


def test_calls_that_name_no_device_are_torchs_own(patched: Patch) -> None:
    outside = torch.randn(4, 4)
    patched()
    inside = torch.randn(4, 4)
    assert outside.to(torch.float32) is outside
    assert inside.to(torch.float32) is inside
    assert outside.to(inside) is outside
    assert inside.to(outside) is inside
    assert inside.to(dtype=torch.float64).dtype is torch.float64
    assert inside.to(outside.double()).dtype is torch.float64
    assert umadvise.on_device(inside.to(torch.float64))
    assert inside.to(memory_format=torch.preserve_format) is inside
    assert inside.to(device=None, dtype=torch.int64).dtype is torch.int64
    assert inside.to("meta").is_meta
    assert outside.to("cpu") is outside
    assert outside.cpu() is outside
    with pytest.raises(NotImplementedError, match="meta"):
        inside.to("meta").to("cuda")
    with pytest.raises(RuntimeError, match="device"):
        inside.to("nonsense")
    with pytest.raises(TypeError):
        inside.to("cuda", wrong=True)


@pytest.mark.parametrize(
    "call",
    [
        lambda t: t.to("cuda:readmosty"),
        lambda t: t.to(device="cuda:0:fast"),
        lambda t: t.cuda("cuda:"),
        lambda _: nn.Linear(2, 2).to("cuda:x"),
        lambda _: torch.cuda.set_unified("cuda"),
    ],
)
def test_unknown_advice_lists_the_five(call: Callable[[torch.Tensor], object], patched: Patch) -> None:
    patched()
    words = "noadvise, preferredlocation, accessby, readmostly, prefetch"
    with pytest.raises(InvalidAdviceError, match=words):
        call(torch.ones(2))


@pytest.mark.parametrize(
    "call",
    [
        lambda t: t.to("cuda:1"),
        lambda t: t.to(1),
        lambda t: t.to(-1),
        lambda t: t.to(torch.device("cuda", 1)),
        lambda t: t.cuda(3),
        lambda t: t.to("cuda:1:readmostly"),
        lambda t: t.to("cuda:0:readmostly:0"),
        lambda t: t.to("cuda:readmostly:0"),
        lambda t: t.cuda("cpu"),
        lambda _: nn.Linear(2, 2).cuda(1),
        lambda _: nn.Linear(2, 2).to("cuda:0:prefetch:1"),
    ],
)
def test_a_device_that_is_not_there(call: Callable[[torch.Tensor], object], patched: Patch) -> None:
    patched()
    with pytest.raises(UsageError, match=r"not in use|cannot read device|names no CUDA device"):
        call(torch.ones(2))


def test_autograd_goes_through_both_ways(patched: Patch) -> None:
    patched()
    x = torch.randn(5, 5, requires_grad=True)
    inside = x.to("cuda:readmostly")
    assert inside.grad_fn is not None
    assert not inside.is_leaf
    outside = (inside * inside).cpu()
    assert not umadvise.on_device(outside)
    (outside * 3.0).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, 6.0 * x)
    twice = torch.autograd.grad(torch.autograd.grad((x.to("cuda").cpu() ** 3).sum(), x, create_graph=True)[0].sum(), x)
    assert torch.allclose(twice[0], 6.0 * x)
    with torch.no_grad():
        assert not x.to("cuda", copy=True).requires_grad
    assert x.detach().to("cuda").is_leaf


@pytest.mark.parametrize("pin_memory", [False, True])
def test_what_autograd_saves_on_the_cpu_is_in_ordinary_memory(patched: Patch, *, pin_memory: bool) -> None:
    device = patched()
    x = torch.randn(64, 64)
    inside = x.to("cuda").requires_grad_()
    with torch.autograd.graph.save_on_cpu(pin_memory):
        result = inside.exp().sin()
    assert device.info().live_allocations == 2  # inside, and the result
    (gradient,) = torch.autograd.grad(result.sum(), inside)
    assert same(gradient, x.exp().cos() * x.exp())


# ---- Module.to -----------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embedding.weight
        self.norm = nn.BatchNorm1d(4)


MODULE_INTO = {
    "word": lambda m: m.to("cuda"),
    "keyword": lambda m: m.to(device="cuda:preferredlocation"),
    "device": lambda m: m.to(torch.device("cuda:0")),
    "number": lambda m: m.to(0),
    "cuda": lambda m: m.cuda(),
    "cuda number": lambda m: m.cuda(0),
    "cuda advice": lambda m: m.cuda("cuda:readmostly"),
    "non_blocking": lambda m: m.to("cuda", non_blocking=True),
}


@pytest.mark.parametrize("form", MODULE_INTO)
def test_modules_keep_their_parameters(form: str, patched: Patch, allocation: Find) -> None:
    patched()
    model = Tied()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    parameters = dict(model.named_parameters())
    values = copy.deepcopy(model.state_dict())
    assert MODULE_INTO[form](model) is model
    assert {name: id(found) for name, found in model.named_parameters()} == {
        name: id(found) for name, found in parameters.items()
    }
    assert model.head.weight is model.embedding.weight
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, values[name])
        found = allocation(tensor)
        assert found is not None
        assert found.role == Role.PARAMETER
        assert found.name == ("embedding.weight" if name == "head.weight" else name)
    assert all(umadvise.on_device(parameter.grad) for parameter in model.parameters())
    assert model.cpu() is model
    assert model.head.weight is model.embedding.weight is parameters["embedding.weight"]
    for name, tensor in model.state_dict().items():
        assert not umadvise.on_device(tensor)
        assert torch.equal(tensor, values[name])


def test_modules_convert_floating_point_alone(patched: Patch) -> None:
    patched()
    model = Tied().to("cuda", torch.float64)
    assert model.norm.running_mean is not None
    assert model.norm.running_mean.dtype is torch.float64
    assert model.norm.num_batches_tracked is not None
    assert model.norm.num_batches_tracked.dtype is torch.int64
    assert model.to(torch.float16) is model
    assert model.head.weight.dtype is torch.float16
    assert model.to(torch.zeros((), dtype=torch.float32)) is model
    assert model.head.weight.dtype is torch.float32
    for wrong in (torch.int32, torch.bool):
        with pytest.raises(TypeError, match="floating point"):
            model.to("cuda", wrong)
        with pytest.raises(TypeError, match="floating point"):
            model.to(wrong)
    convolution = nn.Conv2d(3, 4, 3).to("cuda:readmostly", memory_format=torch.channels_last)
    assert convolution.weight.is_contiguous(memory_format=torch.channels_last)
    assert umadvise.on_device(convolution.weight)


# ---- set_unified, roles, policies ----------------------------------------------------------------------------------


def test_set_unified_is_for_new_intermediates(patched: Patch, allocation: Find) -> None:
    patched()

    def advice(tensor: torch.Tensor) -> tuple[int, int]:
        found = allocation(tensor)
        assert found is not None
        return found.role, found.advice

    before = torch.ones(100)
    weight = nn.Linear(4, 4).to("cuda").weight
    assert advice(before) == (Role.INTERMEDIATE, Advice.NONE)
    torch.cuda.set_unified("readmostly")
    after = torch.ones(100)
    assert advice(after) == (Role.INTERMEDIATE, Advice.READ_MOSTLY)
    assert advice(before) == (Role.INTERMEDIATE, Advice.NONE)
    assert advice(weight) == (Role.PARAMETER, Advice.NONE)
    assert advice(torch.ones(3).to("cuda", copy=True)) == (Role.INPUT, Advice.NONE)
    assert advice(nn.Linear(4, 4).to("cuda:prefetch").weight) == (Role.PARAMETER, Advice.PREFETCH)
    torch.cuda.set_unified("prefetch")
    assert advice(after + 1) == (Role.INTERMEDIATE, Advice.PREFETCH)
    torch.cuda.set_unified("noadvise")
    assert advice(before + 1) == (Role.INTERMEDIATE, Advice.NONE)


def test_explicit_advice_beats_policy(patched: Patch, allocation: Find) -> None:
    patched()
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[0].to("cuda:accessby")
    with umadvise.session(model, policy="advise"):
        found = [allocation(layer.weight) for layer in model]
        assert [allocation.advice for allocation in found if allocation] == [
            Advice.ACCESSED_BY,
            Advice.PREFERRED_LOCATION,
        ]
        moved = allocation(torch.ones(3).to("cuda:preferredlocation", copy=True))
        assert moved is not None
        assert moved.advice == Advice.PREFERRED_LOCATION
        torch.cuda.set_unified("accessby")
        intermediate = allocation(torch.ones(3))
        assert intermediate is not None
        assert intermediate.advice == Advice.ACCESSED_BY


# ---- patch and unpatch ---------------------------------------------------------------------------------------------


def test_unpatched_torch_is_torchs_own(patched: Patch) -> None:
    methods = ("to", "cuda", "cpu", "numpy", "data_ptr", "__dlpack__")
    before = [torch.Tensor.__dict__.get(name) for name in methods], dict(torch.nn.Module.__dict__)
    patched()
    assert torch.Tensor.__dict__.get("to") is not before[0][0]
    umadvise.unpatch()
    assert ([torch.Tensor.__dict__.get(name) for name in methods], dict(torch.nn.Module.__dict__)) == before
    assert not hasattr(torch.cuda, "set_unified")
    assert not umadvise.on_device(torch.ones(3))
    with pytest.raises(RuntimeError, match="device string"):
        torch.ones(2).to("cuda:readmostly")


def test_patch_and_unpatch_out_of_turn(patched: Patch) -> None:
    for call in (umadvise.unpatch, umadvise.memory_stats, umadvise.read_counters):
        with pytest.raises(StateError, match="patch"):
            call()
    patched()
    kept = torch.ones(4)
    with pytest.raises(StateError, match="unpatch"):
        umadvise.patch(device="emulated")
    with pytest.raises(StateError, match="unpatch"), umadvise.session(nn.Linear(2, 2), device="emulated"):
        pass
    assert umadvise.on_device(torch.ones(2))
    umadvise.unpatch()
    with pytest.raises(StateError):
        umadvise.unpatch()
    assert umadvise.on_device(kept)
    assert torch.equal(kept * 2, torch.full((4,), 2.0))


def test_tensors_of_an_earlier_device_move_to_the_present_one(patched: Patch, allocation: Find) -> None:
    patched("16MiB")
    model, x = nn.Linear(4, 4).to("cuda"), torch.ones(2, 4).to("cuda")
    umadvise.unpatch()
    second = patched("32MiB")
    assert torch.equal(x + torch.ones(2, 4), torch.full((2, 4), 2.0))  # two devices in one op
    moved = x.to("cuda")
    assert moved is not x
    for tensor in (moved, model.to("cuda").weight):
        found = allocation(tensor)
        assert found is not None
        assert found.device == second.handle
    assert x.cpu().tolist() == [[1.0] * 4] * 2


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"device": "gpu"}, UsageError, "unknown device 'gpu'"),
        ({"device": "emulated:0"}, UsageError, "unknown device"),
        ({"device": "cuda:x"}, UsageError, "unknown device"),
        ({"device": "emulated", "budget": "8 apples"}, InvalidSizeError, "apples"),
        ({"device": umadvise.EmulatedDevice(capacity="1EiB")}, umadvise.errors.UmadviseError, "EiB|memory"),
        ({"device": umadvise.EmulatedDevice(capacity="15.9MiB")}, InvalidSizeError, "at least 16.00 MiB"),
        ({"device": umadvise.EmulatedDevice(counting="exact")}, UsageError, "ordered"),
        ({"device": umadvise.EmulatedDevice(small="slow")}, UsageError, "leave"),
        ({"device": umadvise.EmulatedDevice(delays=-1)}, UsageError, "delays"),
        ({"device": umadvise.EmulatedDevice(fail_call=("cuNothing", 1))}, umadvise.errors.UmadviseError, "cuNothing"),
    ],
)
def test_bad_arguments(arguments: dict[str, object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        umadvise.patch(**arguments)  # type: ignore[arg-type]
    with pytest.raises(StateError):
        umadvise.unpatch()
    assert not umadvise.on_device(torch.ones(2))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
@pytest.mark.parametrize("device", ["auto", "cuda", "cuda:0"])
def test_no_gpu_names_both_ways_out(device: str) -> None:
    with pytest.raises(DeviceUnavailableError, match=r"GPU with its driver.*emulated"):
        umadvise.patch(device=device)


def test_threads_that_are_not_switched_on_get_ordinary_memory(patched: Patch) -> None:
    patched()
    made: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: made.append(torch.ones(1000)))
    thread.start()
    thread.join()
    assert not umadvise.on_device(made[0])
    assert umadvise.on_device(torch.ones(1000))
    assert torch.equal(made[0] + torch.ones(1000), torch.full((1000,), 2.0))


def test_unpatched_by_another_thread(patched: Patch) -> None:
    patched()
    thread = threading.Thread(target=umadvise.unpatch)
    thread.start()
    thread.join()
    assert not umadvise.on_device(torch.ones(10) * 2)
    patched()
    assert umadvise.on_device(torch.ones(10) * 2)


def test_statistics_without_a_session(patched: Patch) -> None:
    patched(capacity="32MiB")
    x = torch.ones(1 << 20)
    stats = umadvise.memory_stats()
    assert stats.requested_bytes == stats.requested_by_role.intermediate == 4 << 20
    y = x.neg()  # two blocks of 2 MiB each
    assert umadvise.read_counters().fault_groups == 4
    assert y.sum().item() == -(1 << 20)


def test_cuda_in_a_factory_names_the_ways_that_work() -> None:
    umadvise.patch(device="emulated")
    try:
        for make in (lambda: torch.ones(2, device="cuda"), lambda: torch.nn.Linear(2, 2, device="cuda")):
            with pytest.raises(umadvise.errors.UntranslatedError, match=r"`umadvise run --device emulated`") as raised:
                make()
            assert "um.to_device(batch)" in str(raised.value)
        assert umadvise.on_device(torch.ones(2).to("cuda"))
    finally:
        umadvise.unpatch()
    with pytest.raises((AssertionError, RuntimeError), match="CUDA"):
        torch.ones(2, device="cuda")
