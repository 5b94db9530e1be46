"""A script for CUDA by `umadvise run`, unchanged: the numbers of plain torch, and its own end."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import warm_processes

HERE = Path(__file__).parent
SHORT = bool(os.environ.get("UMADVISE_SHORT"))
POLICIES = ("auto", "swap") if SHORT else ("auto", "swap", "swap+recompute", "window", "advise", "resident", "swap:lru")


@pytest.fixture(scope="module")
def plain(run: Callable[..., Any]) -> Any:
    return run("script.py")


def ran(folder: Path, policy: str, *words: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    """`umadvise run`, with a budget of half of what the script needs, and the script's own words."""
    command = [warm_processes.python(), "-m", "umadvise", "run", "--device", "cuda", "--policy", policy]
    command += ["--budget", "20MiB"] if policy != "resident" else []
    command += ["--profile", str(folder / "profile.json"), str(HERE / "script.py"), *words]
    environment = {**os.environ, **settings}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.parametrize("seed", ["none"] if SHORT else ["none", "1"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_script_gives_what_it_gives_without(plain: Any, tmp_path: Path, policy: str, seed: str) -> None:
    later = {} if seed == "none" else {"STAND_IN_ASYNC": "1", "STAND_IN_DELAY_US": "200", "STAND_IN_SEED": seed}
    ended = ran(tmp_path, policy, **later)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[0]) == plain
    assert len(json.loads((tmp_path / "profile.json").read_text())["steps"]) >= 6


@pytest.mark.parametrize(("word", "code", "said"), [("raises", 1, 'KeyError: "the script\'s own"'), ("exits", 5, "")])
def test_a_script_ends_in_its_own_way(tmp_path: Path, word: str, code: int, said: str) -> None:
    ended = ran(tmp_path, "swap", word, STAND_IN_ASYNC="1", STAND_IN_DELAY_US="300")
    assert ended.returncode == code, ended.stderr
    assert said in ended.stderr
