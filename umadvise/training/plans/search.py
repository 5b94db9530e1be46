"""Plans that are searched for beside the training: in a process of its own, one after the other.

The process is spawned (`search_process.py`), so that it shares nothing with the training and imports no torch. It has
one thread, the lowest priority and a bound on its memory, and its parent never waits for it, but for a device in
virtual time: there results come at an edge of a step that does not depend on how fast the search was.
"""

import contextlib
import logging
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Generic, TypeVar

from umadvise.errors import UmadviseError

log = logging.getLogger("umadvise")

SWITCH = "UMADVISE_PLAN_SEARCH"
"""Environment variable: "off" searches for no plans; steps keep those that were made at once."""
MOST_WAITING = 8
"""Searches that wait for their turn; what is asked for beyond them pushes out the one that was asked for least."""
MOST_MEMORY_BYTES = 2 << 30
MOST_CPU_SECONDS = 900
EDGES = 2
"""Edges of steps after which the result of a search is due in virtual time."""
_LEAST_PRIORITY = 19
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

About = TypeVar("About")


@dataclass
class _Wanted(Generic[About]):
    """A search that waits for its turn, or runs."""

    key: str
    task: Callable[[], bytes]
    about: About
    asked: int = 1


@dataclass
class _Running(Generic[About]):
    """The search that runs, and the files that its process reads and writes; they have no names."""

    wanted: _Wanted[About]
    process: subprocess.Popen[bytes]
    edge: int
    result: IO[bytes]
    words: IO[bytes]


@dataclass
class PlanSearch(Generic[About]):
    """Searches for plans in a process of its own, one at a time.

    Attributes:
        waits: whether results come at a fixed edge, for which the caller then waits, as in virtual time.
    """

    waits: bool = False
    _waiting: list[_Wanted[About]] = field(default_factory=list)
    _running: _Running[About] | None = None
    _edge: int = 0
    _able: bool = field(default_factory=lambda: os.environ.get(SWITCH, "").lower() != "off")
    _process_id: int = field(default_factory=os.getpid)

    def ask(self, key: str, task: Callable[[], bytes], about: About) -> None:
        """Has a plan searched for, in its turn: what was asked for most often comes first, then what was asked last.

        Args:
            key: name of the plan; what is asked for again while it waits or runs is searched for once.
            task: function that makes the search as `search_task.encode` does; called when its turn has come.
            about: whatever the caller wants back with the result.
        """
        if not self._able or self._process_id != os.getpid():
            return
        if self._running is not None and self._running.wanted.key == key:
            return
        again = next((each for each in self._waiting if each.key == key), None)
        if again is not None:
            self._waiting.remove(again)
            again.asked += 1
        wanted = again or _Wanted(key, task, about)
        place = sum(each.asked <= wanted.asked for each in self._waiting)
        self._waiting.insert(place, wanted)  # the last one is next
        del self._waiting[: max(len(self._waiting) - MOST_WAITING, 0)]
        self._go_on()

    def ended(self) -> list[tuple[About, bytes]]:
        """The plans that were found since the last edge, as bytes of plan files; to be called at each step's edge."""
        self._edge += 1
        running = self._running
        if running is None or self._process_id != os.getpid():
            return []
        if self.waits:
            if self._edge < running.edge + EDGES:
                return []
            running.process.wait()
        elif running.process.poll() is None:
            return []
        self._running = None
        plan = self._result(running)
        self._go_on()
        return [] if plan is None else [(running.wanted.about, plan)]

    def close(self) -> None:
        """Ends what runs, and forgets what waits."""
        self._waiting.clear()
        running, self._running = self._running, None
        if running is None or self._process_id != os.getpid():
            return
        running.process.kill()
        running.process.wait()
        running.result.close()
        running.words.close()

    def _go_on(self) -> None:
        while self._able and self._running is None and self._waiting:
            wanted = self._waiting.pop()
            try:
                self._running = _started(wanted, self._edge)
            except OSError as error:
                log.info("no process can be started that searches for better plans: %s", error)
                self._able = False
            except (UmadviseError, ValueError) as error:  # a step that cannot be written down: it keeps its plan
                log.warning("no better plan is searched for: %s", error)

    def _result(self, running: _Running[About]) -> bytes | None:
        code = running.process.returncode
        with running.result, running.words:
            if code == 0:
                running.result.seek(0)
                return running.result.read()
            running.words.seek(0)
            words = running.words.read(4096).decode(errors="replace").strip().rpartition("\n")[2]
        reason = f"signal {-code} ended its process" if code < 0 else words or f"its process ended with {code}"
        log.info("the search for a better plan found none, and the plan that was made at once stays: %s", reason)
        return None


def _started(wanted: _Wanted[About], edge: int) -> _Running[About]:
    """Starts the process of a search.

    Raises:
        OSError: no process can be started, or nothing can be written for it to read.
    """
    with contextlib.ExitStack() as stack:
        task = stack.enter_context(tempfile.TemporaryFile())  # its process has it open
        task.write(wanted.task())
        task.seek(0)
        result, words = stack.enter_context(tempfile.TemporaryFile()), stack.enter_context(tempfile.TemporaryFile())
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "umadvise.training.plans.search_process", str(os.getpid())],
            stdin=task,
            stdout=result,
            stderr=words,
            env=os.environ | _ONE_THREAD | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # Ctrl-C is the training's
        )
        with contextlib.suppress(OSError):  # it has ended already
            os.setpriority(os.PRIO_PROCESS, process.pid, _LEAST_PRIORITY)
            resource.prlimit(process.pid, resource.RLIMIT_DATA, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
            resource.prlimit(process.pid, resource.RLIMIT_CPU, (MOST_CPU_SECONDS, MOST_CPU_SECONDS))
        stack.pop_all()
        task.close()
    return _Running(wanted, process, edge, result, words)
