"""What the tools share: command line, examples, CPU time, searches, processes that answer, and what a run writes down.

Whoever imports this can import the modules of examples/ from then on, and keeps no plans and steps: what is measured
must not depend on the run before.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))
os.environ.setdefault("UMADVISE_PLAN_CACHE", "off")


def command_line(doc: str | None) -> argparse.ArgumentParser:
    """A parser that explains a tool by its docstring."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_results(parser: argparse.ArgumentParser) -> None:
    """The options of a benchmark whose ratios are tracked: --json and --ratios."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows")
    parser.add_argument("--ratios", type=Path, metavar="FILE", help="put the ratios into this file, as ratios.py does")


def write_results(options: argparse.Namespace, schema: str, ratios: Mapping[str, float], **rows: Any) -> None:
    """Writes what the options of `add_results` ask for.

    Args:
        options: the parsed command line.
        schema: the first member of the file of rows.
        ratios: the ratios that the benchmark found, by name.
        rows: the other members of the file of rows.
    """
    if options.json is not None:
        options.json.write_text(json.dumps({"schema": schema, **rows}, indent=1) + "\n")
    if options.ratios is not None:
        known = json.loads(options.ratios.read_text()) if options.ratios.exists() else {}
        known[Path(sys.argv[0]).stem] = {name: round(ratio, 3) for name, ratio in ratios.items()}
        options.ratios.write_text(json.dumps(known, indent=1) + "\n")


def cpu_ns(work: Callable[[], object], count: int = 1) -> float:
    """CPU time of this thread for one call, in nanoseconds: the mean of `count` calls."""
    start_ns = time.thread_time_ns()
    for _ in range(count):
        work()
    return (time.thread_time_ns() - start_ns) / count


def largest(works: Callable[[int], bool], low: int, *, part: int | None = None) -> int:
    """The largest number that works, where `low` does; within 1 / `part` of it, else exactly."""
    high = 2 * low
    while works(high):
        low, high = high, 2 * high
    while high - low > max(1, low // part if part is not None else 1):
        middle = (low + high) // 2
        low, high = (middle, high) if works(middle) else (low, middle)
    return low


def asked(process: subprocess.Popen[str], words: str = "", mark: str = "") -> str:
    """What a process answers to a line: its next line that begins with a mark; empty where it has ended."""
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(f"{words}\n")
        process.stdin.flush()
    except BrokenPipeError:
        return ""
    return next((line for line in process.stdout if line.startswith(mark)), "")


def available_bytes() -> int:
    """Memory that could be had now without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/meminfo has no MemAvailable: expected Linux 3.14 or newer")
