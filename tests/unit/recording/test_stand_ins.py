"""Stand-ins: code with real tensors in its hands runs on the meta device, and the tensors stay what they are."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from umadvise.errors import UsageError
from umadvise.recording.dry.stand_ins import StandIns


class Notes:
    """What the mode tells, and whether an optimizer runs."""

    def __init__(self) -> None:
        self.met: list[torch.Tensor] = []
        self.made: list[torch.Tensor] = []
        self.optimizes = False
        self.stand_ins = StandIns(
            "cpu", lambda real, _: self.met.append(real), self.made.append, lambda: self.optimizes
        )

    def run(self, code: Callable[[], Any]) -> Any:
        with self.stand_ins.on():
            return code()


def test_what_is_computed_has_a_form_and_no_values() -> None:
    notes, real = Notes(), torch.randn(4, 6)
    made = notes.run(lambda: (real @ torch.randn(6, 5)).relu())
    assert made.is_meta
    assert made.shape == (4, 5)
    assert [each is real for each in notes.met] == [True]


def test_code_that_changes_a_tensor_in_place_keeps_that_tensor() -> None:
    notes, real = Notes(), torch.ones(3, 3)
    total = torch.zeros(())

    def code() -> Any:
        nonlocal total
        changed = real.mul_(2)
        total += real.sum()
        return changed, real[0].zero_()

    changed, view = notes.run(code)
    assert changed is real
    assert view.is_meta
    assert not total.is_meta
    assert real.eq(1).all()
    assert total == 0


def test_views_of_one_storage_share_one_stand_in() -> None:
    notes, real = Notes(), torch.zeros(8, 2)
    half = real[4:]
    one, other = notes.stand_ins.of(real), notes.stand_ins.of(half)
    assert one.untyped_storage()._cdata == other.untyped_storage()._cdata
    assert (other.storage_offset(), other.stride(), other.shape) == (8, (2, 1), (4, 2))
    assert [each is real for each in notes.met] == [True]


def test_gradients_come_to_the_stand_ins_alone() -> None:
    notes = Notes()
    linear = torch.nn.Linear(3, 3)
    linear.bias.grad = torch.ones(3)

    def code() -> None:
        functional.mse_loss(linear(torch.randn(2, 3)), torch.zeros(2, 3)).backward()
        assert linear.weight.grad is not None
        assert linear.weight.grad.is_meta

    notes.run(code)
    assert linear.weight.grad is None
    assert linear.bias.grad.eq(1).all()


@pytest.mark.parametrize("foreach", [False, True])
def test_counts_of_steps_keep_their_values_in_copies(foreach: bool) -> None:
    notes, linear = Notes(), torch.nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(linear.parameters(), foreach=foreach)
    linear(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    counts = [entries["step"] for entries in optimizer.state.values()]
    weight = linear.weight.detach().clone()
    notes.optimizes = True
    notes.run(optimizer.step)
    assert [count.item() for count in counts] == [1, 1]
    assert linear.weight.equal(weight)


def test_functions_that_no_mode_sees_are_given_stand_ins_too() -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(given)
            return given * 2

        @staticmethod
        def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * 2

    notes, real = Notes(), torch.ones(3, requires_grad=True)
    notes.run(lambda: Doubled.apply(real).sum().backward())
    assert real.grad is None
    Doubled.apply(real).sum().backward()  # torch's own again
    assert real.grad is not None


def test_the_device_that_is_recorded_is_the_meta_device() -> None:
    notes = Notes()
    assert notes.run(lambda: torch.zeros(2, device="cpu")).is_meta
    assert notes.run(lambda: torch.zeros(2).to("cpu")).is_meta
    assert notes.run(lambda: torch.zeros(2).to(torch.device("cpu"), torch.float64)).dtype == torch.float64
    notes.optimizes = True
    assert not notes.run(lambda: torch.tensor(0.0)).is_meta
    assert len(notes.made) == 1


def test_sparse_tensors_are_refused() -> None:
    with pytest.raises(UsageError, match="layout"):
        Notes().run(lambda: torch.sparse.sum(SPARSE))


SPARSE = torch.eye(2).to_sparse()
