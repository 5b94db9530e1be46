"""Programs in processes of their own, on torch's CUDA build and stand-ins for a GPU: see on_stand_ins.py."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import warm_processes

HERE = Path(__file__).parent
# `make test-torch-cuda` runs these, through on_stand_ins.py; elsewhere torch has no CUDA.
collect_ignore_glob = [] if "STAND_IN_MIB" in os.environ else ["*.py"]


@pytest.fixture(scope="session")
def run() -> Callable[..., Any]:
    """run(file, name, word, ..., SETTING=value, ...): what a program of a file prints last, as JSON.

    Settings are environment variables, those of on_stand_ins.py and others.
    """

    def run(file: str, *words: str, **settings: object) -> Any:
        finished = started(file, *words, **settings)
        assert finished.returncode == 0, finished.stderr[-4000:]
        return json.loads(finished.stdout.splitlines()[-1])

    return run


def started(file: str, *words: str, **settings: object) -> subprocess.CompletedProcess[str]:
    """A program of this folder, ended, whatever it came to."""
    environment = {**os.environ, **{name: str(value) for name, value in settings.items()}}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parent / "integration"), os.environ.get("PYTHONPATH", "")])
    command = [warm_processes.python(), str(HERE / file), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
