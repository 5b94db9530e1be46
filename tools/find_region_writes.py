"""Finds inputs that a compiled graph writes without saying so, by running it on read-only memory.

    python tools/find_region_writes.py [--announced-too] [PROGRAM ...]

The programs are those of tests/integration/compiled_programs.py, all of them unless some are named. Each is trained in
a process of its own, in which every input that umadvise takes for read (umadvise/torch_seam/regions.py) is a copy in
memory that is mapped read-only: a graph that writes there kills the process, and the program is listed. With
--announced-too all inputs are mapped so, and whatever writes any is listed. The exit status is 3 where something was
found. Only Inductor's code for the CPU is seen.
"""

import importlib
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

from find_silent_writes import can_be_protected, read_only
from harness import command_line

_SECONDS = 900


def train_protected(name: str, announced_too: bool) -> None:
    """Trains a program whose graphs are given read-only memory."""
    import torch
    from torch._inductor.output_code import CompiledFxGraph

    original = CompiledFxGraph.__call__

    def protect(graph: Any, index: int, value: Any) -> Any:
        parameter = isinstance(value, torch.nn.Parameter)
        announced = index in graph.mutated_input_idxs or (graph.fx_kwargs["is_backward"] and not parameter)
        if not can_be_protected(value) or (announced and not announced_too):
            return value
        copy = read_only(value)
        return torch.nn.Parameter(copy, requires_grad=False) if parameter else copy  # as it is saved for backward

    def run(graph: Any, inputs: list[Any]) -> Any:
        inputs[:] = [protect(graph, *each) for each in enumerate(inputs)]
        return original(graph, inputs)

    with mock.patch.object(CompiledFxGraph, "__call__", run):
        getattr(_programs(), name)().train(nullcontext, lambda tensor: tensor)


def _programs() -> Any:
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "integration"))
    return importlib.import_module("compiled_programs")


def main() -> int:
    """Lists the programs that write. Returns the exit status."""
    parser = command_line(__doc__)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM")
    parser.add_argument("--announced-too", action="store_true", help="take every input for read")
    parser.add_argument("--here", action="store_true", help="train the one program in this process, as it comes")
    options = parser.parse_args()
    if options.here:
        train_protected(options.programs[0], options.announced_too)
        return 0
    found = False
    for name in options.programs or [each.__name__ for each in _programs().PROGRAMS]:
        command = [sys.executable, __file__, "--here", name, *(["--announced-too"] if options.announced_too else [])]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        if ended.returncode == -signal.SIGSEGV:
            found = True
            print(name)
        elif ended.returncode != 0:
            raise SystemExit(ended.stderr)
    return 3 if found else 0


if __name__ == "__main__":
    sys.exit(main())
