"""One command for a machine with a GPU: builds umadvise, runs what only a GPU can show, and writes one JSON file.

    python tools/gpu_check [--stages build,tests] [--output FILE] [--most-managed GIB] [--dry-run]

It needs a checkout (no history), torch with CUDA, a C++ compiler and CMake; no network. Every stage has a time limit,
and all of them together nine minutes: what is least important is dropped, and said to be. A stage that fails is
recorded with its output, and the others go on. The file is written again after every stage. `--dry-run` does all of it
on the emulated device, small.

Exit codes: 0 every stage passed, 2 usage, 3 a stage failed.
"""

import argparse
import datetime
import sys
import tempfile
from pathlib import Path

from record import MOST_MANAGED_BYTES, Check, run_stages, slug
from stages import STAGES

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.insert(1, str(CHECKOUT))  # umadvise, which need not be installed
_ASKED_FOR = [name for name, stage in STAGES.items() if stage.asked_for]


def parse_options(words: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="gpu_check", description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--stages", help=f"of {', '.join(STAGES)}; without it all but {', '.join(_ASKED_FOR)}")
    parser.add_argument("--output", type=Path, metavar="FILE", help="default: profiles/measured/<device>-<date>.json")
    parser.add_argument("--build-directory", type=Path, default=CHECKOUT / "build" / "gpu_check", metavar="DIRECTORY")
    parser.add_argument("--most-managed", type=_gib, default=MOST_MANAGED_BYTES, metavar="GIB", help="limit: 8 GiB")
    parser.add_argument("--dry-run", action="store_true", help="everything on the emulated device, small")
    options = parser.parse_args(words)
    usual = [name for name in STAGES if options.dry_run or name not in _ASKED_FOR]
    options.stages = usual if options.stages is None else options.stages.split(",")
    if unknown := set(options.stages) - set(STAGES):
        parser.error(f"no such stage: {', '.join(sorted(unknown))}; expected some of {', '.join(STAGES)}")
    return options


def _gib(word: str) -> int:
    return int(float(word) * (1 << 30))


def output_path(device_name: str, dry_run: bool) -> Path:
    """Where the file goes when nobody says."""
    stem = "dry-run" if dry_run else slug(device_name)
    date = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    return CHECKOUT / "profiles" / "measured" / f"{stem}-{date}.json"


def main() -> int:
    """Runs the stages and returns the exit code."""
    options = parse_options()
    with tempfile.TemporaryDirectory(prefix="gpu_check-") as scratch:
        check = Check(CHECKOUT, options.build_directory.resolve(), Path(scratch), options.dry_run, options.most_managed)
        chosen = {name: stage for name, stage in STAGES.items() if name in options.stages}
        output, passed = run_stages(
            check, chosen, lambda device_name: options.output or output_path(device_name, options.dry_run)
        )
    print(output)
    return 0 if passed else 3


if __name__ == "__main__":
    sys.exit(main())
