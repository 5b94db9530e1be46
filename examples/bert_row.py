"""What one run of bert_large.py leaves behind, and running it in a process of its own."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from umadvise.records.counters import Counters
from umadvise.records.fault_profile import RungChange

SCRIPT = Path(__file__).with_name("bert_large.py")


class Swaps(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that swapping moved in a run, and evictions.

    Attributes:
        bytes_h2d: bytes copied to the device.
        bytes_d2h: bytes copied to the host.
        evictions: number of swap-outs that no plan asked for.
    """

    bytes_h2d: int
    bytes_d2h: int
    evictions: int


class Row(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="umadvise.bert_large/1"):
    """The result of one run. Losses are hexadecimal, so that they compare to the last bit.

    Attributes:
        options: options of the command line, with defaults filled in.
        losses_hex: loss of each step that ended, in hexadecimal.
        step_ns: duration of each step in nanoseconds.
        error: reason why it ran out of memory; None when all steps ended.
        peak_bytes: the most bytes that the device held; without a device, the bytes that the process grew by.
        counters: what unified memory counted; None without unified memory.
        report: path of the file with the fault profile; None where there is none.
        swaps: what swapping did; None without a session.
        rungs: the rungs of the ladder that the session was on, each with its reason.
    """

    options: dict[str, Any]
    losses_hex: list[str]
    step_ns: list[int]
    error: str | None
    peak_bytes: int | None
    counters: Counters | None
    report: str | None
    swaps: Swaps | None = None
    rungs: tuple[RungChange, ...] = ()


def write(row: Row, path: Path) -> None:
    """Writes a row as JSON."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(row), indent=1) + b"\n")


def read(path: Path) -> Row | None:
    """The row in a file; None where there is no file, because the run died before."""
    return msgspec.json.decode(path.read_bytes(), type=Row) if path.exists() else None


def run(words: list[str], row: Path, log: Path) -> Iterator[str]:
    """Runs bert_large.py with these options and yields what it prints, line by line; everything also goes to `log`."""
    row.unlink(missing_ok=True)
    command = [sys.executable, str(SCRIPT), *words, "--json", str(row)]
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            for line in process.stdout or ():
                file.write(line)
                yield line.rstrip()
        finally:
            process.kill()
            process.wait()
