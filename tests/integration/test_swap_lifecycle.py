"""What scripts do with live tensors works while they are swapped, with the values of vanilla PyTorch; nothing leaks.

Each scenario is a function of a training that runs twice, plain and in a session whose budget is half of the need, and
returns what it saw.
"""

import copy
import functools
import gc
import io
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fast_networks import FAST_NETWORKS
from pairwise import by_turns
from small_networks import MIB, Network, different
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from training_variants import OPTIMIZERS, Loop
from usable_policies import usable

import umadvise
from umadvise import _native
from umadvise.errors import StateError
from umadvise.training.session import Session

BUDGET_BYTES = 20 * MIB
POLICIES = [policy for policy in ("swap:lru", "window", "advise") if usable(policy)]
SWAPPING = [policy for policy in POLICIES if policy.startswith("swap")]
PAGING = [policy for policy in POLICIES if policy not in SWAPPING]
COUNTED = (200, 600, 1000) if os.environ.get("UMADVISE_FULL") else (100, 200, 300)
Seen = dict[str, Any]


class Training:
    """A model that trains step by step: 34 MiB with its gradients and states."""

    def __init__(self, network: Network = FAST_NETWORKS["mlp"], optimizer: str = "adamw") -> None:
        torch.manual_seed(7)
        self.model = network.model()
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.loop = Loop(network, self.model, self.optimizer)
        self.around: Callable[[], AbstractContextManager[None]] = nullcontext
        self.count = 0

    def steps(self, count: int = 3) -> None:
        for _ in range(count):
            with self.around():
                self.loop.step(self.count)
            self.count += 1

    def everything(self) -> Seen:
        found = {f"loss {index}": loss for index, loss in enumerate(self.loop.seen)}
        found.update({name: value.detach() for name, value in self.model.state_dict().items()})
        return found


Scenario = Callable[[Training], Seen]


@pytest.fixture(autouse=True)
def unpatched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("UMADVISE_PLAN_CACHE", "off")
    yield
    if umadvise.torch_seam.runtime.is_patched():
        umadvise.unpatch()
    gc.collect()


def opened(training: Training, policy: str, **options: Any) -> Session:
    device = umadvise.EmulatedDevice("64MiB", delays=20)
    um = umadvise.session(
        training.model, training.optimizer, device=device, budget=BUDGET_BYTES, policy=policy, **options
    )
    training.around = um.step
    return um


def in_session(scenario: Scenario, policy: str) -> Seen:
    training = Training()
    with opened(training, policy):
        seen = scenario(training)
        seen.update(training.everything())
        return {name: on_host(value) for name, value in seen.items()}


def on_host(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


@functools.cache
def plain(scenario: Scenario) -> Seen:
    training = Training()
    seen = scenario(training)
    return {name: on_host(value) for name, value in (seen | training.everything()).items()}


def assert_same(found: Seen, expected: Seen) -> None:
    assert found.keys() == expected.keys()
    tensors = {name: value for name, value in expected.items() if isinstance(value, torch.Tensor)}
    assert different({name: found[name] for name in tensors}, tensors) == []
    assert {name: found[name] for name in found.keys() - tensors} == {
        name: expected[name] for name in expected.keys() - tensors
    }


# ---- scenarios -----------------------------------------------------------------------------------------------------

SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__] = function
    return function


def first_weight(training: Training) -> torch.Tensor:
    return next(training.model.parameters())


@scenario
def tensors_outlive_their_step(training: Training) -> Seen:
    kept: list[torch.Tensor] = []
    handle = training.model.register_forward_hook(lambda _module, inputs, outputs: kept.extend([*inputs, outputs]))
    gradients = []
    for _ in range(4):
        training.steps(1)
        gradients.append(first_weight(training).grad)
    handle.remove()
    training.steps(3)
    return {f"kept {index}": tensor for index, tensor in enumerate([*kept, *gradients])}


@scenario
def views_of_swapped_tensors(training: Training) -> Seen:
    weight = first_weight(training).detach()
    views = [weight[5:9], weight.t(), weight.view(-1)[::3], weight.unfold(0, 2, 4)]
    training.steps(4)
    views[0].mul_(0.5)
    views[1][3].add_(0.25)
    training.steps(2)
    return {f"view {index}": view.clone() for index, view in enumerate(views)}


@scenario
def numpy_arrays(training: Training) -> Seen:
    training.steps(3)
    array = first_weight(training).detach().numpy()
    training.steps(1)
    array[3] = 0.125  # torch and numpy share the memory, as torch promises
    training.steps(2)
    seen = {"sum": float(array.astype(np.float64).sum()), "bytes": array[:9].tobytes()}
    del array
    training.steps(2)
    return seen


@scenario
def values_on_the_host(training: Training) -> Seen:
    seen: Seen = {}
    for step in range(5):
        weight = first_weight(training).detach()
        seen[f"{step}"] = (
            weight[3, 4].item(),
            weight[0, :3].tolist(),
            repr(weight),
            f"{weight.sum():.6f}",
            bool(weight.any()),
        )
        training.steps(1)
    return seen


@scenario
def state_dicts(training: Training) -> Seen:
    training.steps(3)
    live = training.model.state_dict()
    copied = copy.deepcopy({"model": live, "optimizer": training.optimizer.state_dict()})
    training.steps(2)
    seen = {f"then {name}": value.clone() for name, value in copied["model"].items()}
    seen.update({f"now {name}": value.clone() for name, value in live.items()})
    training.model.load_state_dict(copied["model"])
    training.optimizer.load_state_dict(copied["optimizer"])
    training.steps(3)
    return seen


@scenario
def saved_and_loaded(training: Training) -> Seen:
    seen: Seen = {}
    training.steps(3)
    for zipped in (True, False):
        file = io.BytesIO()
        words = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}
        torch.save(words, file, _use_new_zipfile_serialization=zipped)
        training.steps(1)
        file.seek(0)
        loaded = torch.load(file)
        seen.update({f"{zipped} {name}": value.clone() for name, value in loaded["model"].items()})
        training.optimizer.load_state_dict(loaded["optimizer"])
    training.steps(2)
    return seen


@scenario
def copies_of_the_model(training: Training) -> Seen:
    training.steps(3)
    twin = copy.deepcopy(training.model)
    pickled = pickle.loads(pickle.dumps(training.model))
    training.steps(2)
    inputs = training.loop.batch(0)[0]
    with torch.no_grad():
        return {"twin": twin(inputs), "pickled": pickled(inputs), "itself": training.model(inputs)}


@scenario
def dlpack(training: Training) -> Seen:
    training.steps(3)
    shared = torch.from_dlpack(first_weight(training).detach())
    array = np.from_dlpack(first_weight(training).detach())
    training.steps(2)
    shared[2] = 0.5
    training.steps(1)
    return {"shared": shared.clone(), "array": array.tobytes()}


class StopError(Exception):
    pass


def interrupted(training: Training, error: type[BaseException], *, backward: bool) -> None:
    """A step that an exception ends in the middle of forward or backward."""

    def stop(*_: Any) -> None:
        raise error

    middle = list(training.model.children())[3]
    handle = middle.register_full_backward_hook(stop) if backward else middle.register_forward_pre_hook(stop)
    with pytest.raises(error):
        training.steps(1)
    handle.remove()


@scenario
def exceptions_in_the_middle(training: Training) -> Seen:
    training.steps(3)
    interrupted(training, StopError, backward=True)
    training.steps(2)
    interrupted(training, StopError, backward=False)
    interrupted(training, KeyboardInterrupt, backward=True)
    training.steps(3)
    return {}


@scenario
def memory_that_is_let_go_and_comes_back(training: Training) -> Seen:
    training.steps(3)
    weight = first_weight(training)
    copied, storage = weight.detach().clone(), weight.untyped_storage()
    size = storage.nbytes()
    storage.resize_(0)
    storage.resize_(size)
    weight.detach().copy_(copied)
    training.steps(3)
    weight.data = weight.detach() * 0.5
    training.steps(3)
    return {}


@scenario
def tensors_that_grow(training: Training) -> Seen:
    training.steps(3)
    tensors = [torch.full((520, 512), float(index)) for index in range(14)]  # more than the budget
    for tensor in (tensors[0], tensors[1][:200], tensors[2].resize_(0)):
        tensor.resize_(1000, 512)[520:].fill_(0.5)
    training.steps(2)
    return {f"tensor {index}": tensor for index, tensor in enumerate(tensors) if index != 2}


@scenario
def gradients_that_are_dropped(training: Training) -> Seen:
    training.steps(3)
    for parameter in training.model.parameters():
        parameter.grad = None
    training.steps(2)
    training.model.zero_grad(set_to_none=False)
    training.steps(2)
    return {}


@pytest.mark.parametrize(("name", "policy"), [*product(SCENARIOS, SWAPPING), *by_turns(SCENARIOS, PAGING)])
def test_scenario(name: str, policy: str) -> None:
    assert_same(in_session(SCENARIOS[name], policy), plain(SCENARIOS[name]))


# ---- sessions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_one_session_after_another(policy: str) -> None:
    def run(training: Training, around: Callable[[], AbstractContextManager[object]]) -> Seen:
        for _ in range(2):
            with around():
                training.steps(4)
            training.around = nullcontext
            training.steps(1)
        return training.everything()

    expected = run(Training(), nullcontext)
    training = Training()
    found = run(training, lambda: opened(training, policy))
    assert not any(map(umadvise.on_device, training.model.parameters()))
    assert_same({name: on_host(value) for name, value in found.items()}, expected)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_session_in_another_thread(policy: str) -> None:
    expected = plain(lambda training: training.steps(5) or {})
    found: list[Seen] = []
    thread = threading.Thread(target=lambda: found.append(in_session(lambda training: training.steps(5) or {}, policy)))
    thread.start()
    thread.join()
    assert_same(found[0], expected)


@pytest.mark.parametrize("policy", POLICIES)
def test_another_thread_beside_a_session(policy: str) -> None:
    other, errors = nn.Linear(2, 2), []
    training = Training()

    def open_another() -> None:
        try:
            with umadvise.session(other):
                pass
        except StateError as error:
            errors.append(error)

    with opened(training, policy):
        training.steps(4)
        thread = threading.Thread(target=open_another)
        thread.start()
        thread.join()
        training.steps(1)
    assert len(errors) == 1
    assert_same(training.everything(), plain(lambda training: training.steps(5) or {}))


@pytest.mark.parametrize("policy", POLICIES)
def test_workers_of_a_data_loader(policy: str) -> None:
    data = TensorDataset(torch.randn(64, 512), torch.arange(64) % 10)

    def epochs(training: Training, number_of_workers: int) -> Seen:
        for _ in range(2):
            for inputs, targets in DataLoader(data, batch_size=16, num_workers=number_of_workers):
                with training.around():
                    training.optimizer.zero_grad()
                    functional.cross_entropy(training.model(inputs), targets).backward()
                    training.optimizer.step()
        return {}

    expected = plain(lambda training: epochs(training, 0))
    assert_same(in_session(lambda training: epochs(training, 2), policy), expected)


# ---- nothing leaks -------------------------------------------------------------------------------------------------


def mappings() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # the count is all


class Levels:
    """What must not grow, and what must grow evenly."""

    def __init__(self, device: _native.Device) -> None:
        swaps = device.swap_counters()
        self.allocations = len(device.allocations())
        self.levels = (swaps.used_bytes, swaps.pinned_bytes, swaps.host_pool_bytes, descriptors())
        self.mappings = mappings()
        self.swaps = np.array([swaps.swap_ins, swaps.swap_outs, swaps.evictions, swaps.clean_drops])


@pytest.mark.parametrize("policy", SWAPPING)
def test_many_steps(policy: str, patched: Callable[..., _native.Device]) -> None:
    network = Network(
        "small",
        lambda: nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)),
        lambda: (torch.randn(4, 512), torch.randint(512, (4,))),
    )
    training, found = Training(network, "sgd"), {}
    device = patched("64MiB")  # after the model: what is there already stays in the memory that it is in
    with umadvise.session(training.model, training.optimizer, budget="8MiB", policy=policy) as um:
        training.around = um.step
        for step in range(1, COUNTED[-1] + 1):
            training.steps(1)
            training.loop.seen.clear()
            if step in COUNTED:
                found[step] = Levels(device)
    first, middle, last = found.values()
    assert first.allocations == middle.allocations == last.allocations
    assert first.levels == middle.levels == last.levels
    assert abs(last.mappings - first.mappings) < 20
    assert (last.swaps - middle.swaps).tolist() == (middle.swaps - first.swaps).tolist()
    assert (last.swaps - middle.swaps)[:2].sum() > 0
    del training, um
    gc.collect()
    swaps = device.swap_counters()
    assert device.allocations() == []
    assert (swaps.used_bytes, swaps.host_bytes) == (0, 0)
    assert swaps.host_pool_bytes <= swaps.chunk_bytes  # one is the least that a device may have


@pytest.mark.parametrize("policy", POLICIES)
def test_what_sessions_leave(policy: str, patched: Callable[..., _native.Device]) -> None:
    trainings, levels = [Training() for _ in range(4)], []
    device = patched("64MiB")
    while trainings:
        training = trainings.pop()
        with umadvise.session(training.model, training.optimizer, budget=BUDGET_BYTES, policy=policy) as um:
            training.around = um.step
            training.steps(4)
        del training, um
        gc.collect()
        swaps = device.swap_counters()
        assert device.allocations() == []
        assert (swaps.used_bytes, swaps.host_bytes) == (0, 0)
        levels.append((descriptors(), swaps.host_pool_bytes, device.memory().reserved_bytes))
    assert levels[1:] == levels[1:2] * 3
