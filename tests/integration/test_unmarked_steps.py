"""Steps that nobody marks are found in all kinds of loops, and plans drive them; numbers are those of plain PyTorch."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from unmarked_loops import COUNT, LOOPS, UNLIKE, WIDTH, descend, forward, generation, network, weights

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
    loop: Callable[[], list[Any]], *, policy: str = "swap", budget: str = "24MiB"
) -> tuple[list[Any], FaultProfile, int]:
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


def test_marks_that_come_later_are_the_steps_from_then_on() -> None:
    def loop(mark: Callable[[], AbstractContextManager[None]]) -> list[float]:
        torch.manual_seed(0)
        model, losses = network(), []
        for index in range(2 * COUNT):
            with mark() if index >= COUNT else nullcontext():
                loss = model(torch.ones(64, WIDTH)).square().mean()
                loss.backward()
                descend(list(model.parameters()))
                losses.append(loss.item())
        return losses

    with umadvise.session([], device=EmulatedDevice("256MiB"), budget="24MiB", policy="swap") as um:
        losses = loop(um.step)
        profile = um.profile()
    assert losses == loop(nullcontext)
    assert profile.step_count == COUNT - UNSEEN + COUNT  # the last one that was found is none, as no edge ended it
    assert not profile.steps_are_found
    assert profile.planned is not None
    assert profile.planned.driven >= profile.step_count - 3


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


def test_what_came_again_before_an_optimizer_stepped_was_no_step() -> None:
    """A script estimates its loss for many batches, and only then begins to train."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with umadvise.session(model, optimizer, device=EmulatedDevice("256MiB"), policy="swap") as um:
        with torch.no_grad():
            for _ in range(100):
                model(torch.ones(8, WIDTH)).sum().item()
        assert um.profile().steps_are_found
        for _ in range(6):
            model(torch.ones(8, WIDTH)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        profile = um.profile()
    assert profile.step_count == 5  # it begins where the optimizer has stepped
    assert not profile.steps_are_found
    assert profile.tables is not None
    assert {row.phase for row in profile.tables.phase.rows} >= {"backward", "optimizer"}


def test_what_a_loader_repeats_does_not_keep_the_training_from_being_planned_for() -> None:
    """A script cuts its batches out of a text, at one random place after the other, and does more with each."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    device = EmulatedDevice("256MiB", clock="v100-16gb")
    with umadvise.session(model, optimizer, device=device, budget="24MiB", policy="swap") as um:
        for batch in range(60):
            for row, place in enumerate(torch.arange(12)):
                int(place)
                end = place + 8
                for _ in range(45 * batch + row if batch < 20 else 0):
                    end = end * 2
        assert um.profile().steps_are_found
        for _ in range(8):
            model(torch.ones(448, WIDTH)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        profile = um.profile()
    assert profile.step_count == 7
    assert profile.planned is not None
    assert profile.planned.driven >= 4


def test_what_is_the_same_for_each_token_comes_ahead_beside_a_cache_that_grows() -> None:
    _, profile, _ = in_session(generation)
    swaps = [step.swaps for step in profile.steps[UNSEEN:]]
    assert all(each is not None and each.on_demand_swap_ins < each.swap_ins for each in swaps)
    brought = sum(each.swap_ins for each in swaps if each is not None)
    late = sum(each.on_demand_swap_ins for each in swaps if each is not None)
    assert brought - late >= brought / 4


ROOMLESS = 6
"""The time that a loop comes round with a batch that finds no room."""


def with_a_large_batch(run: Callable[[torch.Tensor], torch.Tensor], rounds: int) -> list[float | str]:
    """What comes out of a loop, and where it is refused, why."""
    numbers: list[float | str] = []
    with torch.no_grad():
        for index in range(rounds):
            batch = torch.ones(8000 if index == ROOMLESS else 64, WIDTH)
            try:
                numbers.append(run(batch).sum().item())
            except torch.OutOfMemoryError as error:
                numbers.append(str(error))
    return numbers


def modules() -> Callable[[torch.Tensor], torch.Tensor]:
    """A network whose steps begin with the call of a module."""
    torch.manual_seed(0)
    return network()


def tensors() -> Callable[[torch.Tensor], torch.Tensor]:
    """A network whose steps begin with an op."""
    layers = [each.detach() for each in weights()]
    return lambda batch: forward(layers, batch)


def wide_tensors() -> Callable[[torch.Tensor], torch.Tensor]:
    """A network whose steps begin with an op that is given more than there is room for."""
    layers = [torch.ones(WIDTH, 3 * WIDTH) / WIDTH, torch.ones(3 * WIDTH, WIDTH) / WIDTH]
    layers += [each.detach() for each in weights()]
    return lambda batch: forward(layers, batch)


@pytest.mark.parametrize("make", [modules, tensors, wide_tensors])
def test_a_step_without_room_is_refused_where_the_next_one_begins(
    make: Callable[[], Callable[[torch.Tensor], torch.Tensor]],
) -> None:
    expected = with_a_large_batch(make(), COUNT)
    numbers, profile, _ = in_session(lambda: with_a_large_batch(make(), COUNT))
    refusal = numbers[ROOMLESS + 1]
    assert isinstance(refusal, str)
    assert "no room for aten::" in refusal
    assert "a budget of" in refusal
    assert numbers[: ROOMLESS + 1] + numbers[ROOMLESS + 2 :] == expected[: ROOMLESS + 1] + expected[ROOMLESS + 2 :]
    assert profile.step_count >= COUNT - UNSEEN - 1


def test_the_last_step_without_room_is_refused_where_the_session_ends() -> None:
    numbers = []
    session = umadvise.session([], device=EmulatedDevice("256MiB"), budget="24MiB", policy="swap")
    with pytest.raises(torch.OutOfMemoryError, match="no room for aten::"), session:
        numbers = with_a_large_batch(tensors(), ROOMLESS + 1)
    assert numbers == with_a_large_batch(tensors(), ROOMLESS + 1)


def test_before_steps_are_found_an_op_without_room_is_refused_at_once() -> None:
    with umadvise.session([], device=EmulatedDevice("256MiB"), budget="24MiB", policy="swap"):
        run = tensors()
        with pytest.raises(torch.OutOfMemoryError, match="no room for aten::mm"):
            run(torch.ones(8000, WIDTH))


def test_auto_refuses_no_step_that_nobody_marks() -> None:
    numbers, profile, _ = in_session(lambda: with_a_large_batch(tensors(), COUNT), policy="auto")
    assert numbers == with_a_large_batch(tensors(), COUNT)
    assert profile.steps_are_found


def test_each_token_of_transformers_is_a_step() -> None:
    import transformers

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
