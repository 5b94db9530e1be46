"""Instructions that the guard takes for an op whose operands are on the device, counted by valgrind's callgrind.

    python tools/guard_instructions.py build/native

An op of three chunked operands and one new result, which is freed afterwards, on a simulated GPU
(csrc/tests/engine/guard_cost.cpp). It is the difference of two runs by their difference in ops, so what comes before
them does not count; the simulated driver's own instructions do. Then the same of ops that make nothing, in a program
that marks its steps, in two whose steps programs follow, and in two whose steps are found by their repetition.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import command_line

OPS = (3000, 15000)
TESTS = {
    "an_op_on_what_is_there_asks_for_one_event_and_waits_for_nothing": "an op that makes a tensor",
    "steps_are_marked": "an op that makes none",
    "steps_are_followed_by_one_program": "the same, followed by the only program",
    "steps_are_followed_by_one_of_32_programs": "the same, followed by one of 32 programs, in each step another one",
    "steps_are_looked_for_in_modules": "the same, steps are looked for, in modules",
    "steps_are_looked_for_outside_of_modules": "the same, steps are looked for, outside of modules",
}


def instructions(program: Path, test: str, ops: int) -> int:
    """Of one run of a test with so many ops."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", str(program), test]
        environment = {**os.environ, "GUARD_COST_OPS": str(ops)}
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = re.search(r"Collected : (\d+)", run.stderr)
    if found is None:
        raise RuntimeError(run.stderr)
    return int(found[1])


def main() -> int:
    """Prints the instructions of an op of each test."""
    parser = command_line(__doc__)
    parser.add_argument("build", type=Path, help="folder in which the C++ tests were built")
    program = parser.parse_args().build / "tests" / "test_engine_guard_cost"
    for test, words in TESTS.items():
        fewer, more = (instructions(program, test, ops) for ops in OPS)
        print(f"{(more - fewer) / (OPS[1] - OPS[0]):.0f} instructions: {words}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
