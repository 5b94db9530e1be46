"""An optimizer's closure runs outside of the optimizer, given by position or by name."""

from collections.abc import Callable

import pytest

from umadvise.torch_seam.closures import closure_between


class Stepping:
    def step(self, closure: object = None) -> None: ...


class StepsBy:
    def step(self, model: object) -> None: ...


@pytest.fixture
def seen() -> list[str]:
    return []


def hooks(seen: list[str]) -> dict[str, Callable[[], object]]:
    return {"leave": lambda: seen.append("leave"), "enter": lambda: seen.append("enter")}


def test_a_closure_runs_between_leaving_and_entering(seen: list[str]) -> None:
    def closure() -> float:
        seen.append("closure")
        return 2.5

    by_position = closure_between((Stepping(), closure), {}, **hooks(seen))
    by_name = closure_between((Stepping(),), {"closure": closure}, **hooks(seen))
    assert by_position is not None
    assert by_name is not None
    assert by_position[0][1]() == by_name[1]["closure"]() == 2.5
    assert seen == ["leave", "closure", "enter"] * 2


def test_the_optimizer_goes_on_after_a_closure_that_fails(seen: list[str]) -> None:
    def fails() -> None:
        raise ValueError

    changed = closure_between((Stepping(), fails), {}, **hooks(seen))
    assert changed is not None
    with pytest.raises(ValueError):
        changed[0][1]()
    assert seen == ["leave", "enter"]


def test_what_is_checked_after_a_closure_ends_the_step_before_its_update(seen: list[str]) -> None:
    def refuses() -> None:
        seen.append("check")
        raise MemoryError

    changed = closure_between((Stepping(), lambda: 2.5), {}, **hooks(seen), check=refuses)
    assert changed is not None
    with pytest.raises(MemoryError):
        changed[0][1]()
    assert seen == ["leave", "enter", "check"]


def test_a_step_without_a_closure_stays(seen: list[str]) -> None:
    for arguments in ((Stepping(),), (Stepping(), None)):
        assert closure_between(arguments, {}, **hooks(seen)) is None


def test_a_closure_gets_what_the_optimizer_gives_it(seen: list[str]) -> None:
    changed = closure_between((Stepping(), lambda x, backward: (x, backward)), {}, **hooks(seen))
    assert changed is not None
    assert changed[0][1](1, backward=False) == (1, False)


def test_what_is_no_closure_stays(seen: list[str]) -> None:
    assert closure_between((StepsBy(), len), {}, **hooks(seen)) is None
