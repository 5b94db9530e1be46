"""Names in records: what would change how a terminal shows them is no part of one."""

import unicodedata

import msgspec
import pytest

from umadvise.records.names import Name, clean_name

DIRECTIONS = ("LEFT-TO-RIGHT", "RIGHT-TO-LEFT", "LETTER MARK", "DIRECTIONAL", "STRONG ISOLATE", "SYMMETRIC SWAPPING")


def changes_directions(character: str) -> bool:
    """Whether Unicode calls it an invisible mark of direction."""
    name = unicodedata.name(character, "")
    return unicodedata.category(character) == "Cf" and any(word in name for word in DIRECTIONS)


def unshowable() -> list[str]:
    every = [chr(code) for code in range(0x110000)]
    kinds = {"Cc", "Cs", "Zl", "Zp"}
    return [each for each in every if unicodedata.category(each) in kinds or changes_directions(each)]


def test_marks_of_direction_are_found() -> None:
    assert {"\u061c", "\u200e", "\u200f", "\u202e", "\u2066", "\u2069"} <= set(filter(changes_directions, unshowable()))


def test_nothing_unshowable_is_left_of_a_name() -> None:
    name = "layer." + "".join(unshowable()[:900])
    assert clean_name(name) == "layer." + "\ufffd" * 900
    assert all(clean_name(each) == "\ufffd" for each in unshowable())


def test_a_record_that_has_such_a_name_is_refused() -> None:
    for each in filter(changes_directions, unshowable()):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(f"layer.{each}0", Name)


@pytest.mark.parametrize("name", ["layers.0", "слой", "طبقة", "שכבה", "層", "e\u0301", "👩\u200d🔬"])
def test_words_of_all_scripts_stay(name: str) -> None:
    assert clean_name(name) == name
    assert msgspec.convert(name, Name) == name
