"""The house's floors: each may use only what stands below it, in Python and in C++; nothing lies loose at the top."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import umadvise

ROOT = Path(umadvise.__file__).parent
FLOORS = (
    "__main__ commands",
    "integrations",
    "training",
    "reports",
    "doctor",
    "planners",
    "recording",
    "simulator",
    "torch_seam",
    "devices",
    "_native",
    "_hooks",
    "records",
    "_version errors parallel user_cache",
)
"""From the roof to the ground; what stands on one floor knows each other."""
HEIGHT = {name: -number for number, floor in enumerate(FLOORS) for name in floor.split()}
TRAINING_FLOORS = ("session script", "earlier_memory", "loop", "memory_split", "plans", "policy recompute watch")
"""Within `umadvise/training`: what watches knows of no plan, and what plans of no loop."""
TRAINING_HEIGHT = {name: -number for number, floor in enumerate(TRAINING_FLOORS) for name in floor.split()}
CORE = Path(__file__).parents[2] / "csrc"
CORE_FLOORS = ("capi", "replay", "planning", "engine", "memory", "cupti", "devices", "driver", "um", "base")
CORE_HEIGHT = {name: -number for number, name in enumerate(CORE_FLOORS)}


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts != ("__init__",):
            yield ".".join(parts), path


def imported(path: Path) -> Iterator[str]:
    """Names below umadvise that a file imports, wherever it does."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name.removeprefix("umadvise.") for each in node.names if each.name.startswith("umadvise."))
        elif isinstance(node, ast.ImportFrom) and node.module == "umadvise":
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("umadvise."):
            yield node.module.removeprefix("umadvise.")


def upward() -> set[tuple[str, str]]:
    return {
        (module, name)
        for module, path in modules()
        for name in imported(path)
        if HEIGHT.get(name.partition(".")[0], 1) > HEIGHT[module.partition(".")[0]]
    }


def included(path: Path) -> list[str]:
    """Headers of other rooms that a file of the core includes."""
    return [name for name in re.findall(r'^#include "(.+)"', path.read_text(encoding="utf-8"), re.M) if "/" in name]


def test_nothing_lies_loose() -> None:
    top = {path.name.removesuffix(".py") for path in ROOT.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert top - {"__pycache__", "lib", "include"} <= {*HEIGHT, "__init__", "py.typed"}


def test_imports_run_down() -> None:
    assert upward() == set()


def test_imports_within_training_run_down() -> None:
    found = {
        (module.removeprefix("training."), name.removeprefix("training."))
        for module, path in modules()
        if module.startswith("training.") and not module.endswith("__init__")
        for name in imported(path)
        if name.startswith("training.")
    }
    assert {part for pair in found for part in (each.partition(".")[0] for each in pair)} <= TRAINING_HEIGHT.keys()
    below = {pair for pair in found if height(pair[1]) <= height(pair[0])}
    assert found - below == set()


def height(name: str) -> int:
    return TRAINING_HEIGHT[name.partition(".")[0]]


def test_includes_run_down() -> None:
    rooms = [path for path in CORE.iterdir() if path.is_dir() and path.name not in ("include", "tests")]
    assert {path.name for path in rooms} == {*CORE_FLOORS}
    assert [path.name for path in CORE.iterdir() if path.suffix in (".cpp", ".h")] == []
    up = {
        (str(path.relative_to(CORE)), name)
        for room in rooms
        for path in room.rglob("*.*")
        for name in included(path)
        if CORE_HEIGHT.get(name.partition("/")[0], 1) > CORE_HEIGHT[room.name]
    }
    assert up == set()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import umadvise.records.trace", ["records.trace"]),
        ("from umadvise import planners, parallel", ["planners", "parallel"]),
        ("from umadvise.planners.papers import lms", ["planners.papers"]),
        ("def f():\n    from umadvise.training import script", ["training"]),
        ("import torch\nfrom os import path", []),
    ],
)
def test_every_way_to_import_is_seen(tmp_path: Path, text: str, names: list[str]) -> None:
    path = tmp_path / "module.py"
    path.write_text(text)
    assert list(imported(path)) == names
