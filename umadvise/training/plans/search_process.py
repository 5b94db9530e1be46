"""The process that searches for one plan: `python -m umadvise.training.plans.search_process PARENT`.

It reads a search (`search_task.py`) from standard input and writes the bytes of a plan file to standard output. It ends
when its parent does, whatever became of that, and imports no torch.
"""

import os
import sys
import threading
import time

from umadvise.errors import UmadviseError
from umadvise.training.plans import search_task

_LOOK_SECONDS = 0.5


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(1)


def main(parent: int) -> int:
    """Searches.

    Args:
        parent: process id of the training process.

    Returns:
        The exit code: 0 if there is a plan.
    """
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    try:
        plan = search_task.made(sys.stdin.buffer.read())
    except (UmadviseError, ValueError, MemoryError) as error:
        sys.stderr.write(str(error) or type(error).__name__)
        return 1
    sys.stdout.buffer.write(plan)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
