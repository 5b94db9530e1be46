"""Several processes keep, find and remove files in one cache directory, and some of them are killed at it."""

import itertools
import multiprocessing
import os
import random
import signal
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path

from umadvise.training.plans.kept_files import KeptFiles

NAMES = 6
MOST_FILES = 3
TURNS = 60


def files(directory: Path) -> KeptFiles:
    return KeptFiles(directory, ".steps", "steps are recorded again", MOST_FILES, 1 << 20)


def document(name: int, writer: int) -> bytes:
    """Says which file it belongs to, and is whole if it ends as it begins."""
    return f"{name} {writer}|".encode() * (1 + 300 * writer)


def is_whole(found: bytes, name: int) -> bool:
    words = found.split(b"|")
    return words[0].startswith(b"%d " % name) and found in {document(name, writer) for writer in range(4)}


def work(directory: Path, writer: int, tell: Connection, turns: Iterable[int]) -> None:
    """Ends with an exception where a file is damaged, or keeping or reading ends with one."""
    kept, chosen = files(directory), random.Random(writer)
    for _ in turns:
        kept.keep(str(name := chosen.randrange(NAMES)), document(name, writer))
        found = kept.read(str(other := chosen.randrange(NAMES)), Path.read_bytes)
        assert found is None or is_whole(found, other)
        tell.send(None)


def test_processes_share_a_directory_and_some_are_killed(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(4)]
    # The last two go on until they are killed.
    turns = [range(TURNS), range(TURNS), itertools.count(), itertools.count()]
    processes = [
        context.Process(target=work, args=(tmp_path, writer, pipes[writer][1], turns[writer])) for writer in range(4)
    ]
    for process in processes:
        process.start()
    for process, (told, _) in zip(processes[2:], pipes[2:], strict=True):
        for _ in range(random.randrange(1, TURNS // 2)):
            told.recv()
        process.kill()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0, -signal.SIGKILL, -signal.SIGKILL]
    whole = [path for path in tmp_path.iterdir() if path.suffix == ".steps"]
    assert 0 < len(whole) <= MOST_FILES
    assert all(is_whole(path.read_bytes(), int(path.stem)) for path in whole)


def test_what_a_killed_process_has_begun_to_write_goes(tmp_path: Path) -> None:
    abandoned, young = (tmp_path / f".{name}.steps.0123456789abcdef" for name in range(2))
    for path in (abandoned, young):
        path.write_bytes(b"0 0|")
    os.utime(abandoned, (0, 0))
    files(tmp_path).keep("0", document(0, 0))
    assert sorted(path.name for path in tmp_path.iterdir()) == [young.name, "0.steps"]
