"""Ops on lists that run as several under a limit: the same bits as whole, and no part larger than it may be."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from reference_interposer import ObservedOp, observed_natively
from torch import nn

from umadvise import _native
from umadvise._native.abi import ChunkOptions, Memory, Placement, Route, RouteState
from umadvise.errors import NativeError
from umadvise.records.enums import Phase
from umadvise.torch_seam import split_updates
from umadvise.torch_seam.replacements import Replacements

SIZES = (100, 50, 200, 1, 300, 1000, 60)
LIMIT_BYTES = 3000  # below the largest element of every list
FLOAT_BYTES = 4

# Reviewed: what runs whole. A kernel may group the products of "mm"; variants with `out=` are never called in training.
WHOLE = {"aten::_foreach_mm"}


def foreach_operators() -> list[str]:
    names = sorted(name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::_foreach_"))
    return [name for name in names if not name.endswith("out")]


def overload(name: str) -> Any:
    packet, _, kind = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), kind or "default")


def argument_for(argument: Any, numbers: torch.Generator, make: Callable[..., torch.Tensor]) -> Any:
    kind = str(argument.type)
    if kind == "List[Tensor]":
        return [make(torch.rand(size, generator=numbers) * 0.8 + 0.1) for size in SIZES]
    if kind == "Tensor":  # "scalars" packs a number for each element, on the CPU
        packs = argument.name == "scalars"
        return torch.rand(len(SIZES), generator=numbers) if packs else make(torch.rand((), generator=numbers) + 0.5)
    if kind.startswith("List["):
        return [0.5 + index for index in range(len(SIZES))]
    return None if kind.startswith("Optional") else True if kind == "bool" else 2.0


def call_of(operator: Any, make: Callable[..., torch.Tensor]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments that an operator takes, always the same ones."""
    numbers = torch.Generator().manual_seed(3)
    values = {argument.name: argument_for(argument, numbers, make) for argument in operator._schema.arguments}
    keywords = {argument.name for argument in operator._schema.arguments if argument.kwarg_only}
    positional = [value for name, value in values.items() if name not in keywords]
    return positional, {name: values[name] for name in keywords}


def lists_of(arguments: list[Any]) -> list[list[torch.Tensor]]:
    return [value for value in arguments if isinstance(value, list) and isinstance(value[0], torch.Tensor)]


class Split:
    """Runs functions with the interposer on, under a limit."""

    def __init__(self, device: _native.Device) -> None:
        self._device = device

    def run(self, function: Callable[[], Any], limit_bytes: int | None, unit_bytes: int = 1) -> Any:
        """Returns the function's result; `ops` is then what ran."""
        _native.set_split(limit_bytes, unit_bytes)
        _native.interpose(self._device)
        _native.set_phase(Phase.OPTIMIZER)
        self._device.record(True)
        try:
            return function()
        finally:
            self._device.record(False)
            _native.interpose(None)
            _native.set_split(None)
            self.ops: list[ObservedOp] = observed_natively(self._device.recorded())

    def parts(self, name: str) -> list[list[int]]:
        """For each op of that name the allocations that it touched."""
        return [[access.allocation for access in op.accesses] for op in self.ops if op.name == name]


@pytest.fixture
def split(device: _native.Device, route: Callable[..., None]) -> Iterator[Split]:
    route()
    yield Split(device)
    _native.set_split(None)


def serial(tensor: torch.Tensor) -> int:
    allocation = _native.allocation_at(tensor.data_ptr())
    assert allocation is not None
    return allocation.serial


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, torch.Tensor):
        return ours.dtype == theirs.dtype and torch.equal(ours.nan_to_num(7.0), theirs.nan_to_num(7.0))
    if isinstance(ours, (list, tuple)):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return bool(ours == theirs)


@pytest.mark.parametrize("name", foreach_operators())
def test_every_foreach_operator_is_reviewed_and_gives_the_same_bits(split: Split, name: str) -> None:
    operator = overload(name)
    if name.partition(".")[0] in WHOLE:
        return
    expected_arguments, keywords = call_of(operator, torch.clone)
    expected = operator(*expected_arguments, **keywords)
    arguments, keywords = call_of(operator, torch.clone)
    result = split.run(lambda: operator(*arguments, **keywords), LIMIT_BYTES)
    assert same(result, expected)
    assert same(arguments, expected_arguments)

    parts = split.parts(name)
    elements = [[serial(tensor) for tensor in element] for element in zip(*lists_of(arguments), strict=True)]
    assert 1 < len(parts) <= len(SIZES), f"{name} is not split: review it"
    bytes_of = {serial(tensor): tensor.nbytes for tensors in lists_of(arguments) for tensor in tensors}
    cursor = 0
    for part in parts:  # consecutive elements, each once, and as many as fit
        taken = cursor
        while cursor < len(elements) and set(elements[cursor]) <= set(part):
            cursor += 1
        assert cursor > taken
        assert set(part) & bytes_of.keys() == {serial for element in elements[taken:cursor] for serial in element}
        if cursor > taken + 1:
            assert sum(bytes_of.get(allocation, 0) for allocation in set(part)) <= LIMIT_BYTES
    assert cursor == len(elements)


def test_every_other_update_of_lists_in_place_is_reviewed() -> None:
    names = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")}
    updates = {name for name in names if name.startswith(("aten::_fused_", "aten::_amp_")) and name.endswith("_")}
    on_lists = {name for name in updates if str(overload(name)._schema.arguments[0].type) == "List[Tensor]"}
    assert on_lists == {
        "aten::_amp_foreach_non_finite_check_and_unscale_",
        *(f"aten::_fused_{optimizer}_" for optimizer in ("adagrad", "adam", "adamw", "sgd")),
    }  # all run in parts below


def test_what_fits_runs_whole(split: Split) -> None:
    values = [torch.ones(size) for size in SIZES]
    total = FLOAT_BYTES * sum(SIZES)
    split.run(lambda: torch._foreach_mul_(values, 2.0), total)
    assert len(split.parts("aten::_foreach_mul_.Scalar")) == 1
    split.run(lambda: torch._foreach_mul_(values, 2.0), total - 1)
    assert len(split.parts("aten::_foreach_mul_.Scalar")) == 2
    split.run(lambda: torch._foreach_mul(values, 2.0), total)  # what it makes needs room as well
    assert len(split.parts("aten::_foreach_mul.Scalar")) > 1
    split.run(lambda: torch._foreach_norm(values), total)  # a few numbers
    assert len(split.parts("aten::_foreach_norm.Scalar")) == 1
    split.run(lambda: torch._foreach_mul_(values, 2.0), None)
    assert len(split.parts("aten::_foreach_mul_.Scalar")) == 1


def test_an_element_above_the_limit_runs_alone(split: Split) -> None:
    values = [torch.ones(size) for size in (10, 1000, 10, 10)]
    split.run(lambda: torch._foreach_neg_(values), 100)
    sizes = [[int(access.bytes) for access in op.accesses] for op in split.ops]
    assert sizes == [[40], [4000], [40, 40]]


def test_storages_count_in_whole_units_and_once(split: Split) -> None:
    unit = 1 << 20  # bytes; half of one and less takes parts of one
    quarter = unit // 16  # floats
    sizes = (2 * quarter, 2 * quarter + 1, 4 * quarter, 4 * quarter + 1, 2 * quarter, 4 * quarter)
    values = [torch.ones(count) for count in sizes]  # 1/2, 1, 1, 2, 1/2, 1 units
    split.run(lambda: torch._foreach_neg_(values), 2 * unit + unit // 2, unit)
    assert [len(op.accesses) for op in split.ops] == [3, 2, 1]
    flat = torch.ones(1000)
    views = [flat[start : start + 100] for start in range(0, 1000, 100)]
    split.run(lambda: torch._foreach_neg_(views), 4000)
    assert [len(op.accesses) for op in split.ops] == [10]
    assert torch.equal(flat, -torch.ones(1000))


def test_a_unit_of_no_bytes_is_refused() -> None:
    with pytest.raises(NativeError, match="a unit of 0 bytes; expected 1 or more"):
        _native.set_split(100, 0)


def test_a_tensor_that_is_in_a_list_twice_is_worked_on_in_order(split: Split) -> None:
    def work() -> list[torch.Tensor]:
        a, b, c = (torch.arange(100.0) + start for start in range(3))
        torch._foreach_mul_([a, b, a, c, a], [2.0, 3.0, 5.0, 7.0, 11.0])
        torch._foreach_add_([b, c, a, b], [a, b, c, b])  # each reads what the ones before it wrote
        torch._foreach_copy_([a, b, c], [b, c, a])
        return [a, b, c]

    expected = work()
    assert same(split.run(work, 400), expected)
    assert [len(split.parts(f"aten::_foreach_{name}")) for name in ("mul_.ScalarList", "add_.List", "copy_")] == [
        5,
        4,
        3,
    ]


@pytest.mark.parametrize("seed", range(15))
def test_random_lists_with_repeated_tensors(split: Split, seed: int) -> None:
    def work() -> list[torch.Tensor]:
        numbers = random.Random(seed)
        bases = [torch.linspace(0.1, 0.9, 120, dtype=torch.float64).roll(index) for index in range(4)]
        views = [base[start : start + 40] for base in bases for start in (0, 40, 80)]
        results: list[torch.Tensor] = []
        for _ in range(12):
            length = numbers.randint(1, 9)
            first, second, third = (numbers.choices([*views, *results[-4:]], k=length) for _ in range(3))
            scalars = [numbers.uniform(0.5, 1.5) for _ in range(length)]
            operation = numbers.randrange(6)
            if operation == 0:
                torch._foreach_add_(first, second, alpha=0.5)
            elif operation == 1:
                torch._foreach_addcmul_(first, second, third, scalars)
            elif operation == 2:
                torch._foreach_copy_(first, second)
            elif operation == 3:
                torch._foreach_mul_(first, torch.tensor(0.75))
            elif operation == 4:
                results += torch._foreach_lerp(first, second, third)
            else:
                torch._foreach_addcdiv_(first, second, [tensor.abs() + 1 for tensor in third], torch.tensor(scalars))
        return [*bases, *results]

    expected = work()
    for limit_bytes in (320, 1000, 3000):
        assert same(split.run(work, limit_bytes), expected)


def test_lists_of_all_sorts_of_tensors(split: Split) -> None:
    """Mixed types, layouts of memory, no elements and no dimensions: torch runs such a list tensor by tensor."""

    def work() -> list[Any]:
        torch.manual_seed(5)
        some = [
            torch.rand(30, dtype=torch.float64),
            torch.rand(4, 6).t(),
            torch.rand(0),
            torch.rand(()),
            torch.arange(40),
            torch.rand(9, dtype=torch.complex64),
            torch.rand(3, 2, 4, 4).contiguous(memory_format=torch.channels_last),
            torch.rand(50, dtype=torch.bfloat16),
            torch.rand(8)[::2],
        ]
        others = [torch.ones_like(tensor) for tensor in some]
        results = [
            torch._foreach_mul(some, 2),
            torch._foreach_add(some, others, alpha=3),
            torch._foreach_norm(some[:4]),
        ]
        torch._foreach_addcmul_(some[5:], others[5:], others[5:], 2)
        torch._foreach_zero_(others)
        versions = [tensor._version for tensor in (*some, *others)]
        return [*results, some, others, versions]

    expected = work()
    assert same(split.run(work, 200), expected)
    assert len(split.parts("aten::_foreach_mul.Scalar")) > 2


@pytest.mark.filterwarnings("ignore:.*previously registered kernel")
def test_a_kernel_for_whole_lists_gets_parts_of_what_it_would_have_got(split: Split) -> None:
    """Lists of unlike tensors, which on a GPU run tensor by tensor, do so in parts too."""
    lengths: list[int] = []

    def for_whole_lists(tensors: list[torch.Tensor], factor: float) -> list[torch.Tensor]:
        lengths.append(len(tensors))
        return [tensor * factor for tensor in tensors]

    library = torch.library.Library("aten", "IMPL")
    library.impl("_foreach_mul.Scalar", for_whole_lists, "CPU")
    alike = [torch.rand(10, 10) for _ in range(4)]
    unlike = [*alike[:3], torch.rand(10, 10).double()]
    try:
        results = split.run(lambda: [torch._foreach_mul(alike, 3.0), torch._foreach_mul(unlike, 3.0)], 1600)
    finally:
        library._destroy()
    assert lengths == [2, 2]
    assert len(split.parts("aten::_foreach_mul.Scalar")) == 5
    assert same(results, [[tensor * 3.0 for tensor in tensors] for tensors in (alike, unlike)])


def test_a_graph_that_autograd_records_stays_whole(split: Split) -> None:
    leaves = [torch.rand(100, requires_grad=True) for _ in range(4)]

    def work() -> torch.Tensor:
        return torch.stack([result.sum() for result in torch._foreach_mul(leaves, 2.0)]).sum()

    split.run(work, 400).backward()
    assert len(split.parts("aten::_foreach_mul.Scalar")) == 1
    assert same([leaf.grad for leaf in leaves], [torch.full((100,), 2.0)] * 4)


def test_errors_are_torchs_own(split: Split) -> None:
    a, b = torch.ones(100), torch.ones(100)
    with pytest.raises(RuntimeError, match="must have the same number of tensors"):
        split.run(lambda: torch._foreach_add_([a, b], [a]), 100)
    with pytest.raises(RuntimeError, match="at least one tensor"):
        split.run(lambda: torch._foreach_mul_([], 2.0), 100)
    assert torch.equal(a, torch.ones(100))


def model_with_gradients(scale: float = 1.0) -> nn.Module:
    torch.manual_seed(11)
    model = nn.Sequential(nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 20), nn.Tanh(), nn.Linear(20, 3))
    (model(torch.randn(8, 30)).square().sum() * scale).backward()
    return model


def gradients(model: nn.Module) -> list[torch.Tensor | None]:
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("norm_type", [1.0, 2.0, float("inf")])
def test_clipping_by_norm(split: Split, norm_type: float) -> None:
    def work() -> list[Any]:
        model = model_with_gradients()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5, norm_type=norm_type, foreach=True)
        return [norm, gradients(model)]

    expected = work()
    assert same(split.run(work, 4000), expected)
    assert len(split.parts("aten::_foreach_mul_.Tensor")) > 1
    assert len(split.parts("aten::_foreach_norm.Scalar")) > 1


def test_clipping_by_value_and_filling_with_zeros(split: Split) -> None:
    def work() -> list[Any]:
        model = model_with_gradients()
        nn.utils.clip_grad_value_(model.parameters(), 0.1, foreach=True)
        clipped = [gradient.clone() for gradient in gradients(model) if gradient is not None]
        optimizer = torch.optim.SGD(model.parameters(), foreach=True)
        optimizer.zero_grad(set_to_none=False)
        return [clipped, gradients(model)]

    expected = work()
    assert same(split.run(work, 4000), expected)
    for name in ("clamp_min_.Scalar", "clamp_max_.Scalar", "zero_"):
        assert len(split.parts(f"aten::_foreach_{name}")) > 1


@pytest.mark.parametrize("poison", [None, 0, 5])
def test_unscaling_gradients(split: Split, poison: int | None) -> None:
    """`found_inf` collects over the parts, wherever the bad number is."""

    def work() -> list[Any]:
        model = model_with_gradients(scale=1024.0)
        if poison is not None:
            gradient = list(model.parameters())[poison].grad
            assert gradient is not None
            gradient.view(-1)[-1] = float("inf")
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler.scale(torch.zeros(()))  # makes the scale
        scaler.unscale_(optimizer)
        found = list(scaler._found_inf_per_device(optimizer).values())
        scaler.step(optimizer)
        scaler.update()
        return [found, gradients(model), list(model.parameters()), scaler.get_scale()]

    expected = work()
    assert float(expected[0][0]) == float(poison is not None)
    assert same(split.run(work, 4000), expected)
    assert len(split.parts("aten::_amp_foreach_non_finite_check_and_unscale_")) > 1


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (torch.optim.AdamW, {}),
        (torch.optim.AdamW, {"amsgrad": True}),
        (torch.optim.Adam, {"maximize": True}),
        (torch.optim.SGD, {}),
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
        (torch.optim.Adagrad, {}),
    ],
)
@pytest.mark.parametrize("how", ["foreach", "fused"])
def test_whole_optimizer_steps(split: Split, make: Any, options: dict[str, Any], how: str) -> None:
    def work() -> list[Any]:
        model = model_with_gradients()
        optimizer = make(model.parameters(), lr=0.1, weight_decay=0.01, **{how: True}, **options)
        for _ in range(3):
            optimizer.step()
        states = [list(state.values()) for state in optimizer.state.values()]
        return [list(model.parameters()), states, gradients(model)]

    expected = work()
    assert same(split.run(work, 10_000), expected)
    steps = [op for op in split.ops if ("_fused_" if how == "fused" else "_foreach_") in op.name]
    assert len(steps) > 3
    for op in steps:  # one element has at most a parameter, a gradient, three states and a step
        touched = {access.allocation: access.bytes for access in op.accesses}
        assert len(touched) <= 6 or sum(touched.values()) <= 10_000


CHUNK_BYTES = 2 << 20
BUDGET_BYTES = 6 * CHUNK_BYTES


def train_large(how: str) -> list[torch.Tensor]:
    """Two steps of eight parameters: each with its gradient and states takes four chunks, all of one kind eight."""
    torch.manual_seed(2)
    parameters = [nn.Parameter(torch.randn(600, 600)) for _ in range(8)]
    optimizer = torch.optim.AdamW(parameters, lr=0.1, foreach=how == "foreach", fused=how == "fused")
    for _ in range(2):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()
    return [parameter.detach() for parameter in parameters]


def in_chunks(device: _native.Device) -> None:
    device.set_chunks(ChunkOptions(budget_bytes=BUDGET_BYTES))
    _native.set_thread_route(Route(RouteState.ON, Placement(memory=Memory.CHUNKED), device.handle))
    _native.interpose(device)


@pytest.mark.parametrize("how", ["foreach", "fused"])
def test_a_step_under_a_budget_that_no_whole_list_fits(device: _native.Device, how: str) -> None:
    expected = train_large(how)
    _native.install_allocator()
    in_chunks(device)
    limit_bytes = BUDGET_BYTES - 2 * CHUNK_BYTES  # small tensors share chunks that stay
    _native.set_split(limit_bytes, CHUNK_BYTES)
    replaced = Replacements()
    split_updates.install(replaced, lambda: limit_bytes, CHUNK_BYTES)
    try:
        assert same(train_large(how), expected)
    finally:
        replaced.undo()
        _native.set_split(None)
        _native.interpose(None)
    swapped = device.swap_counters()
    assert 0 < swapped.used_peak_bytes <= BUDGET_BYTES
    assert swapped.swap_ins > 0


def test_without_it_such_a_step_is_refused_by_name(device: _native.Device) -> None:
    _native.install_allocator()
    in_chunks(device)
    with pytest.raises(torch.OutOfMemoryError, match=r"no room for aten::_foreach_norm\.Scalar: its working set takes"):
        train_large("fused")
    _native.interpose(None)
