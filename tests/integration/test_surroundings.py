"""Surroundings that lack something: a training goes on, or is refused in words that say what to do."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from umadvise._hooks.loader import compiled_library

Python = Callable[..., "subprocess.CompletedProcess[str]"]

TRAIN = """
import os, resource, sys, torch, umadvise, umadvise.errors

def limit(which, most):
    resource.setrlimit(which, (most, most))

def status(field):
    return int(open("/proc/self/status").read().split(field + ":")[1].split()[0]) << 10

def nobody(_):
    raise KeyError("no such user")

{before}
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
optimizer = torch.optim.Adam(model.parameters())
try:
    with umadvise.session(model, optimizer, device="emulated", budget="16MiB", policy="swap") as um:
        for _ in range(4):
            with um.step():
                model(um.to_device(torch.ones(8, 64))).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
except umadvise.errors.UmadviseError as error:
    sys.exit(str(error))
print("trained")
"""

LACKING = {
    "a cache that is a file": "os.environ['XDG_CACHE_HOME'] = __import__('tempfile').mkstemp()[1]",
    "a cache with too long a name": "os.environ['XDG_CACHE_HOME'] = '/' + 'x' * 300",
    "a cache that leads to itself": "os.path.lexists('loop') or os.symlink('loop', 'loop'); "
    "os.environ['XDG_CACHE_HOME'] = os.path.abspath('loop')",
    "a user without a name or home": "import pwd; pwd.getpwuid = nobody; [os.environ.pop(n, 0) for n in"
    " ('HOME', 'XDG_CACHE_HOME', 'USER', 'LOGNAME')]",
    "little data": "torch.set_num_threads(1); limit(resource.RLIMIT_DATA, status('VmData') + (192 << 20))",
    "a name that is no text": "add = torch.nn.Module.add_module; torch.nn.Sequential.add_module = "
    "lambda self, name, module: add(self, 'layer' + chr(0xdc80) + name, module)",
}


@pytest.mark.parametrize("lacking", LACKING)
def test_a_training_goes_on(lacking: str, python: Python, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMADVISE_HOOKS_LIBRARY", str(compiled_library()))
    monkeypatch.setenv("UMADVISE_PLAN_SEARCH", "off")
    monkeypatch.setenv("UMADVISE_PLAN_CACHE", "on")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # the second one looks for what the first has kept
        finished = python(TRAIN.format(before=LACKING[lacking]), timeout=600)
        assert (finished.returncode, finished.stdout) == (0, "trained\n"), finished.stderr
        assert "Traceback" not in finished.stderr
    if "cache" in lacking or "home" in lacking:
        assert "UMADVISE_PLAN_CACHE=off" in finished.stderr  # the warning says how to be without one


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ("limit(resource.RLIMIT_AS, status('VmSize') + (1 << 30))", "ulimit -v unlimited"),
        ("limit(resource.RLIMIT_FSIZE, 1 << 20)", "ulimit -f unlimited"),
    ],
)
def test_a_limit_that_leaves_no_device_is_named(before: str, words: str, python: Python) -> None:
    finished = python(TRAIN.format(before=before), timeout=600)
    assert finished.returncode == 1
    assert words in finished.stderr
    assert "Traceback" not in finished.stderr
