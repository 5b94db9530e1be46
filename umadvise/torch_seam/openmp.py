"""How torch's OpenMP threads wait, where they share their processors with others.

Between two parallel loops GNU's OpenMP, which torch's wheels bring, has its threads spin for milliseconds before they
sleep: best where nobody else wants the processors. Where a copy's thread or another process does, it takes turns with
threads that only wait, and those that compute wait for one of theirs that has none: a step takes many times as long.
The library spins a three-hundredth of that where it knows that there are more threads than processors (libgomp, env.c,
GOMP_SPINCOUNT), but it counts its own alone, and reads the environment when it is loaded, which is before us. A team
that one more thread holds, asleep, makes it know.
"""

import threading

import torch

_PARALLEL_ELEMENTS = 1 << 20
"""Enough for torch to share the work on them (at::internal::GRAIN_SIZE is 32,768)."""


class SleepingTeam:
    """A thread that sleeps with an OpenMP team of its own until `end`; nothing where torch uses one thread."""

    def __init__(self) -> None:
        """Returns when OpenMP knows of it."""
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        if torch.get_num_threads() == 1:  # it waits for nobody
            return
        ready = threading.Event()
        self._thread = threading.Thread(target=self._sleep, args=(ready,), name="umadvise-openmp", daemon=True)
        self._thread.start()
        ready.wait()

    def _sleep(self, ready: threading.Event) -> None:
        try:
            torch.ones(_PARALLEL_ELEMENTS).add_(1)
        finally:
            ready.set()
        self._ending.wait()

    def end(self) -> None:
        """OpenMP's threads wait again as they did before."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
        self._thread = None
