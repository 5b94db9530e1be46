"""Threads beside a session's: whatever they run on its tensors holds these where they are.

A session guards the ops of the thread that opened it. A storage that moves while another thread's op uses it would give
that op somebody else's bytes: savers of checkpoints and evaluators work like that. So every thread that Python starts
while a device is in use, and whatever a pool of threads runs then, holds what its ops are given. Its memory, its names
and its steps are its own, until the loop is found to be there (`Runtime.follow_thread`).
"""

import _thread
import threading
from collections.abc import Callable
from concurrent.futures import thread as pool
from functools import partial
from typing import Any

from umadvise import _native
from umadvise.torch_seam.replacements import Replacements


def install(replaced: Replacements) -> None:
    """Lets threads and pools hold what they use.

    Args:
        replaced: functions that were replaced and that `undo` puts back; those of threads and pools are added.
    """
    # A pool's threads may be older than the session; both functions run in the thread that they are about.
    for owner, name in ((threading.Thread, "_bootstrap_inner"), (pool._WorkItem, "run")):
        replaced.around(owner, name, _beside)
    for name in ("start_new_thread", "start_new"):
        replaced.around(_thread, name, _start)


def _beside(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    _native.work_beside()
    return original(*arguments, **named)


def _start(original: Callable[..., int], function: Callable[..., Any], *arguments: Any) -> int:
    return original(partial(_beside, function), *arguments)
