"""Runs clang-tidy on the core's units, two at a time. Units that have passed once are skipped if there is a cache.

    python tools/tidy.py build/sanitized csrc/.clang-tidy [OPTION of clang-tidy ...]

The first word is a build folder with compile_commands.json, the second the configuration. UMADVISE_CI_CACHE names the
folder of the cache. A unit's key is a digest of its preprocessed text with comments (NOLINT is one), of the options, of
the configuration and of clang-tidy's version. The exit status is 1 if any unit has a finding.
"""

import hashlib
import json
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def preprocessed(entry: dict[str, str]) -> bytes:
    """Returns a unit's text after the preprocessor, without the lines that name files."""
    words = shlex.split(entry["command"])
    place = words.index("-o")
    command = [each for each in (*words[:place], *words[place + 2 :]) if each != "-c"]
    run = subprocess.run([*command, "-E", "-P", "-C"], cwd=entry["directory"], capture_output=True, check=True)
    return run.stdout


def passes(entry: dict[str, str], command: list[str], common: bytes, cache: Path | None) -> bool:
    """Returns whether clang-tidy finds nothing in a unit, now or when it had the same text."""
    stamp = cache / hashlib.sha256(common + preprocessed(entry)).hexdigest() if cache is not None else None
    if stamp is not None and stamp.exists():
        return True
    run = subprocess.run([*command, entry["file"]], capture_output=True, text=True, check=False)
    sys.stdout.write(run.stdout if run.returncode else "")
    if stamp is not None and run.returncode == 0:
        stamp.touch()
    return run.returncode == 0


def main(build: str, configuration: str, *options: str) -> int:
    """Analyses all units of a build folder, and returns the exit status."""
    entries = json.loads(Path(build, "compile_commands.json").read_text())
    units = [each for each in entries if "/core.dir/" in each["command"]]
    command = ["clang-tidy", "-p", build, f"--config-file={configuration}", "--quiet", *options]
    version = subprocess.run(["clang-tidy", "--version"], capture_output=True, check=True).stdout
    common = version + Path(configuration).read_bytes() + "\0".join(options).encode()
    folder = os.environ.get("UMADVISE_CI_CACHE")
    cache = Path(folder, "tidy") if folder else None
    if cache is not None:
        cache.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda each: passes(each, command, common, cache), units))
    return 0 if found and all(found) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
