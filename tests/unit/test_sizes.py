"""How much a reader has to hold at once: no wide class, no long file, no two classes of one name."""

import ast
from collections import Counter
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
MOST_METHODS = 15
MOST_LINES = 400
MIRRORS = {"umadvise/_native/device.py"}
"""Its class has a method for each function of umadvise.h on a device."""
SPELLINGS = "umadvise/torch_seam/cuda_spellings/"
"""Its classes stand in place of torch's, and have torch's names."""


def python_files() -> list[Path]:
    return [path for room in ("umadvise", "tools") for path in sorted((CHECKOUT / room).rglob("*.py"))]


def core_files() -> list[Path]:
    rooms = [CHECKOUT / "csrc", CHECKOUT / "umadvise" / "_hooks"]
    found = [path for room in rooms for ending in ("*.h", "*.cpp") for path in sorted(room.rglob(ending))]
    return [path for path in found if CHECKOUT / "csrc" / "tests" not in path.parents and path.name != "umadvise.h"]


def classes() -> list[tuple[str, ast.ClassDef]]:
    return [
        (str(path.relative_to(CHECKOUT)), node)
        for path in python_files()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]


def test_no_class_is_wide() -> None:
    methods = {
        (path, node.name): sum(
            isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and not part.name.startswith("_")
            for part in node.body
        )
        for path, node in classes()
        if path not in MIRRORS
    }
    assert len(methods) > 100
    assert {place: number for place, number in methods.items() if number > MOST_METHODS} == {}


def test_no_file_is_long() -> None:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in python_files() + core_files()}
    assert len(lines) > 300
    assert {path: number for path, number in lines.items() if number > MOST_LINES} == {}


def test_no_two_classes_have_one_name() -> None:
    """Private ones are nobody else's concern."""
    named = Counter(
        node.name for path, node in classes() if not path.startswith(SPELLINGS) and not node.name.startswith("_")
    )
    assert {name: number for name, number in named.items() if number > 1} == {}
