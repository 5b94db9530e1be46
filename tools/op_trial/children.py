"""Processes that run subjects: one that dies is replaced, and what it was at is known."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from harness import asked

MOST_SECONDS = 900
"""A subject that takes longer is given up."""
_TOOLS = Path(__file__).resolve().parents[1]


class Child:
    """One process."""

    def __init__(self, most_samples: int) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the process
        paths = [str(_TOOLS), str(_TOOLS.parent), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",  # what comes from there is not filled
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "op_trial.child", str(most_samples)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env=environment,
        )

    def answer(self, subject: str) -> dict[str, Any]:
        """What it found; with "died" where it did."""
        late = threading.Timer(MOST_SECONDS, self._process.kill)
        late.start()
        line = asked(self._process, subject)
        late.cancel()
        if line:
            found: dict[str, Any] = json.loads(line)
            return found
        status = self._process.wait()
        how = signal.Signals(-status).name if status < 0 else f"exit code {status}"
        return {"subject": subject, "died": f"{how}: {self._last_words()}"}

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked again."""
        return self._process.poll() is None

    def end(self) -> None:
        """Lets it end by itself."""
        self._process.communicate()

    def _last_words(self) -> str:
        self._said.seek(0)
        return self._said.read()[-600:].decode(errors="replace")


def answers(subjects: list[str], most_samples: int, processes: int) -> Iterator[dict[str, Any]]:
    """What is found for each subject, as it comes."""
    children: dict[int, Child] = {}

    def answer(subject: str) -> dict[str, Any]:
        child = children.get(threading.get_ident())
        if child is None or not child.is_alive:
            child = children[threading.get_ident()] = Child(most_samples)
        return child.answer(subject)

    pool = ThreadPoolExecutor(processes)
    try:
        for answered in as_completed([pool.submit(answer, subject) for subject in subjects]):
            yield answered.result()
    finally:
        pool.shutdown(cancel_futures=True)
        for child in children.values():
            child.end()
