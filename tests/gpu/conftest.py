"""Programs in processes of their own, as torch takes an allocator once in a process; and the choice of `-m gpu`."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import warm_processes

CHECKOUT = Path(__file__).parents[2]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What needs a GPU runs when it is asked for with `-m gpu`, and is not even skipped otherwise."""
    if "gpu" in config.option.markexpr:
        return
    on_gpu = [item for item in items if item.get_closest_marker("gpu") is not None]
    config.hook.pytest_deselected(items=on_gpu)
    items[:] = [item for item in items if item not in on_gpu]


@pytest.fixture(scope="session")
def run() -> Callable[..., Any]:
    """run(file, name, device, ...): what that program of a file prints as JSON."""

    def run(file: str, *words: str) -> Any:
        environment = {
            **os.environ,
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            "PYTHONPATH": os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")]),
        }
        command = [warm_processes.python(), str(Path(__file__).with_name(file)), *words]
        finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert finished.returncode == 0, finished.stderr[-4000:]
        return json.loads(finished.stdout.splitlines()[-1])

    return run
