"""Run a training script in unified memory and write its page-fault profile, without changing the script.

Under torchrun each process writes files of its own: FILE with its rank in the name.
"""

import argparse
import importlib.util
import os
import runpy
import sys
import traceback
from collections.abc import Iterator
from contextlib import chdir, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from umadvise.commands._endings import heeding_sigterm
from umadvise.commands._messages import COMMAND
from umadvise.devices.ranks import ranks
from umadvise.errors import UmadviseError, UsageError
from umadvise.torch_seam.interrupts import signals_held

if TYPE_CHECKING:
    from umadvise.records.fault_profile import FaultProfile
    from umadvise.training.script import ScriptRun


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument(
        "--device",
        default="auto",
        choices=("auto", "cuda", "emulated"),
        help="auto is CUDA where there is one, else an error that names both ways out",
    )
    parser.add_argument("--capacity", metavar="BYTES", help='memory of the emulated device, such as "2GiB"')
    parser.add_argument(
        "--clock",
        metavar="CARD",
        help="on the emulated device time is that of this card, virtual: a name of `umadvise devices`, or a file",
    )
    parser.add_argument(
        "--budget",
        metavar="BYTES",
        help="what unified memory may keep on the device; auto: what a shared card can spare",
    )
    parser.add_argument(
        "--policy", default="advise", help="a rung (resident, advise, window, swap, swap+recompute), a planner, or auto"
    )
    parser.add_argument(
        "--profile", type=Path, default=Path("umadvise-profile.json"), metavar="FILE", help="where the profile goes"
    )
    parser.add_argument(
        "--sample-every",
        type=int,
        metavar="N",
        help="on CUDA count faults in every N-th step and the first three, 0: in none; by default as a session does",
    )
    parser.add_argument("--record", type=Path, metavar="FILE", help="keep every op and allocation as a trace, there")
    parser.add_argument(
        "--live", action="store_true", help="show each step while the script runs; nothing where there is no terminal"
    )
    parser.add_argument(
        "-m", "--module", action="store_true", help="SCRIPT is the name of a module or package, as for python -m"
    )
    parser.add_argument(
        "script",
        help="the script, a folder with a __main__.py, or a module's name; it sees the words after it as its own",
    )
    parser.add_argument("words", nargs=argparse.REMAINDER, help="its arguments")


def run(arguments: argparse.Namespace) -> int:
    """Runs the script; its exit code is ours. The profile is written however it ends, by SIGINT and SIGTERM too."""
    script = _found_module(arguments.script) if arguments.module else Path(arguments.script)
    if not script.is_file() and not (script / "__main__.py").is_file():
        raise UsageError(f"no script {str(script)!r}: expected a Python file, or a folder with a __main__.py")
    here = ranks()
    profile = here.own(arguments.profile)
    record = None if arguments.record is None else here.own(arguments.record)
    _check_places(script, profile, record)
    folder = Path.cwd()  # the script may go to another one
    emulated = {name: each for name in ("capacity", "clock") if (each := getattr(arguments, name)) is not None}
    if emulated and arguments.device != "emulated":
        option = next(iter(emulated))
        raise UsageError(f"--{option} goes with --device emulated: a GPU has its own; limit it with --budget")

    from umadvise.devices.open_device import EmulatedDevice
    from umadvise.training.script import ScriptRun
    from umadvise.training.watch.sampling import SAMPLE_EVERY

    device = EmulatedDevice(**emulated) if emulated else arguments.device
    with (
        heeding_sigterm(),
        ScriptRun(
            device,
            arguments.budget,
            arguments.policy,
            arguments.script,
            record=record is not None,
            sample_every=SAMPLE_EVERY if arguments.sample_every is None else arguments.sample_every,
        ) as watched,
    ):
        results = _Results(watched, folder, profile, record)
        ended = False
        try:
            try:
                with _shown(watched) if arguments.live and sys.stderr.isatty() and here.speaks else nullcontext():
                    code = _run_script(arguments.script, arguments.words, module=arguments.module)
                ended = True
            finally:
                results.write(predict=ended)
        finally:
            results.write(predict=False)  # nothing, unless a signal came before the first one held signals
    return code


@dataclass
class _Results:
    """What the command writes when the script has ended, once."""

    watched: "ScriptRun"
    folder: Path
    profile: Path
    record: Path | None
    written: bool = False

    def write(self, *, predict: bool) -> None:
        """Writes all of it: signals wait meanwhile, but not for what is predicted."""
        if self.written or self.watched.forked:  # as a child of the script is that left like its parent
            return
        predicted = self.watched.profile(predict=True) if predict else None
        with signals_held(), chdir(self.folder):
            self.written = True
            _report(predicted or self.watched.profile(), self.profile)
            if self.record is not None:
                _keep(self.watched, self.record)


def _check_places(script: Path, *outputs: Path | None) -> None:
    """Nothing that is written replaces the script or another output, or turns out at the end to have no place."""
    taken = {script.resolve()}
    for output in filter(None, outputs):
        target = output.resolve()  # where a link leads is written
        if not os.access(target.parent, os.W_OK | os.X_OK) or (target.exists() and not target.is_file()):
            raise UsageError(
                f"cannot write {str(output)!r}: expected a file in a folder to write to; --profile and --record name it"
            )
        if target in taken:
            raise UsageError(f"{str(output)!r} is named twice: expected a file of its own for each output")
        taken.add(target)


def _found_module(name: str) -> Path:
    """The file that `python -m` would run; the folder where it is called is searched first, as there."""
    try:
        with _path_begins_with(Path.cwd()):
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.submodule_search_locations is not None:
                spec = importlib.util.find_spec(f"{name}.__main__")
    except (ImportError, ValueError) as error:
        raise UsageError(f"no module {name!r}: {error}") from None
    if spec is None or spec.origin is None:
        raise UsageError(f"no module {name!r}: expected a module, or a package with a __main__")
    return Path(spec.origin)


@contextmanager
def _path_begins_with(folder: Path) -> Iterator[None]:
    before, sys.path[0] = sys.path[0], str(folder.resolve())
    try:
        yield
    finally:
        sys.path[0] = before


def _run_script(script: str, words: list[str], *, module: bool) -> int:
    before, sys.argv = sys.argv, [script, *words]
    try:
        with _path_begins_with(Path.cwd() if module else Path(script).parent):
            if module:
                runpy.run_module(script, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except UmadviseError:  # the script's own: its line matters more than our exit code
        traceback.print_exc()
        return 1
    finally:
        sys.argv = before
    return 0


@contextmanager
def _shown(watched: "ScriptRun") -> Iterator[None]:
    """Shows the step that ended last, below what the script prints."""
    from rich.console import Console
    from rich.live import Live

    from umadvise.reports.reporters.running import view

    with Live(console=Console(stderr=True), auto_refresh=False, redirect_stdout=sys.stdout.isatty()) as live:
        watched.watch(lambda step, memory, rung: live.update(view(step, memory, rung), refresh=True))
        yield


def _report(profile: "FaultProfile", path: Path) -> None:
    from umadvise.records.fault_profile import write
    from umadvise.reports.reporters.running import in_one_line

    write(profile, path)
    said = profile.step_count, path, path, in_one_line(profile)
    COMMAND.info("%d steps watched; profile in %s (umadvise report %s): %s", *said)


def _keep(watched: "ScriptRun", path: Path) -> None:
    from umadvise.records import trace_file as io

    trace = watched.trace()
    io.write(trace, path)
    COMMAND.info("trace of %s ops in %s", f"{len(trace.ops):,}", path)
