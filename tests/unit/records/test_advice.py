"""The advice words and the device strings that carry them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umadvise.errors import InvalidAdviceError, UsageError
from umadvise.records.advice import PAPER_WORDS, Target, parse_advice, parse_target
from umadvise.records.enums import Advice

PAPER = ["noadvise", "preferredlocation", "accessby", "readmostly", "prefetch"]  # Choi and Lee 2021, section 4
DRIVER = ["none", "preferred_location", "accessed_by", "read_mostly", "prefetch"]  # cuda.core's nouns


def test_each_advice_has_the_papers_word_and_the_drivers() -> None:
    assert list(PAPER_WORDS) == PAPER
    assert [parse_advice(word) for word in PAPER] == list(Advice)
    assert [parse_advice(word) for word in DRIVER] == list(Advice)
    assert [parse_advice(word.upper()) for word in PAPER] == list(Advice)
    assert [parse_advice(advice) for advice in Advice] == list(Advice)


@pytest.mark.parametrize("wrong", ["", "read-mostly", "readmostly ", "cuda", None, 3, b"readmostly"])
def test_other_words_are_refused_with_the_five(wrong: object) -> None:
    with pytest.raises(InvalidAdviceError) as error:
        parse_advice(wrong)  # type: ignore[arg-type]
    assert repr(wrong) in str(error.value)
    assert ", ".join(PAPER) in str(error.value)
    assert error.value.exit_code == 2
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cuda", Target(None, None)),
        ("cuda:0", Target(0, None)),
        ("cuda:17", Target(17, None)),
        ("cuda:readmostly", Target(None, Advice.READ_MOSTLY)),
        ("cuda:3:prefetch", Target(3, Advice.PREFETCH)),
        ("cuda:0:noadvise", Target(0, Advice.NONE)),
        ("cpu", None),
        ("cpu:0", None),
        ("meta", None),
        ("cudax:0", None),
        ("", None),
        ("CUDA", None),
    ],
)
def test_device_strings(text: str, expected: Target | None) -> None:
    assert parse_target(text) == expected


@pytest.mark.parametrize("text", ["cuda:0:readmostly:1", "cuda:readmostly:0", "cuda:0:0:0", "cuda:prefetch:prefetch"])
def test_too_many_parts(text: str) -> None:
    with pytest.raises(UsageError, match="cannot read device"):
        parse_target(text)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_any_text_is_a_target_or_a_usage_error(text: str) -> None:
    try:
        target = parse_target(f"cuda:{text}")
    except UsageError:
        return
    assert target is not None
    index, advice = target.index, target.advice
    words = {word for word, meaning in zip(PAPER + DRIVER, [*Advice, *Advice], strict=True) if meaning == advice}
    spoken = text.lower().split(":")
    assert spoken[-1] in words if advice is not None else int(text) == index
