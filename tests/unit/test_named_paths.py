"""Files that comments and pages name exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("csrc", "umadvise", "tools", "docs")
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
BASES = (ROOT, ROOT / "csrc", ROOT / "csrc" / "tests", ROOT / "csrc" / "include", ROOT / "umadvise", ROOT / "docs")
"""Where a path may begin, beside the folder of the file that names it."""
SUFFIXES = (".cpp", ".h", ".py", ".md", ".toml")
BEGINNINGS = sorted({each.name for base in BASES for each in base.iterdir() if each.is_dir()} - {"build"})
NAMED = re.compile(
    rf"(?<![\w/.{{*-])((?:{'|'.join(map(re.escape, BEGINNINGS))})/[\w/.-]*\w\.(?:cpp|h|py|md|toml|json))\b"
)


def missing(text: str, folder: Path) -> list[str]:
    """Paths in a text that lead nowhere; NAME stands for any name."""
    return [
        path
        for path in NAMED.findall(text)
        if "NAME" not in path and not any((base / path).exists() for base in (*BASES, folder))
    ]


def _texts() -> list[Path]:
    found = [path for each in FOLDERS for suffix in SUFFIXES for path in (ROOT / each).rglob(f"*{suffix}")]
    return [*found, *(ROOT / page for page in PAGES)]


def test_each_path_that_is_named_exists() -> None:
    wrong = {str(path.relative_to(ROOT)): missing(path.read_text(), path.parent) for path in _texts()}
    assert {path: names for path, names in wrong.items() if names} == {}


@pytest.mark.parametrize("text", ["see engine/gone.h", "`tools/gone.py --all`", "(docs/gone.md)"])
def test_a_path_that_does_not_exist_is_found(text: str) -> None:
    assert len(missing(text, ROOT)) == 1


@pytest.mark.parametrize(
    "text", ["engine/guard.h", "csrc/engine/guard.h", "uvm/uvm_pmm_gpu.c", "profiles/devices/NAME.toml"]
)
def test_other_texts_are_left_alone(text: str) -> None:
    assert missing(text, ROOT) == []
