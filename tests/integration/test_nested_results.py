"""Memory that an op makes, that is not among its results, and that lives on: it is evicted like any other tensor.

Autograd clones what an in-place op overwrites, saved-tensor hooks pack what autograd saves, and custom operators keep
what they like. Between forward, backward and comparison every tensor is evicted here, which needs an owner of each, and
the results are those of plain PyTorch to the last bit.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from op_trial import trial
from op_trial.cases import OpCase
from op_trial.places import MIB, Leaving, NotAwayError
from op_trial.subjects import OpSubject
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.cpp_extension import load

import umadvise
from umadvise._native.abi import Allocation
from umadvise.torch_seam import runtime

Call = Callable[[Tensor, Tensor], Any]


def packed(x: Tensor, y: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved * 2, lambda doubled: doubled / 2):
        return (x * y).exp().mul_(y)


def in_place_on_views(x: Tensor, y: Tensor) -> Tensor:
    base = x * 2
    base[1:].view(-1, 2).sin_()
    base.t()[0].mul_(y[:, 0] * 3)
    return base


def recurrent(x: Tensor, y: Tensor) -> Tensor:
    torch.manual_seed(0)
    layers = [nn.GRU(4, 4, num_layers=2), nn.LSTM(4, 4, bidirectional=True)]
    return torch.cat([functional.hardswish(layer(x * y)[0], inplace=True) for layer in layers], dim=1)


def on_lists(x: Tensor, y: Tensor) -> Tensor:
    all_ = [x * 1, y * 2, x * y]
    torch._foreach_sin_(all_)
    torch._foreach_mul_(all_, [x, y, x])
    return torch.stack(all_)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    name: getattr(torch, name)
    for name in ("sin_", "cos_", "tan_", "atan_", "log1p_", "square_", "abs_", "sigmoid_", "tanh_", "relu_", "exp_")
} | {
    "clamp_": lambda x: x.clamp_(-0.5, 0.5),
    "pow_": lambda x: x.pow_(3),
    "masked_fill_": lambda x: x.masked_fill_(x > 0.5, 2.0),
    "celu_": nn.CELU(inplace=True),
    "ELU": nn.ELU(inplace=True),
    "SiLU": nn.SiLU(inplace=True),
    "Mish": nn.Mish(inplace=True),
    "Hardswish": nn.Hardswish(inplace=True),
    "Hardsigmoid": nn.Hardsigmoid(inplace=True),
    "ReLU6": nn.ReLU6(inplace=True),
    "LeakyReLU": nn.LeakyReLU(0.1, inplace=True),
    "Threshold": nn.Threshold(0.1, 20.0, inplace=True),
    "Dropout": nn.Dropout(0.5, inplace=True),
}
CALLS: dict[str, Call] = {
    **{name: lambda x, y, act=act: act(x * y) * y for name, act in ACTIVATIONS.items()},  # type: ignore[misc]
    "mul_": lambda x, y: (x * 1).mul_(y).mul_(x),
    "div_": lambda x, y: (x * 1).div_(y.detach() + 3).div_(y * y + 1),
    "addcmul_": lambda x, y: (x * 1).addcmul_(x, y).addcdiv_(x, y + 5),
    "atan2_": lambda x, y: (x * 1).atan2_(y),
    "index_put_": lambda x, y: (x * 1).sin_().index_put_((torch.tensor([0, 2]),), y[:2]).square_(),
    "checkpoint": lambda x, y: checkpoint(
        lambda z: functional.silu(z * y, inplace=True).sin_(), x, use_reentrant=False
    ),
    "views": in_place_on_views,
    "recurrent": recurrent,
    "lists": on_lists,
    "hooks": packed,
}


def examined(call: Call) -> trial.OpOutcome:
    """What is found of a call whose tensors are all evicted before backward and before the comparison."""

    def samples() -> Iterator[list[OpCase]]:
        x, y = (torch.linspace(-1, 1, 12).view(3, 4).add(shift).requires_grad_() for shift in (0.1, 0.3))
        yield [OpCase(f"call {number}", [x, y], [x, y], lambda: call(x, y)) for number in range(4)]

    return trial.examine(OpSubject("op kept float32", samples))


@pytest.mark.parametrize("name", CALLS)
def test_what_an_op_keeps_is_evicted(name: str) -> None:
    found = examined(CALLS[name])
    assert (found.differences, found.unrepeated, found.raised) == ([], [], 0)
    assert found.swap_ins > 0


# ---- custom operators ----------------------------------------------------------------------------------------------

SOURCE = """
#include <torch/extension.h>

struct SineSquared : torch::autograd::Function<SineSquared> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    const at::Tensor sine = at::sin(x), cosine = at::cos(x);
    context->save_for_backward({sine});
    context->saved_data["cosine"] = cosine;
    return sine * sine;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0] * 2 * context->get_saved_variables()[0] * context->saved_data["cosine"].toTensor()};
  }
};

TORCH_LIBRARY(umadvise_kept, m) { m.def("sine_squared(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(umadvise_kept, Autograd, m) {
  m.impl("sine_squared", [](const at::Tensor& x) { return SineSquared::apply(x); });
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("sine_squared", [](const at::Tensor& x) { return SineSquared::apply(x); });
}
"""


@pytest.fixture(scope="module")
def extension(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("kept")
    source = Path(folder, "kept.cpp")
    source.write_text(SOURCE)
    return load("umadvise_kept", [str(source)], extra_cflags=["-O0"], build_directory=str(folder))


def test_what_a_function_of_autograd_in_cpp_keeps_is_evicted(extension: Any) -> None:
    for call in (extension.sine_squared, torch.ops.umadvise_kept.sine_squared):
        found = examined(lambda x, y, call=call: call(x * y) * y)  # type: ignore[misc]
        assert (found.differences, found.raised) == ([], 0)


def unowned() -> list[Allocation]:
    return [each for each in runtime.current().device.allocations() if not each.owned]


@pytest.fixture
def leaving() -> Iterator[Leaving]:
    with Leaving(64 * MIB) as place:
        yield place


def test_an_operator_that_begins_to_keep_tensors_is_watched_from_then_on(leaving: Leaving) -> None:
    kept: list[Tensor] = []
    keeps = False

    @torch.library.custom_op("umadvise_tests::remembering", mutates_args=())
    def remembering(x: Tensor) -> Tensor:
        if keeps:
            kept.append(x.sin())
        return x.clone()

    x = torch.ones(1000)
    for _ in range(5):
        remembering(x)
    keeps = True
    remembering(x)
    assert [each.birth_op for each in unowned()] == ["umadvise_tests::remembering"]
    with pytest.raises(NotAwayError, match="remembering"):
        leaving.send_away()
    for _ in range(3):
        remembering(x)
    assert len(unowned()) == 1
    kept[0].add(1)  # an op is given it
    leaving.send_away()
    assert [umadvise.on_device(each) for each in kept] == [True] * 4


# ---- training ------------------------------------------------------------------------------------------------------


def losses_of(activation: Callable[[Tensor], Tensor], budget: int | None) -> tuple[list[str], int]:
    """Losses of three steps of twelve layers, each of which saves a tensor of a chunk; and the swap-outs."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(12)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    given = torch.randn(1100, 256)
    losses = []

    def step(x: Tensor) -> Tensor:
        for layer in model:
            x = activation(layer(x))
        loss = x.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    if budget is None:
        return [step(given).item().hex() for _ in range(3)], 0
    with umadvise.session(model, optimizer, device="emulated", capacity="256MiB", budget=budget, policy="swap") as um:
        for _ in range(3):
            with um.step():
                loss = step(um.to_device(given))
            losses.append(loss.item().hex())
        counted = um.swap_counters()
        assert counted.used_peak_bytes <= budget
    return losses, counted.swap_outs


@pytest.mark.parametrize("name", ["SiLU", "Hardswish", "sin_", "clamp_"])
def test_in_place_activations_train_in_a_budget_that_holds_a_few_layers(name: str) -> None:
    plain, _ = losses_of(ACTIVATIONS[name], None)
    swapped, swap_outs = losses_of(ACTIVATIONS[name], 16 * MIB)
    assert swapped == plain
    assert swap_outs > 12
