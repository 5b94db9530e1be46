"""Memory that torch, an extension or the kernel fills outside of any op: never lost, wherever the tensor is."""

import ctypes
import functools
import io
import os
import socket
from collections.abc import Callable, Iterator

import pytest
import torch
from pairwise import by_turns

import umadvise
from umadvise import _native
from umadvise.torch_seam import runtime

POLICIES = ["resident", "advise", "window", "swap", "swap+recompute", "lru", "auto"]
MORE_POLICIES = ["window", "swap+recompute", "lru", "auto"]
COUNT = 270_000
"""Elements of what is made: more than half a chunk of 2 MiB in any dtype but bool."""
MIB = 1 << 20

Make = Callable[[], torch.Tensor]


@functools.cache
def numbers(count: int = COUNT) -> list[float]:
    return [float(index % 251) for index in range(count)]


def by_index(make: Callable[[torch.Tensor], torch.Tensor]) -> Make:
    return lambda: make(torch.arange(COUNT, dtype=torch.float32))


def set_by_list() -> torch.Tensor:
    x = torch.zeros(COUNT)
    x[list(range(COUNT))] = torch.arange(COUNT, dtype=torch.float32)
    return x


def two_lists() -> torch.Tensor:
    x = torch.arange(COUNT, dtype=torch.float32).reshape(2, -1)
    indices = list(range(COUNT // 2))
    return x[[index % 2 for index in indices], indices]


def conjugated(part: Callable[[torch.Tensor], torch.Tensor]) -> Make:
    """Torch's fallback for conjugated and negated views copies `self`, in an op that touches nothing."""

    def make() -> torch.Tensor:
        x = torch.complex(torch.arange(COUNT, dtype=torch.float32), torch.ones(COUNT))
        push_out()
        return x.real + part(x).numel()

    return make


SPELLINGS: dict[str, Make] = {
    "tensor": lambda: torch.tensor(numbers()),
    "tensor, nested": lambda: torch.tensor([numbers(COUNT // 4)] * 4),
    "tensor, integers": lambda: torch.tensor(list(range(COUNT))),
    "as_tensor": lambda: torch.as_tensor(numbers()),
    "asarray": lambda: torch.asarray(numbers()),
    "FloatTensor": lambda: torch.FloatTensor(numbers()),
    "LongTensor": lambda: torch.LongTensor(list(range(COUNT))),
    "FloatTensor of a storage": lambda: torch.FloatTensor(torch.FloatStorage(numbers())),
    "new_tensor": lambda: torch.zeros(3).new_tensor(numbers()),
    "a list as index": by_index(lambda x: x[list(range(0, COUNT, 1))]),
    "a range as index": by_index(lambda x: x[range(COUNT)]),
    "bools as index": by_index(lambda x: x[[index % 5 != 0 for index in range(COUNT)]]),
    "two lists as index": two_lists,
    "assignment by a list": set_by_list,
    "sparse_coo_tensor": lambda: (
        torch.sparse_coo_tensor([list(range(COUNT // 2))], numbers(COUNT // 2), (COUNT,)).coalesce().values() * 1
    ),
    "new_empty of conj": conjugated(lambda x: x.conj().new_empty(COUNT)),
    "new_empty of conj().imag": conjugated(lambda x: x.conj().imag.new_empty(COUNT)),
    "vdot": conjugated(lambda x: torch.vdot(x, x).real.reshape(1)),
    "dot of conj": conjugated(lambda x: torch.dot(x.conj(), x).real.reshape(1)),
    "mm of conj": conjugated(lambda x: x.conj().reshape(2, -1) @ x.reshape(-1, 2)),
}


def push_out() -> None:
    """Uses more than the budget, so that everything else leaves."""
    others = [torch.full((MIB,), 7.0) for _ in range(6)]
    for other in others:
        other.add_(1)


@pytest.fixture(params=POLICIES)
def opened(request: pytest.FixtureRequest) -> Iterator[str]:
    model = torch.nn.Linear(2, 2)
    capacity = "256MiB" if request.param == "resident" else "24MiB"
    with umadvise.session(model, device="emulated", capacity=capacity, policy=request.param):
        yield request.param


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_what_torch_fills_by_itself_is_kept(spelling: str) -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        expected = SPELLINGS[spelling]()
    rung = [*SPELLINGS].index(spelling)
    for policy in ("advise", "swap", MORE_POLICIES[rung % len(MORE_POLICIES)]):  # pages, chunks, and a rung of either
        with umadvise.session(torch.nn.Linear(2, 2), device="emulated", capacity="24MiB", policy=policy):
            # Where memory of the same size was freed before, and where none was.
            found = [SPELLINGS[spelling]() for _ in range(2)]
            push_out()
            for each in found:
                assert umadvise.on_device(each)
                assert torch.equal(each, expected), policy
                each.mul_(2)
                push_out()
                assert torch.equal(each, expected * 2), policy


def address_without_door(tensor: torch.Tensor) -> int:
    """What `data_ptr<T>()` gives to an extension in C++: nothing of ours is asked."""
    return runtime.address_of(tensor)


def test_what_torch_copies_for_its_shape_is_there() -> None:
    """Its fallback for conjugated and negated views does, which on a GPU nobody can see."""
    with umadvise.session(torch.nn.Linear(2, 2), device="emulated", capacity="24MiB", policy="swap") as um:
        x = torch.complex(torch.ones(COUNT), torch.ones(COUNT))
        for view in (x.conj(), x.conj().imag):
            for make in (
                torch.empty_like,
                torch.zeros_like,
                torch.randn_like,
                lambda y: y.new_empty(3),
                lambda y: y.new_ones(3),
            ):
                push_out()
                before = um.swap_counters().swap_ins
                assert make(view).numel() in (3, COUNT)
                assert um.swap_counters().swap_ins > before


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr])
def test_the_parts_of_a_sparse_tensor_are_there_for_its_ops(layout: torch.layout) -> None:
    indices = 1 if layout is torch.sparse_coo else 2  # small integers stay

    def push_all_out() -> None:
        torch.empty((64 - 2 * indices) * MIB, dtype=torch.uint8).zero_()

    blocks = {"blocksize": (2, 2)} if layout is torch.sparse_bsr else {}
    device = umadvise.EmulatedDevice("64MiB", small="leave")
    with umadvise.session(torch.nn.Linear(2, 2), device=device, policy="swap") as um:
        sparse = torch.eye(6).to_sparse(layout=layout, **blocks)
        ones = torch.ones(6, 2)
        for work, expected in ((sparse.to_dense, torch.eye(6)), (lambda: sparse @ ones, torch.ones(6, 2))):
            push_all_out()
            before = um.swap_counters()
            assert torch.equal(work(), expected)
            assert um.swap_counters().swap_ins >= before.swap_ins + 2


@pytest.mark.usefixtures("opened")
def test_an_extension_fills_what_it_made() -> None:
    tensors = []
    for value in range(1, 9):
        made = torch.empty(4 * MIB, dtype=torch.uint8)
        ctypes.memset(address_without_door(made), value, made.numel())
        tensors.append(made)
    push_out()
    for value, made in enumerate(tensors, 1):
        assert bool((made == value).all())


@pytest.mark.usefixtures("opened")
def test_an_extension_writes_to_what_it_was_given() -> None:
    x = torch.zeros(4 * MIB, dtype=torch.uint8)
    for value in range(1, 5):
        push_out()
        assert x.min() == x.max() == value - 1  # it came, and is clean where it is swapped
        ctypes.memset(address_without_door(x), value, x.numel())
        push_out()
        ctypes.memset(address_without_door(x) + 5, 0, 1)  # where it is now
        ctypes.memset(address_without_door(x) + 5, value, 1)
        assert ctypes.string_at(address_without_door(x) + 5, 1) == bytes([value])
    assert bool((x == 4).all())


def through_file(x: torch.Tensor, data: bytes, path: str) -> None:
    with open(path, "wb") as file:  # noqa: PTH123
        file.write(data)
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        assert file.readinto(memoryview(x.numpy())) == len(data)


def through_pipe(x: torch.Tensor, data: bytes, _path: str) -> None:
    reading, writing = os.pipe()
    view, done = memoryview(x.numpy()), 0
    while done < len(data):
        sent = os.write(writing, data[done : done + 4096])
        done += os.readv(reading, [view[done : done + sent]])
    os.close(reading)
    os.close(writing)


def through_socket(x: torch.Tensor, data: bytes, _path: str) -> None:
    one, other = socket.socketpair()
    view, done = memoryview(x.numpy()), 0
    while done < len(data):
        one.sendall(data[done : done + 4096])
        done += other.recv_into(view[done:], min(4096, len(data) - done))
    one.close()
    other.close()


def through_pointer(x: torch.Tensor, data: bytes, path: str) -> None:
    with open(path, "wb") as file:  # noqa: PTH123
        file.write(data)
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(path, os.O_RDONLY)
    assert libc.read(descriptor, ctypes.c_void_p(x.data_ptr()), ctypes.c_size_t(len(data))) == len(data)
    os.close(descriptor)


def written_out(x: torch.Tensor) -> bytes:
    file = io.BytesIO()
    file.write(x.numpy())
    return file.getvalue()


WAYS = (through_file, through_pipe, through_socket, through_pointer)
CASES = [*by_turns(POLICIES, WAYS), *by_turns(POLICIES, WAYS[2:] + WAYS[:2])]  # each way in pages and in chunks


@pytest.mark.parametrize(("opened", "way"), dict.fromkeys(CASES), indirect=["opened"])
@pytest.mark.usefixtures("opened")
def test_system_calls_read_and_write(way: Callable[[torch.Tensor, bytes, str], None], tmp_path: object) -> None:
    data = bytes(range(251)) * (3 * MIB // 502)  # 1.5 MiB: more than half a chunk
    x = torch.zeros(len(data), dtype=torch.uint8)
    push_out()
    way(x, data, f"{tmp_path}/data")
    push_out()
    assert bytes(x.tolist()) == data
    assert written_out(x) == data
    with open(f"{tmp_path}/out", "wb", buffering=0) as file:  # noqa: PTH123
        assert file.write(memoryview(x.numpy())) == len(data)
    fresh = torch.empty(len(data), dtype=torch.uint8)
    way(fresh, data, f"{tmp_path}/data")
    push_out()
    assert torch.equal(fresh, x)


def test_a_batch_made_of_lists_trains_as_it_does_without() -> None:
    row = [float(index % 17) for index in range(1017)]

    def losses(policy: str | None) -> list[str]:
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(1000, 600), torch.nn.ReLU(), torch.nn.Linear(600, 10))
        optimizer = torch.optim.Adam(model.parameters())
        seen = []

        def step(number: int) -> None:
            rows = [row[index * number % 17 :][:1000] for index in range(280)]  # more than half a chunk
            loss = torch.nn.functional.cross_entropy(model(torch.tensor(rows)), torch.arange(280) % 10)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(loss.item().hex())

        if policy is None:
            for number in range(1, 7):
                step(number)
            return seen
        room = {"capacity": "64MiB", "budget": "20MiB"}
        with umadvise.session(model, optimizer, device="emulated", policy=policy, **room) as um:
            for number in range(1, 7):
                with um.step():
                    step(number)
        return seen

    expected = losses(None)
    for policy in ["advise", "window", "swap", "lru", "auto"]:
        assert losses(policy) == expected, policy


def test_unannounced_writes_are_counted() -> None:
    with umadvise.session(torch.nn.Linear(2, 2), device="emulated", capacity="24MiB", policy="swap"):
        x = torch.zeros(MIB)
        push_out()
        x.sum()
        device: _native.Device = runtime.current().device
        before = device.swap_counters()
        ctypes.memset(address_without_door(x), 0, 4)
        assert device.swap_counters().silent_writes == before.silent_writes + 1
        push_out()  # where it is then anybody may write
        ctypes.memset(address_without_door(x), 1, 4)
        assert device.swap_counters().silent_writes == before.silent_writes + 1
        assert x.count_nonzero() == 1
