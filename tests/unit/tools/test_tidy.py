"""A unit that clang-tidy has passed is analysed again only if its text or what judges it has changed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TIDY = Path(__file__).parents[3] / "tools" / "tidy.py"
FAKE = """#!/bin/sh
[ "$1" = --version ] && { echo fake 1; exit; }
for word in "$@"; do file=$word; done
echo "$file" >> analysed.txt
! grep -q wrong "$file"
"""


@pytest.fixture
def tidy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a stand-in for clang-tidy, which dislikes the word "wrong", and a configuration."""
    (tmp_path / "clang-tidy").write_text(FAKE)
    (tmp_path / "clang-tidy").chmod(0o755)
    (tmp_path / "config").write_text("Checks: all")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("UMADVISE_CI_CACHE", str(tmp_path / "cache"))
    return tmp_path


def run(folder: Path, *options: str, **texts: str) -> tuple[int, list[str]]:
    """Returns the exit status for these units, and those that were analysed."""
    entries = []
    for name, text in texts.items():
        (folder / f"{name}.cpp").write_text(text)
        command = f"c++ -o CMakeFiles/core.dir/{name}.o -c {name}.cpp"
        entries.append({"directory": str(folder), "command": command, "file": f"{name}.cpp"})
    entries.append({"directory": str(folder), "command": "c++ -o tests.dir/t.o -c t.cpp", "file": "t.cpp"})
    (folder / "compile_commands.json").write_text(json.dumps(entries))
    (folder / "analysed.txt").write_text("")
    ended = subprocess.run([sys.executable, TIDY, ".", "config", *options], cwd=folder, check=False)
    return ended.returncode, sorted((folder / "analysed.txt").read_text().split())


def test_a_unit_is_analysed_again_when_something_has_changed(tidy: Path) -> None:
    assert run(tidy, a="int a;", b="int b;") == (0, ["a.cpp", "b.cpp"])
    assert run(tidy, a="int a;", b="\n\nint  b;") == (0, [])
    assert run(tidy, a="int a;", b="int b;  // NOLINT") == (0, ["b.cpp"])
    assert run(tidy, "--quiet", a="int a;", b="int b;") == (0, ["a.cpp", "b.cpp"])
    (tidy / "config").write_text("Checks: none")
    assert run(tidy, a="int a;") == (0, ["a.cpp"])


def test_a_finding_is_no_pass(tidy: Path) -> None:
    for already in (False, True):
        assert run(tidy, a="int a;", b="int wrong;") == (1, ["a.cpp", "b.cpp"] if not already else ["b.cpp"])


def test_a_build_without_units_fails(tidy: Path) -> None:
    assert run(tidy) == (1, [])
