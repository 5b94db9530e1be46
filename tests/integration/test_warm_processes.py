"""What is forked from a process that has torch begins and ends as a process of its own, or is one."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import ask_warm
import pytest
import warm_processes

Run = Callable[..., "subprocess.CompletedProcess[str]"]
TOLD = """
import os, sys
print(sys.argv, sys.path, os.getcwd(), sorted(os.environ), os.environ["BETWEEN"], sorted(vars()))
print(sys.stdin.read(), file=sys.stderr)
"""
ENDINGS = ["pass", "import sys; sys.exit(3)", "import sys; sys.exit('no')", "import os; os._exit(4)", "1 / 0", "1 +"]
ENDINGS += ["import os; os.abort()", "import os; os.kill(os.getpid(), 9)"]
ENDINGS += ["import atexit; atexit.register(print, 'at the end'); import nothing_of_this_name"]


def outcome(interpreter: str, *words: str, **options: object) -> tuple[int, str, str]:
    ended = subprocess.run([interpreter, *words], capture_output=True, text=True, timeout=60, check=False, **options)
    return ended.returncode, ended.stdout, ended.stderr.replace(interpreter, "python")


def both(*words: str, **options: object) -> tuple[tuple[int, str, str], tuple[int, str, str]]:
    return outcome(warm_processes.python(), *words, **options), outcome(sys.executable, *words, **options)


def has_torch(**settings: str) -> bool:
    _, told, _ = outcome(
        warm_processes.python(), "-c", "import sys; print('torch' in sys.modules)", env={**os.environ, **settings}
    )
    return told == "True\n"


@pytest.mark.parametrize("words", [["-c", TOLD, "a", "-b"], ["told.py", "a"], ["-m", "told", "a"], ["-"], ["-c", "?"]])
def test_it_begins_as_any(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "told.py").write_text(TOLD)
    environment = {**os.environ, "PYTHONPATH": "/nowhere:/neither", "BETWEEN": "ü"}
    environment.pop("HOME", None)
    forked, real = both(*words, cwd=tmp_path, env=environment, input="print(__name__, sorted(vars()))")
    assert forked == real


@pytest.mark.parametrize("script", ENDINGS)
def test_it_ends_as_any(script: str, tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text(f"def end():\n    {script.replace('; ', chr(10) + '    ')}\nend()\n")
    forked, real = both("ends.py", cwd=tmp_path)
    assert forked == real


def test_it_is_interrupted_as_any() -> None:
    forked, real = both("-c", "raise KeyboardInterrupt")
    assert (forked[0], real[0]) == (-signal.SIGINT, -signal.SIGINT)


@pytest.mark.parametrize("name", ["PYTHONHASHSEED", "LD_PRELOAD", "OMP_WAIT_POLICY", "TORCH_LOGS", "MKL_CBWR"])
def test_other_circumstances_start_a_real_one(name: str) -> None:
    begun_with = warm_processes.folder() / "circumstances"
    are_forked = begun_with.exists() and ask_warm.circumstances(os.environ) == begun_with.read_text()
    assert has_torch(OMP_NUM_THREADS="1", OTHER="1") == are_forked
    assert not has_torch(**{name: ""})


def test_whoever_is_killed_takes_it_along() -> None:
    script = "import os, sys, time; print(os.getpid(), flush=True); time.sleep(600)"
    with subprocess.Popen([warm_processes.python(), "-c", script], stdout=subprocess.PIPE, text=True) as asking:
        assert asking.stdout is not None
        number = int(asking.stdout.readline())
        asking.kill()
        assert asking.wait() == -signal.SIGKILL
        assert asking.stdout.read() == ""  # its end is closed as the other process ends
    with pytest.raises(ProcessLookupError):
        for _ in range(1000):
            os.kill(number, 0)
            time.sleep(0.01)
