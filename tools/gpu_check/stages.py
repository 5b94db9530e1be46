"""The stages: each takes the check, returns its data, and raises StageError when it does not pass."""

import importlib.util
import json
import re
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import training
from record import Check, Stage, StageError

_HERE = Path(__file__).parent
_NEEDED = ("msgspec", "numpy")
"""Packages without which nothing of umadvise runs; what others are for runs without them."""


def environment(check: Check) -> Any:
    """What the machine has: device, torch, tools."""
    data = json.loads(check.run([sys.executable, str(_HERE / "probe.py"), "emulated" if check.dry_run else "cuda"]))
    data["tools"] = {tool: shutil.which(tool) is not None for tool in ("nvcc", "cmake", "ninja", "c++", "nvidia-smi")}
    if data["device"] is None:
        raise StageError(data["no_device"], data)
    if missing := [name for name in _NEEDED if data["packages"][name] is None]:
        remedy = "install it to a folder elsewhere (pip install --target), and have PYTHONPATH name that here"
        raise StageError(f"umadvise needs {' and '.join(missing)}, not installed here: {remedy}", data)
    return data


def build(check: Check) -> Any:
    """The native core, and the driver table compared with the toolkit's own headers where there is one."""
    configure = ["cmake", "-S", "csrc", "-B", str(check.build_directory), "-DUMADVISE_TESTS=ON"]
    if not (check.build_directory / "CMakeCache.txt").exists() and shutil.which("ninja") is not None:
        configure += ["-G", "Ninja"]
    targets = ["umadvise"]
    if (toolkit := _toolkit_headers()) is not None:
        major, include = toolkit
        configure.append(f"-DUMADVISE_CUDA{major}_INCLUDE={include}")
        targets.append(f"test_cuda{major}_conformance")
    check.run(configure)
    check.run(["cmake", "--build", str(check.build_directory), "--parallel", "--target", *targets])
    compared = [check.run([str(check.build_directory / "tests" / name)]).strip() for name in targets[1:]]
    return {"library": str(check.build_directory / "libumadvise.so"), "conformance": compared}


def _toolkit_headers() -> tuple[int, Path] | None:
    """Major version and include folder of the CUDA toolkit on the PATH, if it is one that the driver table is about."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        return None
    include = Path(nvcc).resolve().parents[1] / "include"
    if not (include / "cudaTypedefs.h").is_file():
        return None
    version = re.search(r"#define CUDA_VERSION (\d+)", (include / "cuda.h").read_text())
    major = int(version[1]) // 1000 if version else 0
    return (major, include) if major in (12, 13) else None


def hooks(check: Check) -> Any:
    """The extension against this machine's torch."""
    program = "from umadvise import _native; _native.hooks_function('um_hooks_cuda_allocate')"
    check.run([sys.executable, "-c", program])
    return None


def tests(check: Check) -> Any:
    """The tests that need a GPU, in a dry run those of them that the emulated device can stand in for."""
    results = check.scratch / "tests.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu", f"--junitxml={results}"]
    if importlib.util.find_spec("xdist") is not None and not check.dry_run:
        command += ["--numprocesses", "4"]  # each test is a process or two of its own, and small
    chosen = ["-m", "not gpu", "-k", "unpatch"] if check.dry_run else ["-m", "gpu"]
    check.run([*command, *chosen], must_succeed=False)
    if not results.exists():
        raise StageError("pytest did not run: " + next(iter(reversed("".join(check.output).strip().splitlines()))))
    cases = [_case(element) for element in ElementTree.parse(results).iter("testcase")]
    bad = [case["name"] for case in cases if case["outcome"] != "passed"]
    if bad or not cases:
        raise StageError(f"{len(bad)} of {len(cases)} tests did not pass: {', '.join(bad)}", cases)
    return cases


def _case(element: ElementTree.Element) -> dict[str, Any]:
    """A test's outcome; one that is skipped here lacks what the machine should have."""
    outcome = next((child.tag for child in element if child.tag in ("failure", "error", "skipped")), "passed")
    return {"name": element.get("name"), "outcome": outcome, "seconds": float(element.get("time", 0))}


def _measured(check: Check, program: str, *words: str) -> Any:
    """What one of the programs beside this file prints as JSON."""
    device = "emulated" if check.dry_run else "cuda"
    return json.loads(check.run([sys.executable, str(_HERE / program), device, *words]))


def driver_costs(check: Check) -> Any:
    """The driver's calls by size: prefetches, advice, discards, and chunks of physical memory."""
    return _measured(check, "driver_costs.py")


def touches(check: Check) -> Any:
    """First touches, faults and prefetches by size, against the copy that they need."""
    return _measured(check, "touches.py")


def device(check: Check) -> Any:
    """The link by size, and the device file that comes of it and of what the driver's calls cost."""
    costs = check.scratch / "driver_costs.json"
    costs.write_text(json.dumps(check.found.get("driver_costs") or {}))
    return _measured(check, "device_file.py", str(costs))


def overhead(check: Check) -> Any:
    """What the hooks add to an op and to an allocation."""
    return {**_measured(check, "overhead.py", "vanilla"), **_measured(check, "overhead.py", "patched")}


def eviction(check: Check) -> Any:
    """Whether prefetching what is resident makes it leave later."""
    return _measured(check, "eviction.py")


STAGES = {
    "environment": Stage(40, environment),
    "build": Stage(120, build),
    "hooks": Stage(110, hooks),
    "tests": Stage(150, tests),
    "driver_costs": Stage(40, driver_costs, reserved_s=10),
    "touches": Stage(40, touches, reserved_s=12),
    "device": Stage(40, device, reserved_s=10),
    "overhead": Stage(40, overhead, reserved_s=14),
    "bert": Stage(200, training.stage("bert_large"), reserved_s=80),
    "resnet": Stage(160, training.stage("resnet50"), reserved_s=60),
    "eviction": Stage(40, eviction, asked_for=True),
}
"""In order. The last one fills a GPU with plain memory, and so waits to be asked for."""
