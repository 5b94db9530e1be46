"""Who is who among the processes of a training, as the environment says it."""

from pathlib import Path

import pytest

from umadvise.devices.ranks import Ranks, ranks
from umadvise.errors import UsageError

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def set_to(monkeypatch: pytest.MonkeyPatch, *words: str | None) -> None:
    for name, word in zip(NAMES, words, strict=True):
        monkeypatch.delenv(name, raising=False) if word is None else monkeypatch.setenv(name, word)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ((None, None, None, None), Ranks()),
        (("3", "8", "1", "2"), Ranks(3, 8, 1, 2)),
        (("1", "2", None, "2"), Ranks(1, 2, 1, 2)),
        (("1", "2", None, None), Ranks(1, 2, 0, 1)),
        (("", "1", "", ""), Ranks()),
    ],
)
def test_what_torchrun_says(monkeypatch: pytest.MonkeyPatch, words: tuple[str | None, ...], found: Ranks) -> None:
    set_to(monkeypatch, *words)
    assert ranks() == found


@pytest.mark.parametrize(
    "words", [("2", "2", "0", "1"), ("x", "2", "0", "1"), ("0", "2", "1", "1"), ("0", "1", "0", "2")]
)
def test_what_cannot_be(monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    set_to(monkeypatch, *words)
    with pytest.raises(UsageError, match=r"in the environment .*torchrun"):
        ranks()


def test_files_and_words() -> None:
    assert Ranks().own(Path("kept/profile.json")) == Path("kept/profile.json")
    assert Ranks(rank=3, count=8).own(Path("kept/profile.json")) == Path("kept/profile.rank3.json")
    assert [each.speaks for each in (Ranks(), Ranks(0, 2), Ranks(1, 2))] == [True, True, False]
