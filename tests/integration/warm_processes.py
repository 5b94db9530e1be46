"""Python processes that have torch already: each is forked from one that has imported it and done nothing else.

Importing torch, and torch._dynamo when the first optimizer is made, takes three seconds of a core, and the tests start
hundreds of programs. `folder()` has a `python`, a `umadvise` and a `torchrun` that take words, folder, environment and
streams as the real ones do, and end as those end: such a process has nothing of umadvise and no thread, and what reads
the environment before torch is imported has read that of the tests. With UMADVISE_FULL=1 they are the real ones.
"""

import array
import atexit
import functools
import gc
import json
import os
import runpy
import select
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

_ASK = Path(__file__).with_name("ask_warm.py")
_COMMANDS = {"python": "", "umadvise": "-m umadvise", "torchrun": "-m torch.distributed.run"}


@functools.cache
def folder() -> Path:
    """A folder for PATH; the process that others are forked from begins here, and ends with this one."""
    kept = ExitStack()
    atexit.register(kept.close)
    return kept.enter_context(warm(Path(sys.executable)))


def python() -> str:
    """That folder's `python`: in place of sys.executable."""
    return str(folder() / "python")


@contextmanager
def warm(interpreter: Path, imports: str = "", environment: Mapping[str, str] | None = None) -> Iterator[Path]:
    """Such a folder of any interpreter that has torch.

    Args:
        interpreter: which one.
        imports: statements for what is to be there beside torch; those of what it has not are passed over.
        environment: of the process that others are forked from; this one's by default.
    """
    if os.environ.get("UMADVISE_FULL"):
        yield interpreter.parent
        return
    with tempfile.TemporaryDirectory(prefix="umadvise-warm-") as made:
        address = Path(made, "socket")
        for name, words in _COMMANDS.items():
            command = Path(made, name)
            command.write_text(f'#!/bin/sh\nexec {interpreter} -SEs {_ASK} {address} {words} "$@"\n')
            command.chmod(0o700)
        with _server(address, interpreter, imports, environment) as server:
            yield Path(made)
            server.communicate()


def _server(
    address: Path, interpreter: Path, imports: str, environment: Mapping[str, str] | None
) -> "subprocess.Popen[bytes]":
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(address))
        listening.listen(64)
        descriptor = listening.fileno()
        command = [interpreter, __file__, str(descriptor), imports]
        return subprocess.Popen(command, pass_fds=[descriptor], stdin=subprocess.PIPE, env=environment)


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
        while _reaped():
            pass


def _reaped() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] > 0
    except ChildProcessError:
        return False


def _received(asking: socket.socket) -> dict[str, Any]:
    """The request, a line of JSON, and the three streams that came with its first bytes."""
    descriptors = array.array("i")
    text, ancillary, *_ = asking.recvmsg(1 << 16, socket.CMSG_SPACE(3 * descriptors.itemsize))
    descriptors.frombytes(ancillary[0][2])
    while not text.endswith(b"\n"):
        text += asking.recv(1 << 16)
    return {**json.loads(text), "streams": list(descriptors)}


def _wait(child: int, asking: socket.socket) -> None:
    """Answers with the child's exit code. Whoever asked and is gone, as one that was killed, takes it along."""
    ended = os.pidfd_open(child)
    ready, _, _ = select.select([ended, asking], [], [])
    if ended not in ready:
        os.kill(child, 9)
    _, status = os.waitpid(child, 0)
    if ended in ready:
        asking.sendall(f"{os.waitstatus_to_exitcode(status)}".encode())
    os._exit(0)


# ---- what becomes of a child -----------------------------------------------------------------------------------------


def _become(request: dict[str, Any], path: list[str]) -> None:
    """Takes the streams, folder, environment and words of a request."""
    for number, descriptor in enumerate(request["streams"]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    if request["words"][0] == "-u":  # from torchrun
        del request["words"][0]
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    first, *rest = request["words"]
    sys.argv = [first, *(rest[1:] if first in ("-c", "-m") else rest)]
    sys.path[:] = [*_listed(os.environ.get("PYTHONPATH")), *path]
    if "OMP_NUM_THREADS" in os.environ:  # OpenMP has read it when torch was imported
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def _run(words: list[str]) -> None:
    """As python does: the module __main__ stays until the process ends."""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    first, *rest = words
    if first == "-m":
        sys.path.insert(0, str(Path.cwd()))
        runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]  # what `python -m` calls
        return
    if first in ("-c", "-"):
        sys.path.insert(0, "")
        text, name = (rest[0], "<string>") if first == "-c" else (sys.stdin.read(), "<stdin>")
    else:
        sys.path.insert(0, str(Path(first).resolve().parent))
        text, name = Path(first).read_text(), first
        main.__file__ = first
    exec(compile(text, name, "exec"), main.__dict__)


def _listed(path: str | None) -> list[str]:
    return path.split(os.pathsep) if path else []


if __name__ == "__main__":
    del sys.path[0]  # this folder is not a child's
    import torch
    import torch._dynamo

    for _statement in sys.argv[2].splitlines():
        with suppress(ModuleNotFoundError):
            exec(_statement, {})
    _path = [place for place in sys.path if place not in _listed(os.environ.get("PYTHONPATH"))]
    gc.collect()
    gc.freeze()
    _request = _serve(socket.socket(fileno=int(sys.argv[1])))
    _become(_request, _path)
    _run(_request["words"])
