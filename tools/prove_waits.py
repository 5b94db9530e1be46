"""Whether every wait is needed: leaves out one at a time, and looks for a test that fails without it.

    python tools/prove_waits.py build/native                     as docs/waits.md says; what ctest runs
    python tools/prove_waits.py build/native --seeds 10 --write  ten times each, and writes that page again

Waits have names (csrc/include/umadvise_waits.h), C++ tests those of their files. The page is also where this program
finds the test of a wait; for one that the page does not know, or whose test does not miss it, --write tries all tests
of the files below.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from harness import command_line

Item = TypeVar("Item")
Result = TypeVar("Result")
ROOT = Path(__file__).parents[1]
HEADER = ROOT / "csrc" / "include" / "umadvise_waits.h"
PAGE = ROOT / "docs" / "waits.md"
TORCH_TESTS = ROOT / "tests" / "torch_cuda" / "test_waits.py"
# What is about waits; the first test that misses one is taken.
FILES = (
    "engine_cuda_waits",
    "engine_cuda_host_waits",
    "engine_cuda_pages",
    "engine_waits",
    "engine_cuda_swapping",
    "engine_stream_order",
    "engine_stream_wait",
    "memory_host_copies",
    "emulated_streams",
    "emulated_vmm_copies",
    "cupti_sampling",
    "engine_durations",
)
ENOUGH = 0.9  # of the seeds
LIMIT_S = 30
TRIES = 3
HANGS_S = 10
"""A test that is not over then hangs: none takes a second."""
START, END = "<!-- by tools/prove_waits.py: -->\n", "<!-- until here -->"


@dataclass(frozen=True)
class Wait:
    """One of the header's."""

    section: str
    name: str
    reason: str


@dataclass(frozen=True)
class Proof:
    """A C++ test, and in how many of how many runs it failed without the wait."""

    file: str
    test: str
    missed: int = 0
    runs: int = 0

    def __str__(self) -> str:
        return f"{self.file} {self.test}"


def waits() -> list[Wait]:
    """All of the header, in order."""
    section, found = "", []
    for line in HEADER.read_text().splitlines():
        if match := re.search(r"/\* ---- (.+) ---- \*/", line):
            section = match[1]
        if match := re.match(r'  X\((\w+), "(.+)"\)', line):
            found.append(Wait(section, match[1], match[2]))
    return found


def places() -> dict[str, set[str]]:
    """The files in which each name stands."""
    found: dict[str, set[str]] = {}
    native = [path for path in (ROOT / "csrc").rglob("*.cpp") if ROOT / "csrc" / "tests" not in path.parents]
    for path in [*native, *(ROOT / "umadvise" / "_hooks").glob("*.h")]:
        for name in re.findall(r"\bWait::(\w+)", path.read_text()):
            found.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    return found


def proofs() -> dict[str, Proof]:
    """What the page says."""
    row = r"^\| `(\w+)` \|.*\| `(\w+) (\w+)`[^|]* \| (\d+) of (\d+) \|"
    page = PAGE.read_text() if PAGE.exists() else ""
    rows = re.findall(row, page, re.M)
    return {name: Proof(file, test, int(missed), int(runs)) for name, file, test, missed, runs in rows}


def source_of(file: str) -> Path:
    """The file of which a C++ test is made: `engine_swapping` is tests/engine/swapping.cpp."""
    (found,) = (path for path in (ROOT / "csrc" / "tests").rglob("*.cpp") if f"{path.parent.name}_{path.stem}" == file)
    return found


class WaitTests:
    """Runs C++ tests of one build, without a wait and with it."""

    def __init__(self, build: Path) -> None:
        self._build = build

    def passes(self, file: str, test: str, wait: str = "", seed: int = 0) -> bool:
        """One run of one test; `wait` is left out. What hangs does not pass, nor does a test that is not there."""
        setting = {"UMADVISE_LEAVE_OUT_WAIT": wait, "UMADVISE_TEST_SEED": str(seed)}
        command = [str(self._build / "tests" / f"test_{file}"), test]
        limit_s = HANGS_S if wait else LIMIT_S
        try:
            run = subprocess.run(command, env=os.environ | setting, capture_output=True, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired:
            return False
        return run.returncode == 0

    def prove(self, wait: str, proof: Proof, seeds: int) -> Proof:
        """In how many of the seeds the test misses the wait."""
        missed = sum(not self.passes(proof.file, proof.test, wait, seed) for seed in range(seeds))
        return Proof(proof.file, proof.test, missed, seeds)

    def misses(self, wait: str, proof: Proof) -> bool:
        """Whether the test fails without the wait: on a busy machine perhaps not with the first seed."""
        return any(not self.passes(proof.file, proof.test, wait, seed) for seed in range(TRIES))

    def search(self, wait: str, seeds: int) -> Proof | None:
        """The first test that misses it often enough; None where there is none."""
        for file in FILES:
            for test in re.findall(r"^TEST\((\w+)\)", source_of(file).read_text(), re.M):
                if self.passes(file, test, wait) or not self.passes(file, test):
                    continue
                proof = self.prove(wait, Proof(file, test), seeds)
                if is_enough(proof):
                    return proof
        return None


def is_enough(proof: Proof) -> bool:
    """In nearly every run."""
    return proof.missed >= ENOUGH * proof.runs


def measured(runner: WaitTests, known: dict[str, Proof], seeds: int) -> dict[str, Proof]:
    """The page's proofs measured again, and those of waits that it has none of."""

    def of_one(wait: Wait) -> Proof | None:
        proof = runner.prove(wait.name, known[wait.name], seeds) if wait.name in known else None
        return proof if proof and is_enough(proof) else runner.search(wait.name, seeds)

    return {wait.name: proof for wait, proof in side_by_side(of_one, waits()) if proof}


def side_by_side(work: Callable[[Item], Result], items: Sequence[Item]) -> list[tuple[Item, Result]]:
    """Each item with what `work` makes of it."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(zip(items, pool.map(work, items), strict=True))


def table(found: dict[str, Proof]) -> str:
    """The part of the page that this program writes."""
    torch_too = set(re.findall(r'^    "(\w+)":', TORCH_TESTS.read_text(), re.M)) if TORCH_TESTS.exists() else set()
    where, text, section = places(), "", ""
    for wait in waits():
        if wait.section != section:
            section = wait.section
            text += f"\n## {section[0].upper()}{section[1:]}\n\n"
            text += "| wait | without it | in | missed by | seeds |\n|---|---|---|---|---|\n"
        proof = found.get(wait.name)
        files = ", ".join(sorted(where.get(wait.name, {"nowhere"})))
        also = "; torch's CUDA build" if wait.name in torch_too else ""
        missed = f"`{proof}`{also} | {proof.missed} of {proof.runs}" if proof else "nothing | 0"
        text += f"| `{wait.name}` | {wait.reason} | {files} | {missed} |\n"
    return text


def page(found: dict[str, Proof]) -> str:
    """The whole page, its table made of these proofs."""
    before, _, rest = PAGE.read_text().partition(START)
    return before + START + table(found) + "\n" + END + rest.partition(END)[2]


def complaints(runner: WaitTests, known: dict[str, Proof]) -> list[str]:
    """What is not as the page says."""
    names = [wait.name for wait in waits()]
    wrong = [f"{name} stands nowhere in the code" for name in names if name not in places()]
    wrong += [f"{name} has no test" for name in names if name not in known]
    if page(known) != PAGE.read_text():
        wrong.append(f"{PAGE.name} is not what --write makes of it")
    tests = sorted({(proof.file, proof.test) for proof in known.values()})
    runs = side_by_side(lambda test: runner.passes(*test), tests)
    wrong += [f"{file} {test} fails" for (file, test), passes in runs if not passes]
    missed = side_by_side(lambda name: runner.misses(name, known[name]), [name for name in names if name in known])
    return wrong + [f"{known[name]} passes without {name}" for name, is_missed in missed if not is_missed]


def main() -> int:
    """1 where something is not as the page says."""
    parser = command_line(__doc__)
    parser.add_argument("build", type=Path, help="where CMake built the C++ tests")
    parser.add_argument("--seeds", type=int, default=10, help="runs of each test with --write")
    parser.add_argument("--write", action="store_true", help="measure, and write the page")
    options = parser.parse_args()
    runner, known = WaitTests(options.build.resolve()), proofs()
    if options.write:
        known = measured(runner, known, options.seeds)
        PAGE.write_text(page(known))
    wrong = complaints(runner, known)
    print(*wrong, sep="\n", file=sys.stderr)
    print(f"{len(known)} of {len(waits())} waits have a test that fails without them")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
