"""Many tasks on all cores: results as they come, and nothing left behind when somebody stops."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


def run(
    work: Callable[[Task], Result],
    tasks: Iterable[Task],
    *,
    workers: int | None = None,
    follow: Callable[[Task, Result], Iterable[Task]] = lambda _task, _result: (),
) -> Generator[tuple[Task, Result | None], None, None]:
    """Gives each task with its result; None where its process died. Closing the generator ends what still runs.

    Args:
        work: function of one task; it is sent to each process once, so it, the tasks and the results can be pickled.
        tasks: the first tasks, in any number.
        workers: number of processes; None is one a core. With one, or for one task, all is done in this process.
        follow: function of a task and its result that gives further tasks.
    """
    waiting = deque(tasks)
    workers = min(len(os.sched_getaffinity(0)) if workers is None else workers, len(waiting))
    if workers > 1:
        yield from _in_processes(work, waiting, workers, follow)
        return
    while waiting:
        task = waiting.popleft()
        result = work(task)
        waiting.extend(follow(task, result))
        yield task, result


def _in_processes(
    work: Callable[[Task], Result],
    tasks: Iterable[Task],
    workers: int,
    follow: Callable[[Task, Result], Iterable[Task]],
) -> Generator[tuple[Task, Result | None], None, None]:
    others = set(multiprocessing.active_children())
    # Processes that start anew share no lock and no native handle with this one.
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=spawn, initializer=_begin, initargs=(work,))
    running: dict[Future[Any], Task] = {}

    def submit(more: Iterable[Task]) -> None:
        with _interrupts_wait():
            running.update({pool.submit(_do, task): task for task in more})

    complete = False
    try:
        submit(tasks)
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                task, result = running.pop(future), None
                with contextlib.suppress(BrokenProcessPool):
                    result = future.result()
                    submit(follow(task, result))
                yield task, result
        complete = True
    finally:
        pool.shutdown(wait=complete, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()  # at work on what nobody waits for any more


_work: Callable[[Any], Any] | None = None
"""What a worker process does with its tasks."""


def _begin(work: Callable[[Any], Any]) -> None:
    global _work
    _work = work


def _do(task: Any) -> Any:
    assert _work is not None
    return _work(task)


@contextlib.contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Ctrl-C comes when this ends: one in the midst of starting a process would leave that behind.

    It reaches the whole group, but is for this process, which ends the others: they inherit the mask. The mask alone
    does not keep it from here, since other threads take it.
    """
    if threading.current_thread() is not threading.main_thread():  # which gets none
        yield
        return
    came: list[int] = []
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    handler = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if came and callable(handler):
        handler(signal.SIGINT, None)
