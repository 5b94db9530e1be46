"""Updates of torch.optim in parts: the bits of the whole ones, in the fewest calls that fit."""

import importlib
import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from umadvise.torch_seam import split_updates
from umadvise.torch_seam.replacements import Replacements
from umadvise.torch_seam.split_updates import MODULES, parts_of

SHAPES = [(5,), (3, 4), (7, 2), (), (0,), (2, 3, 4), (16,), (1, 5), (4, 4), (33,)]
LIMIT_BYTES = 250
STEPS = 3


@contextmanager
def splitting(limit_bytes: int | None, unit_bytes: int = 1) -> Iterator[None]:
    replaced = Replacements()
    split_updates.install(replaced, lambda: limit_bytes, unit_bytes)
    try:
        yield
    finally:
        replaced.undo()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many parameters each call of a foreach or fused update took."""
    lengths: list[int] = []

    def spied(update: Callable[..., None]) -> Callable[..., None]:
        def call(params: list[torch.Tensor], *args: Any, **kwargs: Any) -> None:
            lengths.append(len(params))
            update(params, *args, **kwargs)

        return call

    for module in MODULES:
        owner = importlib.import_module(f"torch.optim.{module}")
        for kind in ("_multi_tensor", "_fused"):
            name = f"{kind}_{module.lstrip('_')}"
            if module != "adamw" and name in vars(owner):  # that one comes down to Adam's
                monkeypatch.setattr(owner, name, spied(getattr(owner, name)))
    return lengths


def parameters_of(dtypes: tuple[torch.dtype, ...], shapes: list[tuple[int, ...]] = SHAPES) -> list[torch.nn.Parameter]:
    torch.manual_seed(1)
    kinds = itertools.cycle(dtypes)
    return [torch.nn.Parameter(torch.randn(shape, dtype=next(kinds))) for shape in shapes]


def train(make: Any, options: dict[str, Any], dtypes: tuple[torch.dtype, ...]) -> list[torch.Tensor]:
    """Everything that some steps leave behind: parameters, states and gradients."""
    shapes = [shape for shape in SHAPES if make is not torch.optim.Adafactor or 0 not in shape]  # it divides by sizes
    parameters = parameters_of(dtypes, shapes)
    optimizer = make(parameters, **options)
    for step in range(STEPS):
        # Those that get their first gradient later have a younger state. Fused SGD wants momentum for all or none.
        first = 0 if "fused" in options else STEPS - 1 - step
        for parameter in parameters[first:]:
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    states = [optimizer.state[parameter] for parameter in parameters if parameter in optimizer.state]
    tensors = [value for state in states for value in state.values() if isinstance(value, torch.Tensor)]
    return [*parameters, *tensors, *(parameter.grad for parameter in parameters if parameter.grad is not None)]


def assert_same_bits(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape)
        assert torch.equal(mine.detach().nan_to_num(7.0), other.detach().nan_to_num(7.0))


OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {}),
    ("SGD", {"weight_decay": 0.1, "momentum": 0.9, "dampening": 0.1}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "maximize": True}),
    ("Adam", {}),
    ("Adam", {"amsgrad": True, "weight_decay": 0.1}),
    ("AdamW", {"maximize": True}),
    ("AdamW", {"amsgrad": True}),
    ("Adadelta", {"weight_decay": 0.1, "maximize": True}),
    ("Adagrad", {"weight_decay": 0.1, "lr_decay": 0.01}),
    ("Adamax", {"weight_decay": 0.1, "maximize": True}),
    ("ASGD", {"weight_decay": 0.1, "t0": 1.0}),
    ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("NAdam", {"maximize": True}),
    ("RAdam", {"weight_decay": 0.1, "maximize": True}),
    ("RAdam", {"decoupled_weight_decay": True}),
    ("RMSprop", {"weight_decay": 0.1}),
    ("RMSprop", {"momentum": 0.9, "centered": True, "maximize": True}),
    ("Rprop", {"maximize": True}),
    ("Adafactor", {"weight_decay": 0.1}),
]
FUSED = ("SGD", "Adam", "AdamW", "Adagrad")  # on the CPU
F32, F64, BF16, C64 = torch.float32, torch.float64, torch.bfloat16, torch.complex64


def cases() -> Iterator[Any]:
    for name, options in OPTIMIZERS:
        told = "-".join([name, *(f"{key}={value}" for key, value in options.items())])
        for dtypes in ((F32,), (F64,), (BF16,), (C64,), (F32, BF16)):
            if name == "Adafactor" and C64 in dtypes:  # it knows no complex numbers
                continue
            kinds = "-".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            yield pytest.param(name, options | {"foreach": True}, dtypes, id=f"{told}-foreach-{kinds}")
            # Torch 2.13's fused SGD reads memory that nobody wrote when it makes its first momentum in bfloat16.
            reproducible = not ("momentum" in options and BF16 in dtypes)
            if name in FUSED and C64 not in dtypes and reproducible:
                yield pytest.param(name, options | {"fused": True}, dtypes, id=f"{told}-fused-{kinds}")


@pytest.mark.parametrize(("name", "options", "dtypes"), list(cases()))
def test_the_same_bits_in_parts(
    calls: list[int], name: str, options: dict[str, Any], dtypes: tuple[torch.dtype, ...]
) -> None:
    make = getattr(torch.optim, name)
    expected = train(make, options, dtypes)
    whole_calls = len(calls)
    with splitting(LIMIT_BYTES):
        assert_same_bits(train(make, options, dtypes), expected)
    one_type_for_all = name == "Adafactor" and len(dtypes) > 1
    assert (len(calls) == 2 * whole_calls) if one_type_for_all else (len(calls) > 2 * whole_calls)
    assert sum(calls[:whole_calls]) == sum(calls[whole_calls:])
    assert_same_bits(train(make, options, dtypes), expected)  # undone


@pytest.mark.parametrize("name", sorted({name for name, _ in OPTIMIZERS} - {"Adafactor"}))
def test_a_limit_that_holds_all_splits_nothing(calls: list[int], name: str) -> None:
    with splitting(1 << 20):
        train(getattr(torch.optim, name), {"foreach": True}, (F32,))
    with splitting(None):
        train(getattr(torch.optim, name), {"foreach": True}, (F32,))
    assert calls == [8, 9, 10] * 2


@pytest.mark.parametrize("options", [{"foreach": False}, {}, {"differentiable": True}])
def test_what_goes_one_by_one_is_left_alone(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    adam = importlib.import_module("torch.optim.adam")
    one_by_one = adam._single_tensor_adam

    def spy(params: list[torch.Tensor], *args: Any, **kwargs: Any) -> None:
        lengths.append(len(params))
        one_by_one(params, *args, **kwargs)

    monkeypatch.setattr(adam, "_single_tensor_adam", spy)
    parameters = [torch.zeros(100, requires_grad=options == {}) for _ in range(4)]
    optimizer = torch.optim.Adam(parameters, **options)
    for parameter in parameters:
        parameter.grad = torch.ones(100)
    with splitting(LIMIT_BYTES):
        optimizer.step()
    assert lengths == [4]


def test_the_default_of_a_device_with_kernels_for_lists(calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer_module = importlib.import_module("torch.optim.optimizer")
    monkeypatch.setattr(optimizer_module, "_get_foreach_kernels_supported_devices", lambda: ["cpu"])
    expected = train(torch.optim.AdamW, {}, (F32,))
    with splitting(LIMIT_BYTES):
        assert_same_bits(train(torch.optim.AdamW, {}, (F32,)), expected)
    assert len(calls) > 6


def test_every_optimizer_with_a_variant_for_lists_is_known() -> None:
    with_lists = {
        value.__init__.__globals__["__name__"].rpartition(".")[2]
        for value in vars(torch.optim).values()
        if inspect.isclass(value) and {"foreach", "fused"} & inspect.signature(value).parameters.keys()
    }
    assert with_lists == set(MODULES)


def adam_step(
    tensors: list[torch.Tensor], limit_bytes: int, how: str, steps: list[torch.Tensor] | None = None
) -> list[torch.Tensor]:
    """One step of Adam's functional form; returns all that it wrote."""
    gradients = [torch.full_like(tensor, 0.5) for tensor in tensors]
    averages, squares = ([torch.zeros_like(tensor) for tensor in tensors] for _ in range(2))
    steps = steps or [torch.tensor(0.0) for _ in tensors]
    hyper = {"amsgrad": False, "beta1": 0.9, "beta2": 0.99, "lr": 0.1, "weight_decay": 0.1, "eps": 1e-8}
    with splitting(limit_bytes):
        adam = importlib.import_module("torch.optim.adam").adam
        adam(tensors, gradients, averages, squares, [], steps, maximize=False, **hyper, **{how: True})
    return [*tensors, *averages, *squares, *steps]


@pytest.mark.parametrize("how", ["foreach", "fused"])
def test_a_parameter_that_is_there_twice_is_updated_as_in_one_call(calls: list[int], how: str) -> None:
    def run(limit_bytes: int) -> list[torch.Tensor]:
        first, second, third = (torch.full((20,), float(value)) for value in range(1, 4))
        return adam_step([third, first, second, first, third], limit_bytes, how)

    expected = run(1 << 20)
    assert_same_bits(run(100), expected)
    assert calls == [5, 5]


def test_states_that_several_parameters_share_keep_them_together(calls: list[int]) -> None:
    def run(limit_bytes: int) -> list[torch.Tensor]:
        count = torch.tensor(0.0)
        steps = [torch.tensor(0.0), torch.tensor(0.0), count, torch.tensor(0.0), count, torch.tensor(0.0)]
        return adam_step([torch.full((20,), float(value)) for value in range(6)], limit_bytes, "foreach", steps)

    expected = run(1 << 20)
    assert_same_bits(run(350), expected)
    assert calls == [6, 1, 1, 3, 1]  # the third and the fifth count their steps together


def test_views_of_one_flat_parameter(calls: list[int]) -> None:
    def run(limit_bytes: int) -> list[torch.Tensor]:
        flat = torch.arange(100.0)
        tensors = [flat[start : start + 20] for start in range(0, 100, 20)]
        return adam_step(tensors, limit_bytes, "foreach")

    expected = run(1 << 20)
    assert_same_bits(run(1000), expected)  # 400 for the flat one, 244 for each one's gradient and states
    assert calls == [5, 2, 2, 1]


def test_gradients_that_lie_in_another_order_go_through_one_call(calls: list[int]) -> None:
    def run(limit_bytes: int | None) -> list[torch.Tensor]:
        torch.manual_seed(3)
        parameters = [torch.nn.Parameter(torch.randn(4, 6)) for _ in range(4)]
        optimizer = torch.optim.AdamW(parameters, foreach=True)
        for index, parameter in enumerate(parameters):
            parameter.grad = torch.randn(6, 4).t() if index == 2 else torch.randn(4, 6)
        with splitting(limit_bytes):
            optimizer.step()
        return list(parameters)

    expected = run(None)
    assert_same_bits(run(100), expected)
    assert calls == [4, 4]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("name", ["SGD", "Adagrad"])
@pytest.mark.parametrize("options", [{"foreach": True}, {}])
def test_sparse_gradients(name: str, options: dict[str, Any]) -> None:
    def run(limit_bytes: int | None) -> list[torch.Tensor]:
        torch.manual_seed(3)
        tables = [torch.nn.Embedding(20, 3, sparse=index % 2 == 0) for index in range(4)]
        parameters = [table.weight for table in tables]
        optimizer = getattr(torch.optim, name)(parameters, lr=0.1, **options)
        with splitting(limit_bytes):
            for _ in range(STEPS):
                for table in tables:
                    table.weight.grad = None
                    table(torch.randint(20, (5,))).square().sum().backward()
                optimizer.step()
        return parameters

    assert_same_bits(run(100), run(None))


@pytest.mark.parametrize("found", [0.0, 1.0])
@pytest.mark.parametrize("name", FUSED)
def test_what_a_gradient_scaler_gives_to_fused_updates(calls: list[int], name: str, found: float) -> None:
    def run(limit_bytes: int | None) -> list[torch.Tensor]:
        parameters = parameters_of((F32,))
        optimizer = getattr(torch.optim, name)(parameters, lr=torch.tensor(0.1), fused=True)
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(8.0), torch.tensor(found)
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        with splitting(limit_bytes):
            optimizer.step()
        states = [value for state in optimizer.state.values() for value in state.values() if value is not None]
        return [*parameters, *states, *(parameter.grad for parameter in parameters)]

    expected = run(None)
    assert_same_bits(run(200), expected)
    assert len(calls) > 2


def test_one_call_fails_as_torch_does() -> None:
    parameters = [torch.nn.Parameter(torch.ones(50)) for _ in range(3)]
    optimizer = torch.optim.Adam(parameters, foreach=True, capturable=True)
    for parameter in parameters:
        parameter.grad = torch.ones(50)
    with splitting(100), pytest.raises((AssertionError, RuntimeError), match="capturable"):
        optimizer.step()
    assert all(torch.equal(parameter, torch.ones(50)) for parameter in parameters)


def test_a_fused_update_with_a_momentum_missing_fails_whole() -> None:
    parameters = [torch.nn.Parameter(torch.ones(50)) for _ in range(3)]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, fused=True)
    for parameter in parameters[:2]:
        parameter.grad = torch.ones(50)
    optimizer.step()
    before = [parameter.clone() for parameter in parameters]
    parameters[2].grad = torch.ones(50)
    with splitting(100), pytest.raises(TypeError):
        optimizer.step()
    assert_same_bits(list(parameters), before)


# ---- which parameters go together ----------------------------------------------------------------------------------


def fewest_parts(sizes: list[int], limit: int) -> int:
    """Of all ways to cut a row into runs: by trying them."""
    best = len(sizes)
    for cuts in itertools.product([False, True], repeat=len(sizes) - 1):
        runs = [[sizes[0]]]
        for size, cut in zip(sizes[1:], cuts, strict=True):
            if cut:
                runs.append([])
            runs[-1].append(size)
        if all(len(run) == 1 or sum(run) <= limit for run in runs):
            best = min(best, len(runs))
    return best


@pytest.mark.parametrize("seed", range(20))
def test_as_few_parts_as_can_be(seed: int) -> None:
    numbers = torch.Generator().manual_seed(seed)
    sizes = torch.randint(0, 40, (9,), generator=numbers).tolist()
    entries = [(torch.zeros(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)) for size in sizes]
    parts = parts_of(entries, 100)
    assert [index for part in parts for index in range(9)[part]] == list(range(9))
    assert all(part.stop - part.start == 1 or 2 * sum(sizes[part]) <= 100 for part in parts)
    assert len(parts) == fewest_parts([2 * size for size in sizes], 100)


def test_units() -> None:
    kib = 1 << 10
    sizes = (512, 513, 1024, 1025, 512, 1024)  # KiB: 0.5, 1, 1, 2, 0.5, 1 MiB of chunks of 1 MiB
    entries = [(torch.zeros(size * kib, dtype=torch.uint8),) for size in sizes]
    assert parts_of(entries, 2048 * kib, 1024 * kib) == [slice(0, 2), slice(2, 3), slice(3, 4), slice(4, 6)]
    assert parts_of(entries, 2560 * kib, 1024 * kib) == [slice(0, 3), slice(3, 5), slice(5, 6)]
    assert parts_of(entries, 6144 * kib, 1024 * kib) == [slice(0, 6)]
    tiny = [(torch.zeros(10),) for _ in range(6)]  # 64 KiB each, where they leave
    assert parts_of(tiny, 128 * kib, 1024 * kib) == [slice(0, 2), slice(2, 4), slice(4, 6)]


def test_overlapping_ranges_of_bytes() -> None:
    flat = torch.zeros(100, dtype=torch.uint8)
    entries = [(flat[start : start + 10],) for start in (0, 10, 30, 15, 50, 35, 90)]
    whole = flat.nbytes
    assert parts_of(entries, whole - 1) == [slice(0, 1), slice(1, 6), slice(6, 7)]  # 10 meets 15, 30 meets 35
    assert parts_of(entries, whole) == [slice(0, 7)]
    columns = torch.zeros(5, 4)
    assert parts_of([(columns[:, 0],), (torch.zeros(30),), (columns[:, 1],)], 10) == [slice(0, 3)]
