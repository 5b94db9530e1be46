"""Python processes that have torch already: each is forked from one that has imported it and done nothing else.

Importing torch, and torch._dynamo when the first optimizer is made, takes three seconds of a core, and the tests start
hundreds of programs. `folder()` has a `python`, a `umadvise` and a `torchrun` that take words, folder, environment and
streams as the real ones do, and end as those end. Such a process has nothing of umadvise. Where it is asked for with
other settings of Python, the loader or torch's libraries than the tests have, or with limits, it is a real one, as all
are with UMADVISE_FULL=1 and under coverage. Those of one folder have hash seed and addresses in common: what compares
processes, or sends them signals, starts real ones.
"""

import atexit
import functools
import gc
import io
import json
import os
import runpy
import select
import socket
import subprocess
import sys
import tempfile
import types
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import ask_warm

_COMMANDS = {"python": "", "umadvise": "-m umadvise", "torchrun": "-m torch.distributed.run"}
_REAL = ("UMADVISE_FULL", "COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG")


@functools.cache
def folder(interpreter: str = sys.executable, **settings: str) -> Path:
    """A folder for PATH; the process that others are forked from begins here, and ends with this one.

    Args:
        interpreter: one that has torch.
        settings: what its processes are going to have in their environment beside what this one has.
    """
    if any(map(os.environ.get, _REAL)):
        return Path(interpreter).parent
    kept = ExitStack()
    atexit.register(kept.close)
    made = kept.enter_context(tempfile.TemporaryDirectory(prefix="umadvise-warm-"))
    for name, words in _COMMANDS.items():
        command = Path(made, name)
        command.write_text(f'#!/bin/sh\nexec {interpreter} -IS {ask_warm.__file__} {interpreter} {made} {words} "$@"\n')
        command.chmod(0o700)
    environment = {**os.environ, **settings}
    Path(made, "circumstances").write_text(ask_warm.circumstances(environment))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{made}/socket")
        listening.listen(64)
        command = [interpreter, __file__, str(listening.fileno())]
        server = kept.enter_context(
            subprocess.Popen(command, pass_fds=[listening.fileno()], stdin=subprocess.PIPE, env=environment)
        )
    kept.callback(server.communicate)
    return Path(made)


def python(interpreter: str = sys.executable, **settings: str) -> str:
    """That folder's `python`: in place of sys.executable."""
    return str(folder(interpreter, **settings) / "python")


# ---- the process that they are forked from ---------------------------------------------------------------------------


def _serve(listening: socket.socket) -> dict[str, Any]:
    """Returns in each child, with what was asked for; the process itself ends when its standard input does."""
    while True:
        ready, _, _ = select.select([listening, sys.stdin], [], [])
        if sys.stdin in ready:
            sys.exit()
        asking, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            request = _received(asking)
            child = os.fork()
            if child == 0:
                asking.close()
                return request
            _wait(child, asking)
        asking.close()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass


def _received(asking: socket.socket) -> dict[str, Any]:
    """The request, a line of JSON, and the three streams that come before it."""
    _, streams, *_ = socket.recv_fds(asking, 1, 3)
    line = asking.makefile().readline()
    if not line.endswith("\n"):  # whoever asked is gone
        os._exit(0)
    return {**json.loads(line), "streams": streams}


def _wait(child: int, asking: socket.socket) -> None:
    """Answers with the child's exit code. Whoever asked and is gone, as one that was killed, takes it along."""
    ended = os.pidfd_open(child)
    ready, _, _ = select.select([ended, asking], [], [])
    if ended not in ready:
        os.kill(child, 9)
    _, status = os.waitpid(child, 0)
    with suppress(OSError):
        asking.sendall(f"{os.waitstatus_to_exitcode(status)}".encode())
    os._exit(0)


# ---- what becomes of a child -----------------------------------------------------------------------------------------


def _become(request: dict[str, Any], path: list[str]) -> list[str]:
    """Takes the streams, folder and environment of a request; returns its words."""
    for number, descriptor in enumerate(request["streams"]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["cwd"])
    threads = os.environ.get("OMP_NUM_THREADS")
    os.environ.clear()
    os.environ.update(request["env"])
    sys.path[:] = [*_listed(os.environ.get("PYTHONPATH")), *path]
    if os.environ.get("OMP_NUM_THREADS") != threads:  # OpenMP has read it when torch was imported
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", len(os.sched_getaffinity(0)))))
    words: list[str] = request["words"]
    if words[0] == "-u":  # from torchrun
        assert isinstance(sys.stdout, io.TextIOWrapper)
        sys.stdout.reconfigure(write_through=True)
        return words[1:]
    return words


def _run(words: list[str]) -> None:
    """As python does: the module __main__ stays until the process ends."""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__annotations__ = {}
    first, *rest = words
    sys.argv = [first, *(rest[1:] if first in ("-c", "-m") else rest)]
    if first == "-m":
        sys.path.insert(0, str(Path.cwd()))
        runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]  # what `python -m` calls
        return
    if first in ("-c", "-"):
        sys.path.insert(0, "")
        text, name = (rest[0].encode(), "<string>") if first == "-c" else (sys.stdin.buffer.read(), "<stdin>")
    else:
        sys.path.insert(0, str(Path(first).resolve().parent))
        text, name = Path(first).read_bytes(), str(Path(first).absolute())
    if first != "-c":
        main.__file__, main.__cached__ = name, None
    exec(compile(text, name, "exec"), main.__dict__)


def _listed(path: str | None) -> list[str]:
    return path.split(os.pathsep) if path else []


if __name__ == "__main__":
    import budget_watch

    del sys.path[0]  # this folder is not a child's
    import torch
    import torch._dynamo

    _path = [place for place in sys.path if place not in _listed(os.environ.get("PYTHONPATH"))]
    gc.collect()
    gc.freeze()
    _words = _become(_serve(socket.socket(fileno=int(sys.argv[1]))), _path)
    if "UMADVISE_WATCH_BUDGETS" in os.environ:
        budget_watch.watch_when_imported()
    try:
        _run(_words)
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next  # as if these had not been there
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(1)
