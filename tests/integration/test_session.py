"""`umadvise.session`: tensors go in and come back, the budget holds, the policies do what they say."""

import copy
import gc
import logging
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from small_networks import NETWORKS, OPTIMIZERS, Network, different, same_bits, steps
from torch import nn
from torch.nn import functional

import umadvise
from umadvise import _native
from umadvise._native.abi import Allocation, Memory
from umadvise.errors import InvalidSizeError, PolicyError, StateError, UsageError
from umadvise.records.enums import Advice, Role
from umadvise.records.fault_profile import FaultProfile
from umadvise.records.units import parse_bytes

pytestmark = pytest.mark.usefixtures("unpatched")

MIB = 1 << 20
Find = Callable[[torch.Tensor], Allocation | None]


def small() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(256, 1024), nn.BatchNorm1d(1024), nn.ReLU(), nn.Dropout(0.2), nn.Linear(1024, 256))
    return model, torch.optim.AdamW(model.parameters())


def small_steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int) -> list[torch.Tensor]:
    losses = []
    for _ in range(count):
        loss = functional.mse_loss(model(torch.randn(64, 256)), torch.zeros(64, 256))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    found = dict(model.state_dict(keep_vars=True))
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            found[f"{name}.grad"] = parameter.grad
        found.update({f"{name}.{key}": value for key, value in optimizer.state[parameter].items()})
    return found


def on_device(tensors: dict[str, torch.Tensor]) -> set[bool]:
    return {umadvise.on_device(tensor) for tensor in tensors.values()}


# ---- in and out ----------------------------------------------------------------------------------------------------


def test_in_and_out_again_changes_no_bit() -> None:
    model, optimizer = small()
    expected = [*small_steps(model, optimizer, 5)]
    expected_after = everything(model, optimizer)

    model, optimizer = small()
    losses = small_steps(model, optimizer, 1)
    before = {name: id(tensor) for name, tensor in everything(model, optimizer).items()}
    with umadvise.session(model, optimizer, device="emulated", capacity="16MiB", policy="advise"):
        assert on_device(everything(model, optimizer)) == {True}
        losses += small_steps(model, optimizer, 3)
        assert on_device(everything(model, optimizer)) == {True}
    assert on_device(everything(model, optimizer)) == {False}
    kept = {name: id(tensor) for name, tensor in everything(model, optimizer).items() if not name.endswith("grad")}
    assert kept == {name: number for name, number in before.items() if not name.endswith("grad")}
    losses += small_steps(model, optimizer, 1)
    assert all(map(same_bits, losses, expected))
    assert different(everything(model, optimizer), expected_after) == []
    assert not umadvise.torch_seam.runtime.is_patched()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_tensors_come_back_after_an_exception(error: type[BaseException]) -> None:
    model, optimizer = small()
    small_steps(model, optimizer, 1)
    with pytest.raises(error), umadvise.session(model, optimizer, device="emulated", capacity="16MiB") as um, um.step():
        loss = model(torch.randn(64, 256)).sum()
        loss.backward()
        raise error
    del loss
    assert on_device(everything(model, optimizer)) == {False}
    assert not umadvise.torch_seam.runtime.is_patched()
    assert um.profile().step_count == 1
    small_steps(model, optimizer, 1)


def test_an_exception_in_a_forward_leaves_no_module_behind() -> None:
    class Breaks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                raise ValueError("broken")
            return x * 2

    model = nn.Sequential(nn.Linear(4, 4), Breaks())
    with umadvise.session(model, device="emulated", capacity="16MiB"):
        with pytest.raises(ValueError, match="broken"):
            model(torch.ones(2, 4))
        made = torch.ones(100)
        found = _native.allocation_at(umadvise.torch_seam.runtime.address_of(made))
        assert found is not None
        assert found.birth_module == ""
        model.eval()
        model(torch.ones(2, 4))


def test_views_and_tied_weights_follow() -> None:
    model = nn.ModuleDict({"one": nn.Linear(8, 8), "other": nn.Linear(8, 8)})
    model["other"].weight = model["one"].weight
    before = model["one"].weight.detach()[2:4]
    with umadvise.session(model, device="emulated", capacity="16MiB"):
        inside = model["one"].weight.detach().t()[1:]
        assert umadvise.on_device(before)
        with torch.no_grad():
            model["other"].weight.fill_(3.0)
    for view in (before, inside):
        assert not umadvise.on_device(view)
        assert torch.equal(view, torch.full_like(view, 3.0))
    with torch.no_grad():
        model["one"].weight[2, 3] = 4.0
    assert before[0, 3] == 4.0
    assert inside[2, 2] == 4.0
    assert model["other"].weight is model["one"].weight


def test_buffers_that_share_a_storage_with_others() -> None:
    whole = torch.arange(100.0)
    model = nn.Module()
    model.register_buffer("part", whole[10:20])
    with umadvise.session(model, device="emulated", capacity="16MiB"):
        assert umadvise.on_device(whole)
        model.get_buffer("part").add_(1)
    assert not umadvise.on_device(whole)
    assert whole[10:12].tolist() == [11.0, 12.0]
    assert whole[20] == 20.0


def test_what_cannot_move_stays() -> None:
    model = nn.Module()
    model.register_buffer("sparse", torch.eye(3).to_sparse())
    model.register_buffer("empty", torch.empty(0))
    model.register_buffer("meta", torch.empty(5, device="meta"))
    model.register_buffer("foreign", torch.frombuffer(bytearray(b"\x01\x02\x03\x04"), dtype=torch.uint8))
    model.weight = nn.Parameter(torch.ones(3))
    with umadvise.session(model, device="emulated", capacity="16MiB"):
        assert umadvise.on_device(model.weight)
        assert torch.equal(model.get_buffer("sparse").to_dense(), torch.eye(3))
        assert model.get_buffer("foreign").tolist() == [1, 2, 3, 4]
    assert model.get_buffer("foreign").tolist() == [1, 2, 3, 4]
    assert not umadvise.on_device(model.weight)


def test_optimizer_state_that_is_loaded_inside_lives_on_the_device() -> None:
    model, optimizer = small()
    small_steps(model, optimizer, 2)
    saved = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    expected = small_steps(model, optimizer, 2)
    model, optimizer = small()
    with umadvise.session(model, optimizer, device="emulated", capacity="16MiB"):
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        assert on_device(everything(model, optimizer)) == {True}
        torch.manual_seed(5)
        nn.Linear(256, 1024), nn.Linear(1024, 256)
        small_steps(*small(), 2)
        assert all(map(same_bits, small_steps(model, optimizer, 2), expected))
    assert on_device(everything(model, optimizer)) == {False}


def left_on_device(optimizer: torch.optim.Optimizer) -> int:
    leaves = torch.utils._pytree.tree_leaves([list(state.values()) for state in optimizer.state.values()])
    return sum(umadvise.on_device(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor))


def test_state_in_lists_comes_back() -> None:
    model = nn.Linear(20, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    x = torch.randn(50, 20)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = model(x).square().mean()
        value.backward()
        return value

    with umadvise.session(model, optimizer, device="emulated", capacity="16MiB"):
        before = float(optimizer.step(loss).detach())
        assert left_on_device(optimizer) > 5
    assert left_on_device(optimizer) == 0
    assert float(optimizer.step(loss).detach()) < before


def test_sparse_gradients_come_back() -> None:
    model = nn.Embedding(100, 8, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters())
    with umadvise.session(model, optimizer, device="emulated", capacity="16MiB"):
        model(torch.arange(10)).sum().backward()
        optimizer.step()
        assert umadvise.on_device(model.weight.grad)
    assert model.weight.grad is not None
    assert not umadvise.on_device(model.weight.grad)
    assert not umadvise.on_device(model.weight.grad._indices())
    assert torch.equal(model.weight.grad.to_dense()[:11], torch.ones(11, 8) * torch.tensor([1.0] * 10 + [0.0])[:, None])


@pytest.mark.parametrize("policy", ["advise", "swap"])
def test_lazy_modules_train_and_have_names_once_they_have_shapes(policy: str) -> None:
    def trained(model: nn.Module) -> dict[str, torch.Tensor]:
        torch.manual_seed(3)
        model(torch.rand(2, 3, 9)).sum().backward()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.step()
        return {name: tensor.detach().clone() for name, tensor in everything(model, optimizer).items()}

    def lazy() -> nn.Module:
        return nn.Sequential(nn.LazyConv1d(4, 3), nn.LazyBatchNorm1d(), nn.Flatten(), nn.LazyLinear(5))

    expected, model = trained(lazy()), lazy()
    with umadvise.session(model, device="emulated", capacity="64MiB", policy=policy):
        found = {name: tensor.cpu() for name, tensor in trained(model).items()}
        placed = {each.name: Role(each.role) for each in umadvise.torch_seam.runtime.current().device.allocations()}
        assert placed["3.weight"] == placed["0.bias"] == Role.PARAMETER
        assert placed["3.weight.grad"] == Role.GRADIENT
    assert different(found, expected) == []
    assert on_device(everything(model, torch.optim.SGD(model.parameters()))) == {False}


def test_lazy_modules_move_before_they_have_shapes(patched: Callable[..., _native.Device]) -> None:
    patched("16MiB")
    model = nn.LazyLinear(5).to("cuda:readmostly").cpu().to(torch.float64).cuda()
    assert model(torch.ones(2, 3, dtype=torch.float64)).shape == (2, 5)
    assert umadvise.on_device(model.weight)


def test_what_only_the_optimizer_knows_goes_along() -> None:
    temperature = nn.Parameter(torch.ones(5))
    optimizer = torch.optim.SGD([temperature], lr=1.0)
    with umadvise.session(nn.Linear(2, 2), optimizer, device="emulated", capacity="16MiB"):
        assert umadvise.on_device(temperature)
        temperature.sum().backward()
        optimizer.step()
    assert not umadvise.on_device(temperature)
    assert temperature.tolist() == [0.0] * 5


def test_a_session_takes_over_from_an_earlier_device(patched: Callable[..., _native.Device]) -> None:
    first = patched("16MiB")
    model = nn.Linear(100, 100).to("cuda:readmostly")
    umadvise.unpatch()
    with umadvise.session(model, device="emulated", capacity="32MiB", policy="advise"):
        found = _native.allocation_at(umadvise.torch_seam.runtime.address_of(model.weight))
        assert found is not None
        assert found.device == umadvise.torch_seam.runtime.current().device.handle != first.handle
    assert not umadvise.on_device(model.weight)


def test_numpy_arrays_taken_inside_stay_good() -> None:
    model = nn.Linear(1000, 1000)
    with umadvise.session(model, device="emulated", capacity="16MiB"):
        array = model.weight.detach().numpy()
        expected = model.weight.detach().clone().cpu()
    gc.collect()
    assert torch.equal(torch.from_numpy(array), expected)
    array[0, 0] = 17.0
    assert model.weight[0, 0] == 17.0  # numpy and torch still share the memory, as torch promises


def test_numpy_arrays_taken_before_stay_good() -> None:
    model = nn.Linear(1000, 1000)
    array = model.weight.detach().numpy()
    before = array.copy()
    with umadvise.session(model, device="emulated", capacity="16MiB"):
        assert (array == before).all()
        with torch.no_grad():
            model.weight.zero_()
    gc.collect()
    junk = torch.ones(1000, 1000)
    assert (array == before).all()
    assert not model.weight.any()
    assert junk.all()


def test_several_models_and_optimizers() -> None:
    (one, first), (other, second) = small(), small()
    small_steps(one, first, 1)
    with umadvise.session([one, other], [first, second], device="emulated", capacity="32MiB") as um:
        for _ in range(2):
            with um.step():
                small_steps(one, first, 1)
                small_steps(other, second, 1)
        assert on_device(everything(one, first)) == on_device(everything(other, second)) == {True}
        names = {allocation.name for allocation in umadvise.torch_seam.runtime.current().device.allocations()}
        assert {"0.0.weight", "1.0.weight", "1.4.bias.exp_avg", "0.1.running_mean"} <= names
    assert on_device(everything(one, first)) == on_device(everything(other, second)) == {False}


def test_roles_find_themselves(patched: Callable[..., _native.Device]) -> None:
    device = patched("64MiB")
    model, optimizer = small()
    with umadvise.session(model, optimizer, policy="advise") as um:
        for _ in range(2):
            with um.step():
                x, y = um.to_device((torch.randn(64, 256).clone(), {"y": torch.zeros(64, 256)}))
                functional.mse_loss(model(x), y["y"]).backward()
                optimizer.step()
        found = {allocation.name: allocation for allocation in device.allocations() if allocation.name}
        weight, gradient, state = found["0.weight"], found["0.weight.grad"], found["0.weight.exp_avg"]
        assert (weight.role, weight.advice) == (Role.PARAMETER, Advice.PREFERRED_LOCATION)
        assert gradient.role == Role.GRADIENT
        assert state.role == Role.OPTIMIZER_STATE
        assert found["1.running_mean"].role == Role.PARAMETER
        stats = um.memory_stats().requested_by_role
        parameter_bytes = sum(parameter.nbytes for parameter in model.parameters())
        assert stats.gradient == parameter_bytes
        assert stats.parameter == parameter_bytes + sum(buffer.nbytes for buffer in model.buffers())
        # exp_avg and exp_avg_sq, and a step count of 4 bytes for each parameter
        assert stats.optimizer_state == 2 * parameter_bytes + 4 * len(list(model.parameters()))


def test_batches_go_to_the_device(patched: Callable[..., _native.Device], allocation: Find) -> None:
    batch = {"x": torch.ones(3), "ys": [torch.arange(4), ("text", 5, None)]}
    patched()
    with umadvise.session(nn.Linear(2, 2), policy="advise") as um:
        moved: dict[str, Any] = um.to_device(batch)
        found = allocation(moved["x"])
        assert found is not None
        assert (found.role, found.advice) == (Role.INPUT, Advice.READ_MOSTLY)
        assert moved["ys"][1] == ("text", 5, None)
        assert torch.equal(moved["ys"][0], batch["ys"][0])
    assert not umadvise.on_device(batch["x"])


# ---- policies ------------------------------------------------------------------------------------------------------


def test_policies_choose_the_memory(allocation: Find) -> None:
    memories = {"resident": Memory.DEVICE, "swap": Memory.CHUNKED, "swap+recompute": Memory.CHUNKED}
    for policy in ("resident", "advise", "window", "swap", "swap+recompute", "auto"):
        memory = memories.get(policy, Memory.MANAGED)
        model, optimizer = small()
        with umadvise.session(model, optimizer, device="emulated", capacity="64MiB", policy=policy) as um:
            small_steps(model, optimizer, 2)
            found = [allocation(tensor) for tensor in everything(model, optimizer).values()]
            assert {each.memory for each in found if each} == {memory}
            if policy == "resident":
                assert um.counters().fault_groups == 0


def test_resident_needs_room() -> None:
    model, optimizer = small()
    with (
        pytest.raises(torch.OutOfMemoryError, match="MiB"),
        umadvise.session(model, optimizer, device="emulated", capacity="16MiB", policy="resident"),
    ):
        torch.empty(32 * MIB)
    assert on_device(everything(model, optimizer)) == {False}
    with (
        pytest.raises(torch.OutOfMemoryError, match="MiB"),
        umadvise.session(nn.Linear(4096, 4096), device="emulated", capacity="16MiB", policy="resident"),
    ):
        raise AssertionError("it fits?")
    assert not umadvise.torch_seam.runtime.is_patched()


def train_under_auto(capacity: str, caplog: pytest.LogCaptureFixture, **options: Any) -> tuple[list[str], int]:
    """What was logged, and the memory of a tensor made at the end."""
    model, optimizer = small()
    with (
        caplog.at_level(logging.INFO, logger="umadvise"),
        umadvise.session(model, optimizer, device="emulated", capacity=capacity, policy="auto", **options) as um,
    ):
        for _ in range(4):
            with um.step():
                small_steps(model, optimizer, 1)
        made = torch.ones(10)
        found = _native.allocation_at(umadvise.torch_seam.runtime.address_of(made))
        assert found is not None
    return [record.getMessage() for record in caplog.records if "auto" in record.getMessage()], found.memory


def test_auto_stays_resident_where_a_step_fits(caplog: pytest.LogCaptureFixture) -> None:
    logged, memory = train_under_auto("64MiB", caplog)
    assert len(logged) == 2
    assert "advise from step 1 on" in logged[0]
    assert "resident from step 3 on" in logged[1]
    assert "64.00 MiB" in logged[1]
    assert memory == Memory.DEVICE


def test_auto_predicts_swaps_of_what_shares_chunks(caplog: pytest.LogCaptureFixture) -> None:
    """Weights of 1 MiB are half a chunk."""
    logged, memory = train_under_auto("64MiB", caplog, budget="6MiB")
    assert "advise from step 1 on" in logged[0]
    assert {"advise", "window", "swap"} <= set(logged[1].split("predicted steps:")[1].split())
    assert memory == (Memory.CHUNKED if "swap from step 3 on" in logged[1] else Memory.MANAGED)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"policy": "fastest"}, PolicyError),
        ({"policy": "swap:fastest"}, PolicyError),
        ({"fault_threshold": 2.0}, UsageError),
        ({"budget": "many"}, InvalidSizeError),
        ({"capacity": "1GiB"}, UsageError),
        ({"capacity": "1GiB", "device": "cuda"}, UsageError),
        ({"device": "emulated", "capacity": "x"}, InvalidSizeError),
        ({"device": "gpu"}, UsageError),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error), umadvise.session(nn.Linear(2, 2), **arguments):
        pass
    assert not umadvise.torch_seam.runtime.is_patched()


# ---- the budget ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["advise", "window", "swap", "auto"])
def test_the_budget_is_kept(policy: str) -> None:
    network: Network = NETWORKS["transformer"]
    budget_bytes = 96 * MIB
    torch.manual_seed(1)
    model = network.model()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    resident = []
    with umadvise.session(
        model, optimizer, device="emulated", capacity="256MiB", budget=budget_bytes, policy=policy
    ) as um:
        for _ in range(2):
            with um.step():
                list(steps(network, model, optimizer, 1))
                resident.append(um.memory_stats().resident_bytes)
        assert um.counters().bytes_d2h.user or um.swap_counters().swap_out_bytes
    assert max(resident) <= budget_bytes


@pytest.mark.parametrize(("budget", "fits"), [("22MiB", True), ("7MiB", False)])
def test_resident_keeps_the_budget_too(budget: str, fits: bool) -> None:
    model, optimizer = small()
    refused = pytest.raises(torch.OutOfMemoryError, match="beyond the limit of 7 MiB")
    with (
        nullcontext() if fits else refused,
        umadvise.session(model, optimizer, device="emulated", capacity="64MiB", budget=budget, policy="resident") as um,
    ):
        small_steps(model, optimizer, 2)
        torch.ones(2 * MIB)  # 8 MiB
    assert um.memory_stats().resident_peak_bytes <= parse_bytes(budget)


def test_a_session_inside_a_patch_gives_the_budget_back(patched: Callable[..., _native.Device]) -> None:
    device = patched("64MiB", budget="48MiB")
    model, optimizer = small()
    with umadvise.session(model, optimizer, budget="16MiB", policy="advise") as session:
        small_steps(model, optimizer, 1)
        assert session.profile().environment.budget_bytes == 16 * MIB
        torch.ones(10 * MIB).add_(1)  # an op that is larger than the budget runs all the same
        torch.ones(1).add_(1)
        assert device.memory().resident_bytes <= 16 * MIB
    assert umadvise.torch_seam.runtime.is_patched()
    assert on_device(everything(model, optimizer)) == {False}
    assert torch.ones(10 * MIB).add_(1).sum() > 0
    torch.ones(1).add_(1)
    assert device.memory().resident_bytes > 16 * MIB


# ---- order of things -----------------------------------------------------------------------------------------------


def test_one_session_after_another() -> None:
    model, optimizer = small()
    expected = small_steps(model, optimizer, 4)
    model, optimizer = small()
    losses = []
    reports: list[FaultProfile] = []
    for capacity in ("16MiB", "32MiB"):
        with umadvise.session(model, optimizer, device="emulated", capacity=capacity) as um:
            for _ in range(2):
                with um.step():
                    losses += small_steps(model, optimizer, 1)
        reports.append(um.profile())
    assert all(map(same_bits, losses, expected))
    assert [report.step_count for report in reports] == [2, 2]
    assert [report.environment.capacity_bytes for report in reports] == [16 * MIB, 32 * MIB]


def test_one_at_a_time(patched: Callable[..., _native.Device]) -> None:
    with umadvise.session(nn.Linear(2, 2), device="emulated", capacity="16MiB"):
        with pytest.raises(StateError, match="a session"), umadvise.session(nn.Linear(2, 2)):
            pass
        with pytest.raises(StateError, match="a session"):
            umadvise.unpatch()
        with pytest.raises(StateError, match="a session is open"):
            umadvise.patch(device="emulated")
        assert umadvise.on_device(torch.ones(3) + 1)
    patched("16MiB")
    with umadvise.session(nn.Linear(2, 2)), pytest.raises(StateError, match="a session"):
        umadvise.unpatch()
    umadvise.unpatch()


def test_used_out_of_turn() -> None:
    um = umadvise.session(nn.Linear(2, 2), device="emulated", capacity="16MiB")
    for early in (um.profile, um.report, um.counters, um.memory_stats):
        with pytest.raises(StateError, match="not open"):
            early()
    with pytest.raises(StateError, match="not open"), um.step():
        pass
    with pytest.raises(StateError, match="not open"):
        um.to_device(torch.ones(2))


def test_the_report_after_the_session(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, optimizer = small()
    with umadvise.session(model, optimizer, device="emulated", capacity="16MiB", policy="advise") as um:
        for _ in range(2):
            with um.step():
                small_steps(model, optimizer, 1)
        inside = um.profile()
    outside = um.profile()
    assert outside.step_count == inside.step_count == 2
    assert outside.counters == inside.counters
    um.report(tmp_path / "profile.json")
    assert "fault" in capsys.readouterr().out
    assert (tmp_path / "profile.json").stat().st_size > 100
    assert um.counters().op_count
    assert um.memory_stats().requested_by_role.parameter > 0  # as it was at the end
    with pytest.raises(StateError), um.step():
        pass


def test_survivors_are_named(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, logger="umadvise"),
        umadvise.session(nn.Linear(2, 2), device="emulated", capacity="16MiB"),
    ):
        kept = torch.ones(MIB)
    assert [record.getMessage() for record in caplog.records][1:] == [
        "1 tensors (4.00 MiB) outlive the session; their device goes with the last of them"
    ]
    assert umadvise.on_device(kept)
    assert int(kept.sum()) == MIB


@pytest.mark.parametrize("policy", ["resident", "advise", "auto"])
def test_advice_for_intermediates_beats_the_policy(
    policy: str, patched: Callable[..., _native.Device], allocation: Find
) -> None:
    patched()
    torch.cuda.set_unified("readmostly")  # type: ignore[attr-defined]
    model, optimizer = small()
    with umadvise.session(model, optimizer, policy=policy) as um:
        for _ in range(3):
            with um.step():
                small_steps(model, optimizer, 1)
        made = allocation(torch.ones(10) + 1)
        assert made is not None
        assert (made.memory, made.advice) == (Memory.MANAGED, Advice.READ_MOSTLY)
