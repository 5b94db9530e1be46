"""The lint of docstrings: what it finds, and what it leaves alone."""

from pathlib import Path

import docstring_lint
import pytest

MODULE = '''
class Made:
    """Something.

    Args:
        first: the first of two numbers.

    Attributes:
        kept: of the first.
    """

    def __init__(self, first: int, second: int) -> None: ...

    def work(self, *words: str, size: int) -> None:
        """Works.

        Args:
            *words: words that are
                said.
            size: likewise, in bytes.
        """


def made(where: str, how: str, label: str) -> None:
    """Makes it.

    Args:
        where: what names the place.
        how: see `work`, which says it.
        label: "a: b", for the reader.

    Raises:
        ValueError: of no use.
    """


def _private(size: int) -> None:
    """Is not looked at.

    Args:
        size: of it.
    """
'''


def test_findings_name_the_argument_and_what_is_said_of_it(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(MODULE)
    found = [line.removeprefix(f"{path}:").partition(": ")[2] for line in docstring_lint.findings(path)]
    assert found == [
        "Made: kept: of the first.",
        "Made: second has no description",
        "work: size: likewise, in bytes.",
        "made: how: see `work`, which says it.",
    ]


@pytest.mark.parametrize(
    "said", ["bytes.", "the name.", "that runs there first.", "as of `other`.", "which one it is."]
)
def test_what_cannot_be_read_alone_is_found(tmp_path: Path, said: str) -> None:
    path = tmp_path / "module.py"
    path.write_text(f'def made(size: int) -> None:\n    """Makes it.\n\n    Args:\n        size: {said}\n    """\n')
    assert [line.rpartition("size: ")[2] for line in docstring_lint.findings(path)] == [said]


@pytest.mark.parametrize(("said", "status"), [("of it.", 3), ("size in bytes.", 0)])
def test_the_exit_code_says_whether_there_is_something(tmp_path: Path, said: str, status: int) -> None:
    path = tmp_path / "module.py"
    path.write_text(f'class Made:\n    """A.\n\n    Attributes:\n        a: {said}\n    """\n')
    assert docstring_lint.main([str(path)]) == status
