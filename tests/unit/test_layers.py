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
ENGINE = CORE / "engine"
ENGINE_FLOORS = (
    "device_memory doors link_measure routes stray_access",
    "device",
    "managed_memory",
    "conversion exports guard matching/plan_executor recording swapping_memory",
    "accounts swapping workspaces",
    "budget_keeper matching/prefetcher small_arenas",
    "mover observation sampling_records",
    "heap_memory sampling transfers",
    "block_owners matching/programs move_waits op_durations repetition step_times step_undo streams",
    "device_base matching/program_cursor stalls times",
    "budget matching/cross_program_bindings matching/skipped_ops memory_kind op_timeline participant swap_events",
    "event_log matching/program owners residency running_op use_order",
    "block_history counters event_spans indexed_trace matching/persistent_allocations matching/shadowed_bindings"
    " movable notes op_identity refusal step_sums tape use_log used_streams",
)
"""Within `csrc/engine`: a module is a header with its .cpp, and includes those of lower floors alone. Participants
stand above `device_base`, and `device` makes them all."""
ENGINE_HEIGHT = {name: -number for number, floor in enumerate(ENGINE_FLOORS) for name in floor.split()}


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


def test_includes_within_the_engine_run_down() -> None:
    arrows = {
        (engine_module(path), engine_module(CORE / name))
        for path in ENGINE.rglob("*.*")
        for name in included(path)
        if name.startswith("engine/")
    }
    assert {engine_module(path) for path in ENGINE.rglob("*.*")} == ENGINE_HEIGHT.keys()
    down = {(one, other) for one, other in arrows if one == other or ENGINE_HEIGHT[other] < ENGINE_HEIGHT[one]}
    assert arrows - down == set()


def engine_module(path: Path) -> str:
    return path.relative_to(ENGINE).with_suffix("").as_posix()


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
