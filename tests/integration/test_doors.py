"""The doors: files, pipes, numpy, DLPack, raw addresses. The kernel and foreign code must find pages that are there."""

import copy
import ctypes
import gc
import io
import mmap
import multiprocessing
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from huggingface_hub import split_torch_state_dict_into_shards
from small_networks import same_bits
from torch import nn

import umadvise
from umadvise import _native
from umadvise.errors import BudgetError
from umadvise.torch_seam import runtime
from umadvise.training.session import Session

MIB = 1 << 20
CAPACITY_BYTES = 32 * MIB


@pytest.fixture
def device(patched: Callable[..., _native.Device]) -> _native.Device:
    return patched(CAPACITY_BYTES)


def tensor_of(size_bytes: int) -> torch.Tensor:
    """Bytes 0 to 250 again and again, on the device."""
    tensor = torch.arange(size_bytes, dtype=torch.int64).remainder_(251).to(torch.uint8)
    assert umadvise.on_device(tensor)
    return tensor


def push_out() -> None:
    """Fills the device with something else, so that all that can leave it has left."""
    torch.ones(CAPACITY_BYTES - 4 * MIB, dtype=torch.uint8).add_(1)


@pytest.fixture
def pushed_out(device: _native.Device) -> tuple[torch.Tensor, bytes]:
    """A tensor that lies in the host tier, and its bytes."""
    tensor = tensor_of(5 * MIB + 100)
    push_out()
    assert device.memory().host_bytes > 0
    return tensor, bytes(i % 251 for i in range(251)) * (5 * MIB // 251 + 2)


def expected_of(pushed_out: tuple[torch.Tensor, bytes]) -> bytes:
    tensor, pattern = pushed_out
    return pattern[: tensor.numel()]


def test_written_to_a_file(pushed_out: tuple[torch.Tensor, bytes], tmp_path: Path) -> None:
    tensor, _ = pushed_out
    descriptor = os.open(tmp_path / "bytes", os.O_RDWR | os.O_CREAT)
    assert os.write(descriptor, tensor.numpy()) == tensor.numel()
    os.close(descriptor)
    assert (tmp_path / "bytes").read_bytes() == expected_of(pushed_out)
    tensor.numpy().tofile(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == expected_of(pushed_out)


def test_read_from_a_file(pushed_out: tuple[torch.Tensor, bytes], tmp_path: Path) -> None:
    tensor, _ = pushed_out
    backwards = expected_of(pushed_out)[::-1]
    (tmp_path / "bytes").write_bytes(backwards)
    with (tmp_path / "bytes").open("rb", buffering=0) as file:
        assert file.readinto(tensor.numpy()) == len(backwards)
    push_out()  # what the kernel wrote must survive an eviction
    assert bytes(tensor.cpu().numpy()) == backwards


@pytest.mark.usefixtures("device")
def test_through_a_pipe() -> None:
    tensor = tensor_of(40_000)
    reading, writing = os.pipe()
    os.write(writing, tensor.numpy())
    back = torch.zeros(40_000, dtype=torch.uint8)
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        assert pipe.readinto(back.numpy()) == 40_000
    os.close(writing)
    assert torch.equal(back, tensor)


@pytest.mark.parametrize("zipped", [True, False])
def test_saved_and_loaded(zipped: bool, pushed_out: tuple[torch.Tensor, bytes], tmp_path: Path) -> None:
    tensor, _ = pushed_out
    saved = {"all": tensor, "view": tensor[1000:2000:3], "again": tensor, "weight": nn.Parameter(torch.randn(7, 7))}
    torch.save(saved, tmp_path / "file.pt", _use_new_zipfile_serialization=zipped)
    buffer = io.BytesIO()
    torch.save(saved, buffer, _use_new_zipfile_serialization=zipped)
    buffer.seek(0)
    loads = [torch.load(tmp_path / "file.pt"), torch.load(buffer)]
    if zipped:
        loads.append(torch.load(tmp_path / "file.pt", mmap=True))
    for loaded in loads:
        assert all(same_bits(loaded[name], saved[name]) for name in saved)
        assert loaded["all"].data_ptr() == loaded["again"].data_ptr()
        assert not any(umadvise.on_device(value) for value in loaded.values())
    assert tensor.sum().item() == sum(expected_of(pushed_out))


@pytest.mark.usefixtures("device")
def test_a_checkpoint_in_the_middle(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 4)).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(torch.linspace(-1, 1, 32 * 64).reshape(32, 64)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "file.pt")
    step()
    expected = copy.deepcopy(model.state_dict())
    loaded = torch.load(tmp_path / "file.pt")
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    assert all(map(umadvise.on_device, model.parameters()))
    step()
    assert all(same_bits(value, expected[name]) for name, value in model.state_dict().items())


def test_pickled(pushed_out: tuple[torch.Tensor, bytes]) -> None:
    tensor, _ = pushed_out
    back = pickle.loads(pickle.dumps(tensor))
    assert bytes(back.cpu().numpy()) == expected_of(pushed_out)
    view = pickle.loads(pickle.dumps(tensor[10:20]))
    assert torch.equal(view, tensor[10:20])


def _add_one(queue: "torch.multiprocessing.Queue[torch.Tensor]", answers: "torch.multiprocessing.Queue[int]") -> None:
    tensor = queue.get()
    tensor.add_(1)
    answers.put(int(tensor.sum()))


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_sent_to_another_process(method: str) -> None:
    context = torch.multiprocessing.get_context(method)
    queue, answers = context.Queue(), context.Queue()
    child = context.Process(target=_add_one, args=(queue, answers))
    child.start()
    tensor = torch.arange(1000)
    queue.put(tensor)
    assert answers.get(timeout=60) == 1000 * 999 // 2 + 1000
    child.join(60)
    assert child.exitcode == 0
    assert int(tensor.sum()) == 1000 * 999 // 2 + 1000  # it is shared memory now, as torch promises
    assert not umadvise.on_device(tensor)


@pytest.mark.usefixtures("device")
def test_pickled_through_a_plain_pipe() -> None:
    here, there = multiprocessing.Pipe()
    tensor = tensor_of(3000)
    here.send_bytes(pickle.dumps(tensor))
    here.send_bytes(memoryview(tensor.numpy()))
    assert torch.equal(pickle.loads(there.recv_bytes()), tensor)
    assert there.recv_bytes() == bytes(tensor.numpy())


def test_shared_memory(pushed_out: tuple[torch.Tensor, bytes]) -> None:
    tensor, _ = pushed_out
    view = tensor[5:10]
    assert tensor.share_memory_() is tensor
    assert tensor.is_shared()
    assert view.is_shared()
    assert not umadvise.on_device(tensor)
    assert bytes(tensor.numpy()) == expected_of(pushed_out)
    model = nn.Linear(5, 5).to("cuda").share_memory()
    assert model.weight.is_shared()


def test_dlpack(pushed_out: tuple[torch.Tensor, bytes]) -> None:
    tensor, _ = pushed_out
    for export in (np.from_dlpack, torch.from_dlpack, lambda t: torch.from_dlpack(torch.utils.dlpack.to_dlpack(t))):
        push_out()
        other = export(tensor)
        # The kernel reads through the address that the other library got.
        reading, writing = os.pipe()
        os.write(writing, memoryview(np.asarray(other))[:1000])
        assert os.read(reading, 1000) == expected_of(pushed_out)[:1000]
        os.close(reading)
        os.close(writing)
        other[0] += 1
        tensor[0] -= 1
        assert int(other[0]) == 0


def test_what_torch_takes_from_dlpack_stays_where_it_is() -> None:
    layer = nn.Linear(8, 8)
    device = umadvise.EmulatedDevice(64 * MIB)
    with umadvise.session(layer, torch.optim.SGD(layer.parameters()), device=device, policy="swap", budget=24 * MIB):
        sources = [torch.full((1 << 20,), float(number)) for number in range(3)]
        others = [torch.from_dlpack(source) for source in sources[:2]]
        others.append(torch.from_dlpack(torch.utils.dlpack.to_dlpack(sources[2])))
        found = [exports(source) for source in sources]
        views = [other[:5] for other in others]
        del others
        assert [exports(source) for source in sources] == found
        assert [float(view.mean()) for view in views] == [0.0, 1.0, 2.0]
        del views
        assert [exports(source) for source in sources] == [count - 1 for count in found]


@pytest.mark.parametrize(
    "address",
    [
        lambda t: t.data_ptr(),
        lambda t: t.const_data_ptr(),
        lambda t: t.untyped_storage().data_ptr(),
        lambda t: t.storage().data_ptr(),
        lambda t: t.numpy().ctypes.data,
        lambda t: np.asarray(t).ctypes.data,
    ],
    ids=["data_ptr", "const_data_ptr", "untyped_storage", "storage", "numpy", "asarray"],
)
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_raw_addresses(address: Callable[[torch.Tensor], int], pushed_out: tuple[torch.Tensor, bytes]) -> None:
    tensor, _ = pushed_out
    array = tensor.numpy()  # keeps the address good, where the call itself gives no owner
    del array
    pointer = address(tensor)
    assert ctypes.string_at(pointer, 5 * MIB) == expected_of(pushed_out)[: 5 * MIB]
    ctypes.memset(pointer, 7, 100)
    assert int(tensor[:100].sum()) == 700


def test_the_kernel_may_use_a_raw_address_at_any_time(pushed_out: tuple[torch.Tensor, bytes]) -> None:
    """`write(2)` on a page that left the device would fail with EFAULT: the export holds it there."""
    tensor, _ = pushed_out
    pointer = tensor.data_ptr()
    reading, writing = os.pipe()
    write = ctypes.CDLL(None, use_errno=True).write
    for _ in range(2):
        assert write(writing, ctypes.c_void_p(pointer), ctypes.c_size_t(1000)) == 1000
        assert os.read(reading, 1000) == expected_of(pushed_out)[:1000]
        push_out()
    os.close(reading)
    os.close(writing)


def test_reads_of_values(pushed_out: tuple[torch.Tensor, bytes]) -> None:
    tensor, _ = pushed_out
    expected = expected_of(pushed_out)
    push_out()
    assert tensor[1234].item() == expected[1234]
    assert tensor[2 * MIB : 2 * MIB + 50].tolist() == list(expected[2 * MIB : 2 * MIB + 50])
    assert int(tensor[-1]) == expected[-1]
    assert str(tensor[3 * MIB : 3 * MIB + 2].tolist()) in repr(tensor[3 * MIB : 3 * MIB + 2])
    assert f"{tensor[5]}" == "5"
    assert bool((tensor == tensor).all())
    assert list(tensor[:3]) == [0, 1, 2]
    assert tensor[:4].untyped_storage()[250] == 250
    assert hash(tensor) == id(tensor)
    other = copy.deepcopy(tensor)
    assert umadvise.on_device(other)
    assert torch.equal(other, tensor)
    assert torch.equal(copy.copy(tensor), tensor)


def test_copies_are_where_the_original_is_and_pin_nothing(device: _native.Device) -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16)).to("cuda")
    other = copy.deepcopy(model)
    pickle.dumps(model)
    torch.save(model.state_dict(), io.BytesIO())
    for name, tensor in other.state_dict().items():
        assert umadvise.on_device(tensor)
        assert same_bits(tensor, model.state_dict()[name])
    assert [allocation.exports for allocation in device.allocations() if allocation.exports] == []


@pytest.mark.usefixtures("device")
def test_numpy_keeps_its_own_rules() -> None:
    with pytest.raises(RuntimeError, match="requires grad"):
        torch.ones(3, requires_grad=True).numpy()
    assert torch.ones(3, requires_grad=True).numpy(force=True).tolist() == [1, 1, 1]
    assert torch.empty(0).numpy().size == 0
    array = torch.arange(10)[2:8:2].numpy()
    assert array.tolist() == [2, 4, 6]
    array[:] = 0
    outside = torch.from_numpy(np.arange(5))
    assert outside.numpy().tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(TypeError):
        torch.ones(3, dtype=torch.bfloat16).numpy()


# ---- what an export holds, and for how long ------------------------------------------------------------------------


def exports(tensor: torch.Tensor) -> int:
    found = _native.allocation_at(umadvise.torch_seam.runtime.address_of(tensor))
    assert found is not None
    return found.exports


@pytest.mark.usefixtures("device")
def test_a_pin_dies_with_its_array() -> None:
    first, second = tensor_of(18 * MIB), tensor_of(18 * MIB)
    array = first.numpy()
    view = array[5:10]
    with pytest.raises(BudgetError, match=r"\.cpu\(\)"):
        second.numpy()
    assert exports(second) == 0
    del array
    gc.collect()
    assert exports(first) == 1  # a view of the array is an array of its own on the same memory
    with pytest.raises(BudgetError):
        second.numpy()
    del view
    gc.collect()
    assert exports(first) == 0
    assert int(second.numpy()[-1]) == int(second[-1])


def test_a_pin_dies_with_its_storage(device: _native.Device) -> None:
    for _ in range(3):
        tensor = tensor_of(18 * MIB)
        tensor.data_ptr()
        tensor.data_ptr()
        del tensor
    assert device.allocations() == []
    assert tensor_of(18 * MIB).numpy().size == 18 * MIB


def test_addresses_of_more_than_the_device_holds(device: _native.Device) -> None:
    """As libraries save a model: one address after the other, each used at once and none given back."""
    tensors = [tensor_of(5 * MIB).add_(index) for index in range(12)]
    for index, tensor in enumerate(tensors):
        for pointer in (tensor.data_ptr(), tensor.const_data_ptr(), tensor.data_ptr()):
            assert ctypes.string_at(pointer, 3) == bytes([index, index + 1, index + 2])
        assert exports(tensor) == 1
    ended = device.memory_history().exports_ended
    assert ended >= 6
    array = tensors[0].numpy()  # room is made for those that can be followed too
    assert array[0] == 0
    assert exports(tensors[0]) == 2
    assert device.memory_history().exports_ended == ended + 1


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, session: Session | None) -> list[float]:
    """Losses of three steps; before each, every parameter's address leaves torch."""
    losses = []
    for index in range(3):
        for parameter in model.parameters():
            assert isinstance(parameter.data_ptr(), int)
        inputs = torch.linspace(-1, 1, 16 * 1024).reshape(16, 1024).roll(index)
        with session.step() if session is not None else nullcontext():
            loss = model(session.to_device(inputs) if session is not None else inputs).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    """24 MiB of parameters, 96 MiB with gradients and AdamW's state."""
    torch.manual_seed(4)
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(6)))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)


@pytest.mark.parametrize("policy", ["advise", "window", "swap", "swap+recompute", "swap:lru", "auto"])
def test_ops_find_room_where_every_address_is_out(policy: str, caplog: pytest.LogCaptureFixture) -> None:
    """As libraries do that look for tied weights: the parameters alone are more than the budget holds beside an op."""
    expected = trained(*made(), None)
    model, optimizer = made()
    device = umadvise.EmulatedDevice(capacity="22MiB")
    with (
        caplog.at_level("WARNING", "umadvise"),
        umadvise.session(model, optimizer, device=device, policy=policy) as session,
    ):
        losses = trained(model, optimizer, session)
        ended = runtime.current().device.memory_history().exports_ended
    assert losses == expected
    said = [record for record in caplog.records if "because memory ran out" in record.getMessage()]
    assert (ended > 0, len(said)) == (True, 1)


def test_safetensors_writes_more_than_the_device_holds(tmp_path: Path) -> None:
    """It asks for every address before it writes, and pins nothing: the model can leave the device with the session.

    So does what divides a model into files.
    """
    model, _ = made()
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    device = umadvise.EmulatedDevice(capacity="22MiB")
    with umadvise.session(model, device=device, policy="swap"):
        assert len(split_torch_state_dict_into_shards(model.state_dict()).filename_to_tensors) == 1
        safetensors.torch.save_file(model.state_dict(), tmp_path / "model.safetensors")
        written = safetensors.torch.load_file(tmp_path / "model.safetensors")
        assert all(torch.equal(written[name], tensor) for name, tensor in expected.items())
        assert sum(map(exports, model.parameters())) == 0
    assert not any(map(umadvise.on_device, model.parameters()))


@pytest.mark.usefixtures("device")
def test_larger_than_the_device(tmp_path: Path) -> None:
    tensor = torch.zeros(CAPACITY_BYTES + 8 * MIB, dtype=torch.uint8)
    tensor[::4096] = 3
    for door in (
        lambda: tensor.numpy(),
        lambda: tensor.data_ptr(),
        lambda: tensor.untyped_storage().data_ptr(),
        lambda: np.from_dlpack(tensor),
    ):
        with pytest.raises(BudgetError, match=r"^no room for a tensor whose address .*MiB.*\.cpu\(\)"):
            door()
    assert exports(tensor) == 0
    expected = 3 * (tensor.numel() // 4096)
    assert int(tensor.cpu().numpy().sum()) == expected
    torch.save(tensor, tmp_path / "large.pt")  # copies, and so needs no room on the device
    assert int(torch.load(tmp_path / "large.pt").sum()) == expected


@pytest.fixture
def large_file(tmp_path: Path) -> Iterator[mmap.mmap]:
    (tmp_path / "file").write_bytes(bytes(range(256)) * 1000)
    with (tmp_path / "file").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        yield mapped


@pytest.mark.usefixtures("device")
def test_memory_of_others_is_left_alone(large_file: mmap.mmap) -> None:
    foreign = torch.frombuffer(large_file, dtype=torch.uint8)
    assert not umadvise.on_device(foreign)
    assert foreign.data_ptr() == foreign.numpy().ctypes.data
    assert int((foreign[:256] + torch.zeros(256, dtype=torch.uint8)).to(torch.int64).sum()) == 255 * 128
    del foreign
    gc.collect()


def test_doors_of_survivors(patched: Callable[..., _native.Device], tmp_path: Path) -> None:
    """Tensors that outlive `unpatch()` have no doors any more: torch's own must still not hand out an absent page."""
    patched(CAPACITY_BYTES)
    tensor = tensor_of(5 * MIB)
    array = tensor_of(2 * MIB).numpy()
    push_out()
    umadvise.unpatch()
    assert int(tensor.to(torch.int64).sum()) == sum(i % 251 for i in range(5 * MIB))
    assert int(array.sum(dtype=np.int64)) == sum(i % 251 for i in range(2 * MIB))
    with (tmp_path / "array").open("wb") as file:
        array.tofile(file)
    assert (tmp_path / "array").read_bytes() == array.tobytes()


@pytest.mark.parametrize("subclass", [False, True])
def test_asking_where_a_tensor_is_pins_nothing(subclass: bool, device: _native.Device) -> None:
    class Tagged(torch.Tensor):
        pass

    tensor = tensor_of(MIB)
    if subclass:
        tensor = tensor.as_subclass(Tagged)
    with torch.device("cpu"):
        assert umadvise.on_device(tensor)
    assert [allocation.exports for allocation in device.allocations()] == [0]
