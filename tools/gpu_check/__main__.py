"""What only a GPU can show, for somebody with ten minutes on one: see README.md beside this file.

    python tools/gpu_check --stages probes --output FOLDER [--bundle FOLDER] [--most-managed GIB] [--dry-run]

It needs a checkout (no history), torch with CUDA, and a bundle or else a C++ compiler and CMake; no network. The record
in the folder is written again whenever something has ended: what is cut off loses nothing that was there. A stage that
fails is recorded with its output, and the others go on. `--dry-run` does all of it on the emulated device, small.

Exit codes: 0 every stage passed, 2 usage, 3 a stage failed.
"""

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
sys.path.insert(1, str(CHECKOUT))  # umadvise, which need not be installed

import sizes  # noqa: E402
from prebuilt import Prebuilt  # noqa: E402
from record import MOST_MANAGED_BYTES, WITHIN_S, FolderError, GpuCheck, Output, run_stages  # noqa: E402
from stages import STAGES, with_needs  # noqa: E402

BUNDLE = CHECKOUT / "build" / "gpu_bundle"
_ASKED_FOR = [name for name, stage in STAGES.items() if stage.asked_for]


class CutOff(BaseException):
    """Somebody ends this program; the message says how."""


def parse_options(words: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="gpu_check", description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--stages", help=f"of {', '.join(STAGES)}; without it all but {', '.join(_ASKED_FOR)}")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="for record, summary and log")
    parser.add_argument(
        "--bundle", type=Path, metavar="FOLDER", help=f"of bundle.py; default: {BUNDLE}, if it is there"
    )
    parser.add_argument("--build-directory", type=Path, default=CHECKOUT / "build" / "gpu_check", metavar="FOLDER")
    parser.add_argument("--most-managed", type=_gib, default=MOST_MANAGED_BYTES, metavar="GIB", help="8 at most")
    parser.add_argument("--within", type=float, default=WITHIN_S, metavar="SECONDS", help=f"default: {WITHIN_S:.0f}")
    parser.add_argument("--small", action="store_true", help="what a dry run does, on the GPU: to try the programs")
    parser.add_argument("--dry-run", action="store_true", help="everything on the emulated device, small")
    options = parser.parse_args(words)
    usual = [name for name in STAGES if options.dry_run or name not in _ASKED_FOR]
    options.stages = usual if options.stages is None else options.stages.split(",")
    if unknown := set(options.stages) - set(STAGES):
        parser.error(f"no such stage: {', '.join(sorted(unknown))}; expected some of {', '.join(STAGES)}")
    if not 0 < options.most_managed <= MOST_MANAGED_BYTES:
        parser.error("--most-managed is more than 0 and at most 8: more managed memory can stall the machine")
    if options.bundle is None and BUNDLE.is_dir():
        options.bundle = BUNDLE
    if options.bundle is not None and not (options.bundle / "sources").is_file():
        parser.error(f"{options.bundle} is no bundle: expected what tools/gpu_check/bundle.py makes")
    return options


def _gib(word: str) -> int:
    return int(float(word) * (1 << 30))


def _cut_off(number: int, _frame: object) -> None:
    raise CutOff(signal.Signals(number).name)


def main() -> int:
    """Runs the stages and returns the exit code."""
    options = parse_options()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _cut_off)
    try:
        output = Output(options.output.resolve(), dry_run=options.dry_run)
    except FolderError as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return 2
    if options.small:
        os.environ[sizes.VARIABLE] = "1"
    prebuilt = Prebuilt(None if options.bundle is None else options.bundle.resolve())
    with tempfile.TemporaryDirectory(prefix="gpu_check-") as scratch:
        check = GpuCheck(
            CHECKOUT,
            options.build_directory.resolve(),
            prebuilt,
            Path(scratch),
            output,
            options.dry_run,
            options.most_managed,
        )
        try:
            passed = run_stages(check, with_needs(options.stages), options.within)
        except CutOff as error:
            print(f"gpu_check: cut off by {error}; what had ended is in {output.folder}", file=sys.stderr)
            return 3
    print((output.folder / "summary.txt").read_text(), end="")
    return 0 if passed else 3


if __name__ == "__main__":
    sys.exit(main())
