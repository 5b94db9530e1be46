"""The native interposer against its Python reference, on real training steps, and what it must be right about alone."""

import ctypes
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from reference_interposer import (
    ObservedAccess,
    ObservedOp,
    ReferenceInterposer,
    observed_natively,
    touched_tensors,
)
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from umadvise import _native
from umadvise.errors import NativeError
from umadvise.records.enums import Phase


class Observation:
    """One run of a training function: its ops, and the losses it returned."""

    def __init__(self) -> None:
        self.ops: list[ObservedOp] = []
        self.losses: list[torch.Tensor] = []
        self.set_phase: Callable[[Phase], object] = _native.set_phase


@contextmanager
def observing(observation: Observation, device: _native.Device, how: str) -> Iterator[None]:
    if how == "reference":
        with ReferenceInterposer() as reference:
            observation.set_phase = lambda phase: setattr(reference, "phase", phase)
            yield
        observation.ops = reference.observed
        return
    _native.interpose(device)
    _native.set_phase(Phase.FORWARD)
    device.record(True)
    yield
    device.record(False)
    _native.interpose(None)
    observation.ops = observed_natively(device.recorded())


# Where torch asks whether a Python mode is on and then avoids working in place: linear's bias, the accumulation of
# gradients (InputBuffer::accumulate), derivatives of indexing. The mode gets the out-of-place twin, and a fresh result.
OUT_OF_PLACE_TWINS = {"aten::add_.Tensor": "aten::add.Tensor", "aten::_index_put_impl_": "aten::index_put"}


def assert_same_stream(native: list[ObservedOp], reference: list[ObservedOp]) -> None:
    """Same ops, byte ranges and writes, phases and outputs; allocations may differ in number, not in identity.

    Two differences lie in Python modes themselves. The twins above are one; the other is that `torch.tensor` builds its
    result with Python modes off, so ops that only create memory are compared in a test of their own.
    """
    pairs = zip([op for op in native if not op.creates], [op for op in reference if not op.creates], strict=True)
    native_of: dict[int, int] = {0: 0}  # allocation of the reference run -> allocation of the native run

    def same(mine: int, theirs: int) -> bool:
        return native_of.setdefault(theirs, mine) == mine

    for place, (mine, theirs) in enumerate(pairs):
        told = f"op {place}:\n  native    {mine}\n  reference {theirs}"
        assert mine.phase == theirs.phase, told
        is_twin = OUT_OF_PLACE_TWINS.get(mine.name) == theirs.name
        assert mine.name == theirs.name or is_twin, told
        assert len(mine.accesses) == len(theirs.accesses), told
        for position, (access, other) in enumerate(zip(mine.accesses, theirs.accesses, strict=True)):
            assert same(access.allocation, other.allocation), told
            assert (access.offset_bytes, access.bytes) == (other.offset_bytes, other.bytes), told
            assert access.write == (other.write or (is_twin and position == 0)), told
        assert len(mine.outputs) == len(theirs.outputs), told
        assert all(map(same, mine.outputs, theirs.outputs)), told


Train = Callable[[Observation], None]


def optimize(observation: Observation, optimizer: torch.optim.Optimizer) -> None:
    observation.set_phase(Phase.OPTIMIZER)
    optimizer.step()
    optimizer.zero_grad()
    observation.set_phase(Phase.FORWARD)


def train_mlp(observation: Observation) -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        loss = functional.mse_loss(model(torch.randn(8, 16)), torch.zeros(8, 4))
        loss.backward()
        optimize(observation, optimizer)
        observation.losses.append(loss.detach())


def train_cnn(observation: Observation) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 5)
    )
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for _ in range(2):
        loss = functional.cross_entropy(model(torch.randn(4, 3, 8, 8)), torch.randint(5, (4,)))
        loss.backward()
        optimize(observation, optimizer)
        observation.losses.append(loss.detach())
    model.eval()
    with torch.no_grad():
        observation.losses.append(model(torch.randn(4, 3, 8, 8)).sum())
    with torch.inference_mode():
        observation.losses.append(model(torch.randn(4, 3, 8, 8)).sum())


def train_lstm(observation: Observation) -> None:
    embedding, lstm, head = nn.Embedding(50, 12), nn.LSTM(12, 16, num_layers=2), nn.Linear(16, 50)
    parameters = [*embedding.parameters(), *lstm.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1, foreach=True)
    for _ in range(2):
        tokens = torch.randint(50, (7, 3))
        hidden, _ = lstm(embedding(tokens))
        loss = functional.cross_entropy(head(hidden).flatten(0, 1), tokens.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimize(observation, optimizer)
        observation.losses.append(loss.detach())


def train_gru(observation: Observation) -> None:
    """Not compared: under a Python mode torch takes the cells apart in another way."""
    gru = nn.GRU(12, 16, num_layers=2)
    loss = gru(torch.randn(7, 3, 12))[0].square().sum()
    loss.backward()
    observation.losses.append(loss.detach())


def transformer() -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(16, 2, dim_feedforward=32, dropout=0.1, batch_first=True)


def train_transformer(observation: Observation) -> None:
    model = transformer()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for _ in range(2):
        loss = model(torch.randn(2, 6, 16)).square().mean()
        loss.backward()
        optimize(observation, optimizer)
        observation.losses.append(loss.detach())


def train_autocast(observation: Observation) -> None:
    model = transformer()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.randn(2, 6, 16)).float().square().mean()
        loss.backward()
        optimize(observation, optimizer)
        observation.losses.append(loss.detach())


def train_checkpointed(observation: Observation) -> None:
    first, second = transformer(), transformer()
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.01)
    for use_reentrant in (False, True):
        x = torch.randn(2, 6, 16, requires_grad=True)
        # Early stop raises from a saved-tensor hook: natively inside the op, for a Python mode outside it.
        with set_checkpoint_early_stop(False):
            hidden = checkpoint(first, x, use_reentrant=use_reentrant)
            loss = checkpoint(second, hidden, use_reentrant=use_reentrant).square().mean()
            loss.backward()
        optimize(observation, optimizer)
        observation.losses.append(loss.detach())


def train_accumulating(observation: Observation) -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(2):
        for _ in range(3):
            loss = functional.mse_loss(model(torch.randn(8, 16)), torch.zeros(8, 4)) / 3
            loss.backward()
            observation.losses.append(loss.detach())
        optimize(observation, optimizer)


def index_and_list_ops(observation: Observation) -> None:
    x = torch.randn(6, 5, requires_grad=True)
    rows = torch.tensor([0, 2, 4])
    picked = x[rows][:, torch.tensor([1, 3])]
    parts = torch.split(torch.cat([x, x * 2.0, x[1:3]]), 4)
    total = picked.sum() + torch.stack([part.sum() for part in parts]).sum() + torch.where(x > 0, x, -x).mean()
    total.backward()
    with torch.no_grad():
        x[1:4:2].add_(1.0)
        x.masked_fill_(x > 1, 0.0)
    observation.losses.append(total.detach())


TRAININGS: list[Train] = [
    train_mlp,
    train_cnn,
    train_lstm,
    train_transformer,
    train_autocast,
    train_checkpointed,
    train_accumulating,
    index_and_list_ops,
]


def observe(train: Train, device: _native.Device, how: str) -> Observation:
    torch.manual_seed(7)
    observation = Observation()
    with observing(observation, device, how):
        train(observation)
    return observation


@pytest.mark.parametrize("train", TRAININGS, ids=lambda train: train.__name__)
def test_equals_the_reference(train: Train, device: _native.Device, route: Callable[..., None]) -> None:
    route()
    native = observe(train, device, "native")
    reference = observe(train, device, "reference")
    assert_same_stream(native.ops, reference.ops)
    assert len(native.ops) > 20
    assert all(map(torch.equal, native.losses, reference.losses))


class SilentWrites(TorchDispatchMode):
    """Compares, before and after each op, the bytes of all tensors that it is not known to write."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        touched = [(t, write) for t, write in touched_tensors(func, args, kwargs or {}) if t.layout == torch.strided]
        written = {tensor.untyped_storage().data_ptr() for tensor, write in touched if write}
        read = [tensor for tensor, _ in touched if tensor.untyped_storage().data_ptr() not in written]
        before = [tensor.clone() for tensor in read]
        result = func(*args, **(kwargs or {}))
        self.found += [
            f"{func} {tuple(tensor.shape)}"
            for tensor, copy in zip(read, before, strict=True)
            if not torch.equal(tensor.nan_to_num(), copy.nan_to_num())
        ]
        return result


@pytest.mark.parametrize("train", [*TRAININGS, train_gru], ids=lambda train: train.__name__)
def test_no_op_writes_what_it_is_not_known_to_write(train: Train) -> None:
    torch.manual_seed(7)
    with SilentWrites() as mode:
        train(Observation())
    assert mode.found == []


def test_changes_no_number(device: _native.Device, route: Callable[..., None]) -> None:
    torch.manual_seed(7)
    vanilla = Observation()
    for train in (*TRAININGS, train_gru):
        train(vanilla)
    route()
    torch.manual_seed(7)
    interposed = Observation()
    with observing(interposed, device, "native"):
        for train in (*TRAININGS, train_gru):
            train(interposed)
    assert all(map(torch.equal, vanilla.losses, interposed.losses))


Observe = Callable[[Callable[[], object]], list[ObservedOp]]


@pytest.fixture
def ops_of(device: _native.Device, route: Callable[..., None]) -> Observe:
    """The ops that the native interposer sees while a function runs in this thread."""
    route()

    def observed(function: Callable[[], object]) -> list[ObservedOp]:
        observation = Observation()
        with observing(observation, device, "native"):
            function()
        return observation.ops

    return observed


def serial(tensor: torch.Tensor) -> int:
    allocation = _native.allocation_at(tensor.data_ptr())
    assert allocation is not None
    return allocation.serial


def test_creations_touch_nothing_and_have_an_output(ops_of: Observe) -> None:
    like = torch.ones(3)
    made: list[torch.Tensor] = []

    def create() -> None:
        made.extend((torch.empty(4), torch.empty_like(like), like.new_empty(5), torch.empty_strided((2, 2), (2, 1))))

    ops = ops_of(create)
    assert [(op.creates, op.accesses) for op in ops] == [(True, ())] * len(made)
    assert [op.outputs for op in ops] == [(serial(tensor),) for tensor in made]


def test_a_shape_is_not_a_read(ops_of: Observe) -> None:
    like = torch.ones(3)
    ops = ops_of(lambda: (torch.zeros_like(like), torch.rand_like(like), like.new_full((2,), 1.0)))
    assert [op.name for op in ops] == ["aten::zeros_like", "aten::rand_like", "aten::new_full"]
    assert [op.accesses for op in ops] == [(), (), ()]
    assert not any(op.creates for op in ops)


def test_views_and_questions_are_no_ops(ops_of: Observe) -> None:
    x = torch.arange(12.0).reshape(3, 4)

    def look() -> None:
        x.t().view(-1) if x.t().is_contiguous() else x.view(-1)
        x[1:].unsqueeze_(0).expand(2, 2, 4).detach().split(1)
        x.size(), x.stride(), x.is_pinned()

    assert ops_of(look) == []


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x,
        lambda x: x[2:5],
        lambda x: x[:, 1:3],
        lambda x: x[1::2, ::3],
        lambda x: x.t(),
        lambda x: x[3],
        lambda x: x[:1].expand(7, 6),
        lambda x: x.as_strided((2, 2), (7, 3), 4),
        lambda x: x.view(torch.int16)[2:, 5:7],
    ],
)
def test_an_access_spans_what_the_view_reaches(ops_of: Observe, view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.arange(36.0).reshape(6, 6)
    looked = view(x)
    indices = torch.cartesian_prod(*[torch.arange(size) for size in looked.shape]).reshape(-1, looked.dim())
    elements = [looked[tuple(index)] for index in indices]
    first = min(element.data_ptr() for element in elements) - x.data_ptr()
    end = max(element.data_ptr() + element.element_size() for element in elements) - x.data_ptr()
    (op,) = ops_of(lambda: looked.neg())
    assert op.accesses == (ObservedAccess(serial(x), first, end - first, False),)


def test_empty_and_undefined_tensors_are_left_out(ops_of: Observe) -> None:
    x, weight, nothing = torch.ones(2, 3), torch.ones(4, 3), torch.ones(0)
    (op,) = ops_of(lambda: torch.cat([nothing, x.flatten()]))
    assert [access.allocation for access in op.accesses] == [serial(x)]
    (op,) = ops_of(lambda: torch.convolution(x[None], weight[:, :2, None], None, [1], [0], [1], False, [0], 1))
    assert [access.allocation for access in op.accesses] == [serial(x), serial(weight)]


def test_batch_norm_writes_its_statistics_in_training_alone(ops_of: Observe) -> None:
    norm = nn.BatchNorm1d(3)
    x = torch.randn(5, 3)
    statistics = {"mean": norm.running_mean, "variance": norm.running_var}
    for training in (True, False):
        norm.train(training)
        before = {name: tensor.clone() for name, tensor in statistics.items()}
        ops = ops_of(lambda: norm(x))
        changed = {serial(statistics[name]) for name in statistics if not torch.equal(before[name], statistics[name])}
        (op,) = [op for op in ops if op.name == "aten::native_batch_norm"]
        assert {access.allocation for access in op.accesses if access.write} == changed
        assert bool(changed) == training


def test_each_backward_op_belongs_to_the_module_of_its_forward(
    device: _native.Device, route: Callable[..., None]
) -> None:
    route()
    layers = {name: nn.Linear(4, 4) for name in ("first", "second", "third")}
    owner = {serial(layer.weight): name for name, layer in layers.items()}

    def enter(module: nn.Module, _inputs: Any) -> None:
        _native.set_module(_native.intern(next(name for name, layer in layers.items() if layer is module)))

    def leave(*_: Any) -> None:
        _native.set_module(0)

    for layer in layers.values():
        layer.register_forward_pre_hook(enter)
        layer.register_forward_hook(leave)
    x = torch.randn(2, 4, requires_grad=True)
    _native.interpose(device)
    device.record(True)
    hidden = layers["third"](layers["second"](layers["first"](x)).relu())
    hidden.square().sum().backward()
    device.record(False)
    _native.interpose(None)
    recording = device.recorded()
    users = [
        (Phase(op["phase"]), _native.string(op["module"]), owner[int(access["allocation"])])
        for op in recording.ops
        for access in recording.accesses[int(op["first_access"]) :][: int(op["access_count"])]
        if access["allocation"] in owner
    ]
    assert {phase for phase, _, _ in users} == {Phase.NONE, Phase.BACKWARD}
    assert {name for _, name, _ in users} == set(layers)
    assert all(module == expected for _, module, expected in users)
    modules = [(_native.string(op["op"]), _native.string(op["module"])) for op in recording.ops]
    assert {module for name, module in modules if name in ("aten::relu", "aten::threshold_backward")} == {""}


def test_backward_in_another_thread_finds_the_modules(device: _native.Device, route: Callable[..., None]) -> None:
    route()
    layer = nn.Linear(4, 4)
    loss = []

    def forward() -> None:
        for name in ("", "other", "layer"):
            _native.set_module(_native.intern(name))
        loss.append(layer(torch.ones(2, 4)).sum())
        _native.set_module(0)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(forward).result()
    _native.interpose(device)
    device.record(True)
    loss[0].backward()
    device.record(False)
    _native.interpose(None)
    modules = [(_native.string(op["op"]), _native.string(op["module"])) for op in device.recorded().ops]
    assert {module for name, module in modules if name == "aten::mm"} == {"layer"}


def test_an_exception_ends_the_op(ops_of: Observe) -> None:
    x, y = torch.ones(2, 3), torch.ones(2, 3)

    def fail() -> None:
        with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
            torch.mm(x, y)
        torch.add(x, y)  # begins, so the failed op has ended

    failed, added = ops_of(fail)
    assert (failed.name, failed.outputs) == ("aten::mm", ())
    assert (added.name, len(added.outputs)) == ("aten::add.Tensor", 1)


def test_foreign_tensors_pass_by_when_nothing_is_routed(device: _native.Device) -> None:
    _native.install_allocator()
    observation = Observation()
    with observing(observation, device, "native"):
        torch.ones(4).add_(1).sum().item()
    assert observation.ops == []


def test_other_threads_are_not_interposed(ops_of: Observe) -> None:
    x = torch.ones(4)

    def elsewhere() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(x.neg).result()

    assert ops_of(elsewhere) == []


def test_a_python_number_is_no_device_memory(ops_of: Observe) -> None:
    x = torch.ones(4)
    (op,) = ops_of(lambda: x * 2.0)  # the number reaches the operator as a tensor of its own
    assert [access.allocation for access in op.accesses] == [serial(x)]


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("inference", "expected"), [(False, "aten::addmm"), (True, "aten::linear")])
def test_under_a_python_mode_an_op_is_what_reaches_the_mode(ops_of: Observe, inference: bool, expected: str) -> None:
    layer, x = nn.Linear(3, 2), torch.ones(4, 3)

    def run() -> None:
        with torch.inference_mode(inference), Passing():
            layer(x)

    (op,) = ops_of(run)
    assert op.name == expected
    assert {access.allocation for access in op.accesses} == {serial(x), serial(layer.weight), serial(layer.bias)}


def test_functorch_comes_down_to_ops(ops_of: Observe) -> None:
    weight, batch = torch.randn(3), torch.randn(5, 3)
    expected = batch * 2 * (batch @ weight)[:, None]
    gradients: list[torch.Tensor] = []

    def run() -> None:
        per_sample = torch.func.vmap(torch.func.grad(lambda w, x: (w @ x) ** 2), in_dims=(None, 0))
        gradients.append(per_sample(weight, batch))

    touched = {access.allocation for op in ops_of(run) for access in op.accesses}
    assert torch.allclose(gradients[0], expected)
    assert {serial(weight), serial(batch)} <= touched


def test_a_redefined_operator_is_understood_anew(ops_of: Observe) -> None:
    x, y = torch.ones(4), torch.ones(4)
    writes = []
    for schema in ("op(Tensor(a!) x, Tensor y) -> ()", "op(Tensor x, Tensor(a!) y) -> ()"):
        library = torch.library.Library("umadvise_test", "FRAGMENT")
        library.define(schema)
        library.impl("op", lambda *_: None, "CPU")
        (op,) = ops_of(lambda: torch.ops.umadvise_test.op.default(x, y))
        writes.append([access.write for access in op.accesses])
        library._destroy()
    assert writes == [[True, False], [False, True]]


def test_two_devices_at_once_are_refused(device: _native.Device, open_device: Callable[..., _native.Device]) -> None:
    other = open_device()
    _native.interpose(device)
    with ThreadPoolExecutor(1) as pool, pytest.raises(NativeError, match="one device at a time"):
        pool.submit(_native.interpose, other).result()
    _native.interpose(None)
    _native.interpose(other)


def test_a_thread_that_ends_interposes_no_more(
    device: _native.Device, open_device: Callable[..., _native.Device]
) -> None:
    # A thread of our own making: only pthread_join waits until its thread-local objects are gone.
    library, thread = ctypes.CDLL(None), ctypes.c_ulong()
    body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: _native.interpose(device))
    assert library.pthread_create(ctypes.byref(thread), None, body, None) == 0
    assert library.pthread_join(thread, None) == 0
    _native.interpose(open_device())


def test_fake_tensors_pass_by(ops_of: Observe) -> None:
    def trace() -> None:
        with FakeTensorMode():
            layer = nn.Linear(3, 2)
            assert layer(torch.ones(4, 3)).shape == (4, 2)

    assert all(access == () for access in [op.accesses for op in ops_of(trace)])


def test_a_forked_child_computes_in_ordinary_memory_and_names_the_remedy(ops_of: Observe) -> None:
    x = torch.ones(4)
    exit_codes = []

    def child() -> None:
        assert torch.equal(torch.ones(4) * 2 + 1, torch.full((4,), 3.0))
        with pytest.raises(RuntimeError, match="spawn"):
            x.neg()

    def run() -> None:
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join()
        exit_codes.append(process.exitcode)

    ops_of(run)
    assert exit_codes == [0]
    assert torch.equal(x.neg(), torch.full((4,), -1.0))


def test_early_stop_of_a_checkpoint_leaves_no_op_open(device: _native.Device, route: Callable[..., None]) -> None:
    def train(observation: Observation) -> None:
        model = transformer()
        x = torch.randn(2, 6, 16, requires_grad=True)
        loss = checkpoint(model, x, use_reentrant=False).square().mean()
        loss.backward()
        observation.losses.extend([loss.detach(), *(parameter.grad for parameter in model.parameters())])

    torch.manual_seed(7)
    vanilla = Observation()
    train(vanilla)
    route()
    interposed = observe(train, device, "native")
    assert all(map(torch.equal, vanilla.losses, interposed.losses))
