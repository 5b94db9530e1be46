"""Steps that nobody marks are found in all kinds of loops, and plans drive them; numbers are those of plain PyTorch."""

from collections.abc import Callable, Iterator

import pytest
import torch
from unmarked_loops import COUNT, LOOPS, UNLIKE, WIDTH, descend, network

import umadvise
from umadvise import EmulatedDevice
from umadvise.records.fault_profile import FaultProfile

UNSEEN = 3
"""Times that a loop comes round before its steps are found, and once more for the last one, which has no end."""


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    yield


def in_session(
    loop: Callable[[], list[float]], *, policy: str = "swap", budget: str = "24MiB"
) -> tuple[list[float], FaultProfile, int]:
    """What a loop returns in a session that marks nothing, its profile, and how many steps plans drove."""
    torch.manual_seed(0)
    device = EmulatedDevice("256MiB", clock="v100-16gb")
    with umadvise.session([], device=device, budget=budget, policy=policy) as um:
        numbers = loop()
        return numbers, um.profile(), um.swap_counters().programs_followed


def plain(loop: Callable[[], list[float]]) -> list[float]:
    """What a loop returns without umadvise."""
    torch.manual_seed(0)
    return loop()


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_numbers_stay_and_steps_are_found(loop: Callable[[], list[float]]) -> None:
    numbers, profile, driven = in_session(loop)
    assert numbers == plain(loop)
    assert profile.steps_are_found
    first, round_ = LOOPS[loop]
    assert first <= profile.step_count <= round_
    if loop not in UNLIKE:
        assert driven >= COUNT - UNSEEN - 2
        assert profile.planned is not None
        assert profile.planned.undriven[-1].last < profile.steps[-1].index  # a plan drove the last one


def test_what_is_called_where_no_step_is_found_is_none() -> None:
    _, profile, _ = in_session(lambda: [network()(torch.ones(8, WIDTH)).sum().item() for _ in range(2)])
    assert profile.step_count == 0
    assert not profile.steps_are_found


def test_sessions_take_whoever_marks_steps_at_his_word() -> None:
    model = network()
    with umadvise.session(model, device=EmulatedDevice("256MiB"), policy="swap") as um:
        for _ in range(6):
            with um.step():
                for _ in range(5):
                    model(torch.ones(8, WIDTH)).sum().backward()
                descend(list(model.parameters()))
        profile = um.profile()
    assert profile.step_count == 6
    assert not profile.steps_are_found


def test_an_optimizer_marks_the_steps_of_a_session() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with umadvise.session(model, optimizer, device=EmulatedDevice("256MiB"), policy="swap") as um:
        for _ in range(8):
            for _ in range(5):
                model(torch.ones(8, WIDTH)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        profile = um.profile()
        driven = um.swap_counters().programs_followed
    assert profile.step_count == 6  # it begins where the optimizer has stepped for the second time
    assert not profile.steps_are_found
    assert driven >= 4


def test_each_token_of_transformers_is_a_step() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"n_layer": 3, "n_head": 4, "n_embd": 256, "vocab_size": 1000, "n_positions": 64}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=None)

    def generate() -> list[float]:
        model = transformers.GPT2LMHeadModel(config).eval()
        tokens = [
            model.generate(torch.randint(0, 1000, (2, length)), max_new_tokens=12, do_sample=True, pad_token_id=0)
            for length in (8, 12)
        ]
        return torch.cat(tokens, 1).flatten().tolist()

    numbers, profile, _ = in_session(generate)
    assert numbers == plain(generate)
    assert profile.step_count == 2 * 12 - UNSEEN
