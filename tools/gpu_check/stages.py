"""The stages: each takes the check, returns its data, and raises StageError when it does not pass."""

import json
import re
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from bert import bert
from record import Check, Stage, StageError

_HERE = Path(__file__).parent


def environment(check: Check) -> Any:
    """What the machine has: device, torch, tools."""
    data = json.loads(check.run([sys.executable, str(_HERE / "probe.py"), "emulated" if check.dry_run else "cuda"]))
    data["tools"] = {tool: shutil.which(tool) is not None for tool in ("nvcc", "cmake", "ninja", "c++", "nvidia-smi")}
    if data["device"] is None:
        raise StageError(data["no_device"], data)
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


def costs(check: Check) -> Any:
    """First touch, fault and prefetch by size, against the copy that they need."""
    return json.loads(check.run([sys.executable, str(_HERE / "costs.py"), "emulated" if check.dry_run else "cuda"]))


STAGES = {
    "environment": Stage(40, environment),
    "build": Stage(120, build),
    "hooks": Stage(120, hooks),
    "tests": Stage(180, tests),
    "bert": Stage(240, bert),
    "costs": Stage(60, costs),
}
