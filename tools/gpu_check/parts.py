"""Programs of named parts, each of which runs in a process of its own: what crashes or hangs costs only itself."""

import json
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from driver import DriverError
from record import GpuCheck, StageError

MIB = 1 << 20
Samples = dict[str, list[int]]


def main(parts: Mapping[str, Callable[[str], Any]]) -> int:
    """`python PROGRAM KIND PART`: prints what a part finds as JSON, or why it finds nothing."""
    kind, name = sys.argv[1:]
    try:
        found = parts[name](kind)
    except DriverError as error:
        found = {"reason": str(error)}
    print(json.dumps(found))
    return 0


def run_parts(
    check: GpuCheck, program: Path, names: Iterable[str], part_s: float, *, driver: bool = True
) -> dict[str, Any]:
    """What each part prints. It is kept as soon as it is there.

    Args:
        check: the check that runs the program.
        program: the file that has the parts.
        names: names of the parts, in order.
        part_s: seconds until a part is ended.
        driver: they open the driver themselves.

    Raises:
        StageError: parts crashed or took too long, and all others have run; or none of them found anything.
    """
    found: dict[str, Any] = {}
    for name in names:
        words = [sys.executable, str(program), check.kind, name]
        try:
            found[name] = json.loads(check.run(words, within_s=part_s, driver=driver))
        except (StageError, ValueError) as error:
            found[name] = {"crashed": str(error)}
        check.keep(found)
    told = {name: each for name, each in found.items() if isinstance(each, dict)}
    if crashed := [f"{name} ({each['crashed']})" for name, each in told.items() if "crashed" in each]:
        raise StageError(f"{len(crashed)} of {len(found)} parts did not end well: {'; '.join(crashed)}", found)
    reasons = [each["reason"] for each in told.values() if "reason" in each]
    if len(reasons) == len(found):
        raise StageError(f"no part found anything: {reasons[0]}", found)
    return found


def or_reason(measure: Callable[[], Any]) -> Any:
    """What is measured, or why it cannot be."""
    try:
        return measure()
    except DriverError as error:
        return {"reason": str(error)}


def medians(samples: Samples) -> dict[str, int]:
    """Of each list of nanoseconds."""
    return {name: int(statistics.median(values)) for name, values in samples.items()}
