"""Asks the process of warm_processes.py for a child, waits for its end, and ends in the same way.

ask_warm.py SOCKET WORDS...
"""

import array
import json
import os
import signal
import socket
import sys


def main() -> int:
    """The child's exit code; a signal that ended it ends this process too."""
    address, *words = sys.argv[1:]
    request = json.dumps({"words": words, "cwd": os.getcwd(), "env": dict(os.environ)}) + "\n"  # noqa: PTH109
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(address)
        streams = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))]
        sent = asking.sendmsg([request.encode()], streams)
        asking.sendall(request.encode()[sent:])
        code = int(asking.recv(64))
    if code < 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the one that Python takes
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main())
