"""Sessions that record, plan and drive: the same bits as vanilla, plans in force, and nothing left behind."""

import copy
import functools
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from pairwise import by_turns
from small_networks import different, same_bits
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.optim import adamw
from torch.utils import swap_tensors
from torch.utils.checkpoint import checkpoint

import umadvise
from umadvise import EmulatedDevice, _native
from umadvise._native.abi import Memory, ProgramStatus
from umadvise.torch_seam import runtime

pytestmark = pytest.mark.usefixtures("unpatched")

MIB = 1 << 20
WIDTH = 1024  # a weight is 4 MiB, two chunks
BUDGET = "40MiB"  # of 72 MiB that a step needs
SWAPPED = ["swap", "swap:window", "belady"]


def layers(count: int = 4) -> nn.Sequential:
    return nn.Sequential(*(each for _ in range(count) for each in (nn.Linear(WIDTH, WIDTH), nn.GELU())))


class Training:
    """A model, its optimizer, and steps on seeded batches."""

    def __init__(self, *, foreach: bool = False) -> None:
        torch.manual_seed(3)
        self.model = layers()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), foreach=foreach)
        self.losses: list[float] = []

    def forward(self, rows: int = 16) -> torch.Tensor:
        batch = torch.randn(rows, WIDTH)
        return functional.mse_loss(self.model(batch), torch.zeros(rows, WIDTH))

    def step(self, rows: int = 16) -> None:
        loss = self.forward(rows)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())

    def tensors(self) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = dict(self.model.named_parameters())
        for name, parameter in self.model.named_parameters():
            found.update({f"{name}.{key}": value for key, value in self.optimizer.state[parameter].items()})
            if parameter.grad is not None:
                found[f"{name}.grad"] = parameter.grad
        return {name: tensor.detach().clone() for name, tensor in found.items()}


@functools.lru_cache(maxsize=2)
def vanilla(count: int, rows: Callable[[int], int] = lambda _: 16, **options: bool) -> Training:
    training = Training(**options)
    for number in range(1, count + 1):
        training.step(rows(number))
    return training


def session(training: Training, policy: str, **options: Any) -> umadvise.session:
    options = {"device": "emulated", "capacity": "128MiB", "budget": BUDGET} | options
    return umadvise.session(training.model, training.optimizer, policy=policy, **options)


def assert_same(found: Training, expected: Training) -> None:
    assert found.losses == expected.losses
    assert different(found.tensors(), expected.tensors()) == []


# ---- record, plan, drive -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [*SWAPPED, "window", "swap+recompute"])
def test_driven_steps_change_no_bit(policy: str) -> None:
    expected, training = vanilla(5), Training()
    statuses = []
    with session(training, policy) as um:
        for _ in range(5):
            with um.step():
                training.step()
            statuses.append(um.swap_counters().program)
        assert um.rung == {"belady": "swap+recompute", "swap:window": "swap"}.get(policy, policy)
        assert um.plan is not None
        assert len(um.plan) > 0
    # the first step makes the optimizer's state, the second one is recorded, the others are driven
    assert statuses == [ProgramStatus.NONE] + [ProgramStatus.WAITING] * 4
    assert_same(training, expected)


def test_the_plan_brings_everything_in_time_and_keeps_the_budget() -> None:
    training = Training()
    counted = []
    with session(training, "swap") as um:
        for _ in range(8):
            with um.step():
                training.step()
            counted.append(um.swap_counters())
            assert counted[-1].used_peak_bytes <= 40 * MIB
            assert (um.memory_stats().resident_peak_bytes or 0) <= 40 * MIB
    steady = list(pairwise(counted))[3:]
    assert all(after.actions > before.actions for before, after in steady)
    assert all(after.swap_ins > before.swap_ins for before, after in steady)
    assert all(after.on_demand_swap_ins == before.on_demand_swap_ins for before, after in steady)


def test_parameters_may_be_swapped_for_others() -> None:
    """As `torch.__future__.set_swap_module_params_on_conversion` has modules do it; none refers to them."""

    def train(training: Training, step: Callable[[], AbstractContextManager[object]]) -> None:
        for number in range(1, 9):
            if number == 5:
                swap_tensors(training.model[0].weight, training.model[2].weight)
            with step():
                training.step()

    expected, training = Training(), Training()
    torch.manual_seed(4)
    train(expected, nullcontext)
    torch.manual_seed(4)
    with session(training, "swap") as um:
        train(training, um.step)
        assert um.swap_counters().programs_followed >= 3
    assert_same(training, expected)


class _Packed(Training):
    """Autograd saves doubles in the place of its tensors, whose bytes are made within the ops that save."""

    def step(self, rows: int = 512) -> None:
        def pack(tensor: torch.Tensor) -> tuple[str, torch.Tensor]:
            return "packed", tensor.double()

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed[1].float()):
            loss = self.forward(rows)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())


class _Dual(Training):
    """Forward-mode differentiation keeps a tangent with each result, which the same op makes."""

    def step(self, rows: int = 1024) -> None:
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(torch.randn(rows, WIDTH), torch.randn(rows, WIDTH))
            value, tangent = forward_ad.unpack_dual(self.model(dual))
            loss = value.square().mean() + tangent.square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())


@pytest.mark.parametrize(("kind", "budget"), [(_Packed, "56MiB"), (_Dual, "40MiB")])
def test_what_is_made_within_ops_leaves_and_is_brought_back_in_time(kind: type[Training], budget: str) -> None:
    """Too much for the budget if it stays: of 12 tensors of 4 MiB and 4 of 8 for backward, or of 16 tangents of 4."""
    expected, training = kind(), kind()
    torch.manual_seed(4)
    for _ in range(7):
        expected.step()
    counted = []
    torch.manual_seed(4)
    with session(training, "swap", budget=budget, capacity="256MiB") as um:
        for _ in range(7):
            with um.step():
                training.step()
            counted.append(um.swap_counters())
        assert um.memory_stats().requested_peak_bytes > 90 * MIB
    steady = list(pairwise(counted))[3:]
    assert all(after.swap_ins > before.swap_ins for before, after in steady)
    assert all(after.on_demand_swap_ins == before.on_demand_swap_ins for before, after in steady)
    assert_same(training, expected)


@pytest.mark.parametrize("policy", ["swap", "auto"])
def test_whole_model_ops_are_divided(policy: str) -> None:
    expected, training = vanilla(4, foreach=True), Training(foreach=True)
    with session(training, policy) as um:
        for _ in range(4):
            with um.step():
                training.step()
        assert um.swap_counters().used_peak_bytes <= 40 * MIB
    assert_same(training, expected)
    assert not hasattr(adamw.adamw, "__wrapped__")  # torch's own again


def test_an_odd_batch_is_driven_by_the_plan_of_the_others(caplog: pytest.LogCaptureFixture) -> None:
    def rows(number: int) -> int:
        return 12 if number in (5, 9) else 16

    expected, training = vanilla(11, rows), Training()
    plans, counted = [], []
    with caplog.at_level(logging.INFO, logger="umadvise"), session(training, "swap") as um:
        for number in range(1, 12):
            with um.step():
                training.step(rows(number))
            plans.append(um.plan)
            counted.append(um.swap_counters())
    assert_same(training, expected)
    assert plans[2] is not None
    assert plans[4].actions is plans[2].actions
    assert plans[10].actions is plans[2].actions
    assert [each.program for each in counted[2:]] == [ProgramStatus.WAITING] * 9
    assert [each.unknown_ops for each in counted[2:]] == [0] * 9
    assert "left its plan" not in caplog.text
    assert counted[4].made_bytes < counted[4].program_made_bytes  # a smaller step, by the plan of a larger one


def test_another_batch_size_from_now_on_is_planned(caplog: pytest.LogCaptureFixture) -> None:
    def rows(number: int) -> int:
        return 16 if number < 4 or number > 6 else 96

    expected, training = vanilla(9, rows), Training()
    counted = []
    with caplog.at_level(logging.INFO, logger="umadvise"), session(training, "swap") as um:
        for number in range(1, 10):
            with um.step():
                training.step(rows(number))
            counted.append(um.swap_counters())
    assert_same(training, expected)
    numbers = [each.program_number for each in counted]
    assert numbers[3] == numbers[2]  # by the only plan that there is, and recorded
    assert numbers[4:6] == [numbers[4]] * 2 != numbers[2:4]
    assert numbers[6:] == [numbers[2]] * 3  # by the first plan again
    assert [each.unknown_ops for each in counted[2:]] == [0] * 7
    assert caplog.text.count("a plan of best") == 3  # one of them for what the first step told of the second


def test_evaluation_between_steps_and_as_a_step() -> None:
    def run(training: Training, steps: Callable[[], Any]) -> list[float]:
        found = []
        for number in range(1, 8):
            with steps():
                if number == 5:
                    with torch.no_grad():
                        found.append(training.forward().item())
                else:
                    training.step()
            if number % 3 == 0:
                training.model.eval()
                with torch.no_grad():
                    found.append(training.forward(32).item())
                training.model.train()
        return found

    plain = Training()
    expected = run(plain, nullcontext)
    training = Training()
    with session(training, "swap") as um:
        assert run(training, um.step) == expected
        assert um.swap_counters().program == ProgramStatus.WAITING
    assert_same(training, plain)


class Checkpointed(nn.Module):
    """Layers in regions that the user marked."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(6))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            rows = checkpoint(
                lambda x, layer=layer: torch.tanh(functional.gelu(layer(x))) * x, rows, use_reentrant=False
            )
        return rows


def checkpointed_losses(step: Callable[[], Any], model: nn.Module, count: int) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    torch.manual_seed(6)
    for _ in range(count):
        with step():
            loss = model(torch.randn(4096, 256)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def test_what_a_plan_makes_again_runs_again_in_marked_regions(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(5)
    plain = Checkpointed()
    model = copy.deepcopy(plain)
    expected = checkpointed_losses(nullcontext, plain, 5)
    with (
        caplog.at_level(logging.INFO, logger="umadvise"),
        umadvise.session(model, device="emulated", capacity="256MiB", budget="90MiB", policy="sqrt-recompute") as um,
    ):
        peaks = []

        @contextmanager
        def step() -> Iterator[None]:
            with um.step():
                yield
            peaks.append(um.memory_stats().requested_peak_bytes)

        assert checkpointed_losses(step, model, 5) == expected
        assert um.swap_counters().program == ProgramStatus.WAITING
    assert "ops in 6 marked regions run again" in caplog.text
    assert max(peaks[2:]) < 0.7 * peaks[1]  # the first one ran under torch's own checkpoint, to be watched


def test_a_plan_of_recomputations_keeps_to_what_may_run_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers whose dropout never runs twice, which are given a mask that dies in forward; a search finds the plan."""
    monkeypatch.setenv("UMADVISE_PLAN_SEARCH", "")

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(6))

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            mask = torch.full((4096, 256), 0.1)
            for layer in self.layers:
                rows = checkpoint(self.region, layer, rows, mask, use_reentrant=False)
            return rows

        def region(self, layer: nn.Module, rows: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return functional.dropout(torch.tanh(functional.gelu(layer(rows) + mask)), 0.2) * rows

    torch.manual_seed(5)
    plain = Masked()
    model = copy.deepcopy(plain)
    expected = checkpointed_losses(nullcontext, plain, 8)
    device = umadvise.EmulatedDevice("256MiB", clock="v100-16gb")  # where copies take longer than these ops
    with (
        caplog.at_level(logging.INFO, logger="umadvise"),
        umadvise.session(model, device=device, budget="80MiB", policy="swap+recompute") as um,
    ):
        assert checkpointed_losses(um.step, model, 8) == expected
        assert um.swap_counters().program == ProgramStatus.WAITING
    assert "marked regions run again" in caplog.text
    assert "no marked region" not in caplog.text


def test_without_marked_regions_plans_are_of_swaps_alone(caplog: pytest.LogCaptureFixture) -> None:
    training = Training()
    with (
        caplog.at_level(logging.INFO, logger="umadvise"),
        session(training, "sqrt-recompute", budget="112MiB", capacity="256MiB") as um,
    ):
        for _ in range(4):
            with um.step():
                training.step(2048)
        assert um.swap_counters().program == ProgramStatus.WAITING
    assert "lie in no marked region" in caplog.text
    assert "a plan of best" in caplog.text


# ---- things that users do ------------------------------------------------------------------------------------------


class StopBackwardError(Exception):
    pass


@pytest.mark.parametrize(("policy", "failing"), by_turns(["swap", "window"], [4, 1]))
def test_an_exception_in_backward_and_on(policy: str, failing: int) -> None:
    def stop(_: torch.Tensor) -> None:
        raise StopBackwardError

    def run(training: Training, step: Callable[[], Any]) -> None:
        for number in range(1, 8):
            if number == failing:
                with pytest.raises(StopBackwardError), step():
                    loss = training.forward()
                    training.optimizer.zero_grad()
                    hook = training.model[2].weight.register_hook(stop)
                    try:
                        loss.backward()
                    finally:
                        hook.remove()
                        del loss
            else:
                with step():
                    training.step()

    expected = Training()
    run(expected, nullcontext)
    training = Training()
    with session(training, policy) as um:
        run(training, um.step)
        assert um.swap_counters().program == ProgramStatus.WAITING
    assert_same(training, expected)


def test_the_state_can_be_looked_at_copied_and_saved(tmp_path: Path) -> None:
    expected, training = vanilla(5), Training()
    seen: list[Any] = []
    with session(training, "swap") as um:
        for number in range(1, 6):
            with um.step():
                training.step()
            if number == 4:
                state = copy.deepcopy(training.model.state_dict())
                torch.save(training.model.state_dict(), tmp_path / "model.pt")
                seen = [
                    training.model[0].weight.detach().numpy().copy(),
                    float(training.model[6].weight.detach().sum()),
                ]
    four = vanilla(4)
    assert different(dict(state), dict(four.model.state_dict())) == []
    assert different(torch.load(tmp_path / "model.pt"), dict(four.model.state_dict())) == []
    assert (seen[0] == four.model[0].weight.detach().numpy()).all()
    assert seen[1] == float(four.model[6].weight.detach().sum())
    assert_same(training, expected)


@pytest.mark.parametrize("policy", ["swap", "window", "auto"])
def test_inference_under_a_budget(policy: str) -> None:
    torch.manual_seed(1)
    model = layers(12)  # 48 MiB
    batches = [torch.randn(32, WIDTH) for _ in range(5)]
    with torch.no_grad():
        expected = [model(batch) for batch in batches]
    found = []
    with (
        umadvise.session(model, device="emulated", capacity="64MiB", budget="24MiB", policy=policy) as um,
        torch.no_grad(),
    ):
        for batch in batches:
            with um.step():
                found.append(model(um.to_device(batch)).cpu())
        if policy == "swap":
            counters = um.swap_counters()
            assert counters.program == ProgramStatus.WAITING
            assert counters.swap_in_bytes > 48 * MIB
            assert counters.swap_out_bytes <= 24 * MIB  # weights are clean once the host has them
            assert counters.used_peak_bytes <= 24 * MIB
    assert all(map(same_bits, found, expected))


# ---- the end -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["swap", "window"])
def test_nothing_is_left_after_a_session(policy: str, patched: Callable[..., _native.Device]) -> None:
    expected, training = vanilla(6), Training()
    device = patched("128MiB")
    for _ in range(2):
        with session(training, policy, device=None, capacity=None) as um:
            for _ in range(3):
                with um.step():
                    training.step()
        counters = device.swap_counters()
        assert counters.program == ProgramStatus.NONE
        assert (counters.used_bytes, counters.host_bytes) == (0, 0)
        assert counters.host_pool_bytes <= counters.chunk_bytes
        assert not umadvise.on_device(training.model[0].weight)
        assert device.allocations() == []
    assert_same(training, expected)
    made = torch.ones(4 * MIB)
    found = _native.allocation_at(runtime.address_of(made))
    assert found is not None
    assert found.memory == Memory.MANAGED


def test_what_outlives_the_session_stays_good() -> None:
    training = Training()
    device = EmulatedDevice(capacity="128MiB")
    with session(training, "swap", device=device, capacity=None) as um:
        kept = []
        for _ in range(4):
            with um.step():
                training.step()
                kept.append(training.model[0].weight.detach() * 2)
        expected = [tensor.cpu() for tensor in kept]
    assert all(umadvise.on_device(tensor) for tensor in kept)
    assert all(map(same_bits, kept, expected))


# ---- plans that are kept -------------------------------------------------------------------------------------------


def test_the_next_start_does_not_plan_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _native.install_allocator()  # compiles the hooks before their cache is another one
    monkeypatch.setenv("UMADVISE_PLAN_CACHE", "")
    monkeypatch.setenv("UMADVISE_PLAN_SEARCH", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    expected = vanilla(5)
    for source in ("found by its search", "was known"):
        training = Training()
        caplog.clear()
        device = EmulatedDevice("128MiB", clock="v100-16gb")
        with (
            caplog.at_level(logging.INFO, logger="umadvise"),
            session(training, "swap", device=device, capacity=None) as um,
        ):
            for _ in range(5):
                with um.step():
                    training.step()
            assert um.plan is not None
        assert source in caplog.text
        assert len(list((tmp_path / "cache" / "umadvise" / "plans").glob("*.plan"))) == 1
        shutil.rmtree(tmp_path / "cache" / "umadvise" / "steps")  # so that steps are recorded again
        assert_same(training, expected)


# ---- the governor --------------------------------------------------------------------------------------------------


def test_auto_goes_up_where_faults_cost_too_much(caplog: pytest.LogCaptureFixture) -> None:
    """What fits by its state and not with its activations begins on `advise`; no fault is allowed here."""
    expected, training = vanilla(8, lambda _: 1024), Training()
    with (
        caplog.at_level(logging.INFO, logger="umadvise"),
        session(training, "auto", budget="80MiB", capacity="256MiB", fault_threshold=0) as um,
    ):
        for _ in range(8):
            with um.step():
                training.step(1024)
        assert um.rung != "advise"
        rungs = [change.rung for change in um.profile().rungs]
    assert rungs[0] == "advise"
    assert "policy auto: " in caplog.text
    assert_same(training, expected)


def test_the_report_says_the_rung_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    training = Training()
    with session(training, "auto") as um, um.step():
        training.step()
    um.report()
    assert "Rung advise from step 1 on: what a step needs is not known before it has run" in capsys.readouterr().out


def test_a_charged_link_is_what_plans_are_made_for() -> None:
    training = Training()
    device = EmulatedDevice(capacity="128MiB", link="v100-pcie-16gb")
    with session(training, "swap", device=device, capacity=None) as um:
        for _ in range(4):
            with um.step():
                training.step()
        assert runtime.current().device.link_profile.name == "v100-pcie-16gb"
        assert um.plan is not None
    assert_same(training, vanilla(4))
