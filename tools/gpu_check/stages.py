"""The stages: each takes the check, returns its data, and raises StageError when it does not pass."""

import json
import re
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import driver_costs
import probes
from comparisons import COMPARISONS, compare
from parts import run_parts
from record import GpuCheck, Stage, StageError
from training import train

import build

_HERE = Path(__file__).parent
_NEEDED = ("msgspec", "numpy", "rich")
"""Packages without which nothing of umadvise runs; what others are for runs without them."""
_PART_S = 45.0
_PAGE_LOCKED = ("copies", "compute", "atomics", "gradients", "optimizers", "streams")
"""Parts of page_locked.py."""
_TOKENS = ("plain", "swap", "auto")
"""Ways of tokens.py, the most important first."""
_OUTCOME = re.compile(r"^tests/\S+::(\S+) (PASSED|FAILED|ERROR|SKIPPED)", re.MULTILINE)


def in_parts(program: ModuleType) -> Callable[[GpuCheck], Any]:
    """The stage of a program that calls the driver, part by part."""

    def work(check: GpuCheck) -> Any:
        build.for_driver(check)
        return run_parts(check, _HERE / f"{program.__name__}.py", program.PARTS, _PART_S)

    return work


def environment(check: GpuCheck) -> Any:
    """What the machine has: device, torch, tools."""
    build.for_driver(check)
    words = [str(_HERE / "machine.py"), check.kind, str(check.prebuilt.hooks_folder()), *_NEEDED]
    data = json.loads(check.run([sys.executable, *words]))
    data["tools"] = {tool: shutil.which(tool) is not None for tool in ("nvcc", "cmake", "ninja", "c++", "nvidia-smi")}
    if data["device"] is None:
        raise StageError(data["no_device"], data)
    earlier = check.output.data("environment")
    if earlier is not None and earlier["device"]["name"] != data["device"]["name"]:
        raise StageError(f"this folder has results of {earlier['device']['name']}: name another one", earlier)
    if missing := [name for name, why in data["needed"].items() if why is not None]:
        remedy = "bring a bundle that has it (--package of bundle.py), or have PYTHONPATH name a folder with it"
        raise StageError(f"umadvise needs {' and '.join(missing)}, not to be imported here: {remedy}", data)
    return data


def tests(check: GpuCheck) -> Any:
    """The tests that need a GPU, in a dry run those of them that the emulated device can stand in for.

    One after the other: two programs with managed memory at once are more than a GPU should be asked for.
    """
    results, begun = check.scratch / "tests.xml", check.output.log.stat().st_size
    pytest = ["-m", "pytest", "-v", "-p", "no:cacheprovider", "tests/gpu", f"--junitxml={results}"]
    chosen = ["-m", "not gpu", "-k", "unpatch"] if check.dry_run else ["-m", "gpu"]
    to_log = ["sh", "-c", 'exec "$0" "$@" 1>&2']  # as it comes: of what is cut off, too, every outcome is kept
    command = [*to_log, sys.executable, *pytest, *chosen]
    check.run(command, must_succeed=False, watch=lambda: check.keep(_until_now(check.output.log, begun)))
    if not results.exists():
        raise StageError("pytest did not run: see log.txt")
    cases = [_case(element) for element in ElementTree.parse(results).iter("testcase")]
    bad = [case["name"] for case in cases if case["outcome"] != "passed"]
    if bad or not cases:
        raise StageError(f"{len(bad)} of {len(cases)} tests did not pass: {', '.join(bad)}", cases)
    return cases


def _until_now(log: Path, begun: int) -> list[dict[str, Any]]:
    """The tests that have ended, as pytest has logged them."""
    with log.open("rb") as file:
        file.seek(begun)
        ended = _OUTCOME.findall(file.read().decode(errors="replace"))
    return [{"name": name, "outcome": outcome.lower()} for name, outcome in ended]


def _case(element: ElementTree.Element) -> dict[str, Any]:
    """A test's outcome; one that is skipped here lacks what the machine should have."""
    bad = next((child for child in element if child.tag in ("failure", "error", "skipped")), None)
    return {
        "name": element.get("name"),
        "outcome": "passed" if bad is None else bad.tag,
        "seconds": float(element.get("time", 0)),
        "message": None if bad is None else (bad.get("message") or "")[:500],
    }


def _measured(check: GpuCheck, program: str, *words: str) -> Any:
    """What one of the programs beside this file prints as JSON."""
    return json.loads(check.run([sys.executable, str(_HERE / program), check.kind, *words]))


def device(check: GpuCheck) -> Any:
    """The link by size, and the device file that comes of it and of what the driver's calls cost."""
    found = check.scratch / "driver_costs.json"
    found.write_text(json.dumps(check.output.data("driver_costs") or {}))
    return _measured(check, "device_file.py", str(found))


def overhead(check: GpuCheck) -> Any:
    """What the hooks add to an op and to an allocation."""
    found = _measured(check, "overhead.py", "vanilla")
    check.keep(found)
    return {**found, **_measured(check, "overhead.py", "patched")}


def tokens(check: GpuCheck) -> Any:
    """How long a token takes where a quarter of the weights fits, and whether all ways generate the same."""
    if check.output.data("environment")["packages"].get("transformers") is None:
        return {"reason": "transformers is not installed"}
    found: dict[str, Any] = {}
    for way in _TOKENS:
        found[way] = _measured(check, "tokens.py", way)
        check.keep(found)
    generated = [
        [(each[name]["tokens"], each[name]["sums_hex"]) for name in ("first", "again")] for each in found.values()
    ]
    if any(each != generated[0] for each in generated):
        raise StageError("not all ways generate the same", found)
    return found


def page_locked(check: GpuCheck) -> Any:
    """Ops on storages in page-locked memory, which have to give what they give on the device."""
    found = run_parts(check, _HERE / "page_locked.py", _PAGE_LOCKED, _PART_S, driver=False)
    done = {part: ops for part, ops in found.items() if "reason" not in ops}
    wrong = [f"{part}: {name}" for part, ops in done.items() for name, op in ops.items() if not op["right"]]
    if wrong:
        raise StageError(f"not as in device memory: {'; '.join(wrong)}", found)
    return found


_COMPARISON_S = {"bert_32": 300.0, "bert_16": 120.0, "resnet_256": 120.0, "vit_giant": 150.0, "bert_managed": 150.0}
_CORE = ("build", "environment")
_ALL = (*_CORE, "hooks")
STAGES = {
    "probes": Stage(180, in_parts(probes)),
    "build": Stage(150, build.core),
    "environment": Stage(60, environment),
    "hooks": Stage(150, build.hooks, _CORE),
    "page_locked": Stage(150, page_locked, _ALL, reserved_s=40),
    "driver_costs": Stage(90, in_parts(driver_costs), reserved_s=10),
    "touches": Stage(45, partial(_measured, program="touches.py"), _ALL, reserved_s=12),
    "device": Stage(45, device, _CORE, reserved_s=10),
    "overhead": Stage(60, overhead, _ALL, reserved_s=14),
    "tokens": Stage(180, tokens, _ALL, reserved_s=30),
    "conformance": Stage(60, build.conformance),
    "tests": Stage(420, tests, _ALL, reserved_s=60),
    "bert": Stage(420, partial(train, network="bert_large"), _ALL, reserved_s=80),
    "resnet": Stage(420, partial(train, network="resnet50"), _ALL, reserved_s=60),
    **{name: Stage(_COMPARISON_S[name], partial(compare, name=name), _ALL) for name in COMPARISONS},
    "eviction": Stage(40, partial(_measured, program="eviction.py"), _ALL, asked_for=True),
}
"""In order. The last one fills a GPU with plain memory, and so waits to be asked for."""


def with_needs(names: list[str]) -> dict[str, Stage]:
    """Stages by name, with those that they need, in order."""
    wanted = {*names, *(need for name in names for need in STAGES[name].needs)}
    return {name: stage for name, stage in STAGES.items() if name in wanted}
