"""The lint of comments: which sentences and words it rejects, and which it accepts."""

from pathlib import Path

import comment_lint
import pytest

WORDS, EXCEPTIONS = comment_lint.rejected_words(
    "# Words.\n\n(?:any|no)body -> name the actor\nleaves? -> is evicted\n\n! leaves out\n"
)


def found(path: Path, text: str) -> list[str]:
    path.write_text(text)
    return [line.removeprefix(f"{path}:") for line in comment_lint.findings(path, WORDS, EXCEPTIONS)]


@pytest.mark.parametrize(
    "said",
    [
        "By kind of memory.",
        "Of chunked memory.",
        "That of the context.",
        "Whoever takes a range may write.",
        "Likewise for the host.",
        "What an op used.",
        "One that has ended.",
    ],
)
def test_a_sentence_without_a_subject_is_rejected(tmp_path: Path, said: str) -> None:
    path = tmp_path / "file.h"
    assert found(path, f"// {said}\nint a;\n") == [
        f"1: a sentence opens with '{comment_lint.OPENINGS.match(said)[0]}', without a subject: {said}"  # type: ignore[index]
    ]
    assert len(found(path, f"// Returns it. {said}\nint a;\n")) == 1
    assert len(found(path, f"// Rules:\n// - {said}\nint a;\n")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "// Dispatches on the kind of memory.\n",
        "int a;  // by kind of memory\n",
        "// Returns the size; `Of it` is code.\n",
        "// ---- of the parts ----\n",
        'const char* text = "// Of nobody.";\n',
    ],
)
def test_what_is_no_sentence_of_a_block_may_have_any_opening(tmp_path: Path, text: str) -> None:
    assert found(tmp_path / "file.cpp", text) == []


def test_words_are_rejected_in_every_comment(tmp_path: Path) -> None:
    text = "// The storage\n// leaves.\nint a;  // Nobody's\n# The nobody\n"
    assert found(tmp_path / "file.cpp", text) == [
        "1: 'leaves': is evicted: The storage leaves.",
        "3: 'Nobody': name the actor: Nobody's",
    ]
    assert found(tmp_path / "file.py", text) == ["4: 'nobody': name the actor: The nobody"]


def test_exceptions_code_and_parts_of_words_are_accepted(tmp_path: Path) -> None:
    text = "// The test leaves out a wait.\n// Calls leave() and `nobody` in Where::leaves.\n// Cleaves it.\n"
    assert found(tmp_path / "file.cpp", text) == []


@pytest.mark.parametrize(("said", "status"), [("By kind.", 3), ("Somebody waits.", 3), ("The stream waits.", 0)])
def test_the_exit_code_says_whether_there_is_something(tmp_path: Path, said: str, status: int) -> None:
    path = tmp_path / "file.cpp"
    path.write_text(f"// {said}\n")
    assert comment_lint.main([str(path)]) == status


def test_every_folder_has_files() -> None:
    for folder in comment_lint.FOLDERS:
        assert list((comment_lint.ROOT / folder).rglob("*.h")), folder
