"""Asks the process of warm_processes.py for a child, waits for its end, and ends in the same way.

ask_warm.py INTERPRETER FOLDER WORDS... becomes the interpreter itself where that child would not begin as one.
"""

import json
import os
import re
import resource
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

# What Python, the loader and torch's libraries read once; but for what a child reads again, or ranks get from torchrun,
# and what Inductor sets when it compiles something in the tests' own process.
_READ_EARLY = re.compile(
    "(?!PYTHON(PATH|_EXEC)$|OMP_NUM_THREADS$|TORCH(ELASTIC_|_NCCL_|INDUCTOR_CACHE_DIR))"
    "(PYTHON|LD_|LC_|LANG|GLIBC_|MALLOC_|OMP_|GOMP_|KMP_|MKL_|OPENBLAS_|ONEDNN_|DNNL_|ATEN_|PYTORCH|TORCH)"
)
_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


def circumstances(environment: Mapping[str, str]) -> str:
    """What a process begins with and a child of another one does not take over."""
    early = {name: value for name, value in environment.items() if _READ_EARLY.match(name)}
    limits = [resource.getrlimit(each) for each in _LIMITS]
    ignored = [number for number in range(1, signal.NSIG) if signal.getsignal(number) == signal.SIG_IGN]
    blocked, cores = signal.pthread_sigmask(signal.SIG_BLOCK, []), os.sched_getaffinity(0)
    return json.dumps([early, limits, ignored, sorted(blocked), sorted(cores)], sort_keys=True)


def main() -> int:
    """The child's exit code; a signal that ended it ends this process too."""
    interpreter, folder, *words = sys.argv[1:]
    is_known = words and (words[0] in ("-c", "-m", "-", "-u") or Path(words[0]).is_file())
    if not is_known or circumstances(os.environ) != Path(folder, "circumstances").read_text():
        os.execv(interpreter, [interpreter, *words])
    request = {"words": words, "cwd": os.getcwd(), "env": dict(os.environ)}  # noqa: PTH109
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(f"{folder}/socket")
        socket.send_fds(asking, [b" "], [0, 1, 2])
        asking.sendall(json.dumps(request).encode() + b"\n")
        code = int(asking.recv(64))
    if code < 0:
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)  # Python has taken SIGINT
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main())
