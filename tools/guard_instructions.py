"""Instructions that the guard takes for an op whose operands are on the device, counted by valgrind's callgrind.

    python tools/guard_instructions.py build/test

An op of three chunked operands and one new result, which is freed afterwards, on a simulated GPU
(csrc/tests/engine/guard_cost.cpp). It is the difference of two runs by their difference in ops, so what comes before
them does not count; the simulated driver's own instructions do.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import command_line

OPS = (2000, 12000)


def instructions(program: Path, ops: int) -> int:
    """Of one run with so many ops."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", str(program)]
        environment = {**os.environ, "GUARD_COST_OPS": str(ops)}
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = re.search(r"Collected : (\d+)", run.stderr)
    if found is None:
        raise RuntimeError(run.stderr)
    return int(found[1])


def main() -> int:
    """Prints the instructions of an op."""
    parser = command_line(__doc__)
    parser.add_argument("build", type=Path, help="folder in which the C++ tests were built")
    program = parser.parse_args().build / "tests" / "test_engine_guard_cost"
    fewer, more = (instructions(program, ops) for ops in OPS)
    print(f"{(more - fewer) / (OPS[1] - OPS[0]):.0f} instructions an op")
    return 0


if __name__ == "__main__":
    sys.exit(main())
