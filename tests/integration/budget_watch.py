"""Checks that loops keep their budget, in a test's own process and, with UMADVISE_WATCH_BUDGETS, in those it starts.

A loop's device may hold at most what the loop may use, at any time. The resident peak and that of chunks are read
before each step begins and when the loop ends, as a step's begin resets the peaks. An op of unified memory whose
working set alone is larger than that is excused, for its own bytes: no policy can run it otherwise.
"""

import atexit
import os
import sys
from collections.abc import Callable, Iterable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_MODULE = "umadvise.training.loop.loop"
FAILED = 70
"""Exit code of a process in which a loop has exceeded its budget."""


class BudgetWatch:
    """Watches the loops of this process from `begin` to `end`.

    Attributes:
        breaches: sentences on what exceeded a budget, in the order in which it was found.
    """

    def __init__(self) -> None:
        self.breaches: list[str] = []
        self._loops: list[Any] = []
        self._oversized_bytes = 0
        self._originals: list[tuple[Any, str, Callable[..., Any]]] = []

    def begin(self) -> None:
        """Watches loops that open from now on."""
        from umadvise import _native
        from umadvise.reports.counters.builder import ProfileBuilder
        from umadvise.training.loop.loop import Loop

        self._around(Loop, "__init__", self._opened)
        self._around(Loop, "close", self._closes)
        self._around(_native.Device, "reset_memory_peaks", self._resets)
        self._around(ProfileBuilder, "add_events", self._add_events)

    def end(self) -> None:
        """Watches nothing any more."""
        for owner, name, original in reversed(self._originals):
            setattr(owner, name, original)
        self._originals.clear()

    def _around(self, owner: Any, name: str, instead: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        self._originals.append((owner, name, original))
        setattr(owner, name, lambda *given, **named: instead(original, *given, **named))

    def _opened(self, original: Callable[..., None], loop: Any, *given: Any, **named: Any) -> None:
        original(loop, *given, **named)
        policy = given[2] if len(given) > 2 else named["policy"]
        loop._planner.state.device.reset_memory_peaks()  # earlier contents of the device are not the loop's
        if policy.keeps_budget:
            self._loops.append(loop)

    def _closes(self, original: Callable[..., None], loop: Any) -> None:
        if loop in self._loops:
            loop.observer.clock._drain() if hasattr(loop.observer, "clock") else None
            self._check(loop)
            self._loops.remove(loop)
        original(loop)

    def _resets(self, original: Callable[..., None], device: Any) -> None:
        for loop in self._loops[-1:]:
            if loop._planner.state.device is device:
                self._check(loop)
        original(device)

    def _add_events(self, original: Callable[..., None], builder: Any, events: Iterable[Any]) -> None:
        found = list(events)
        oversized = [each.bytes for each in found if each.kind == "oversized_op"]
        self._oversized_bytes = max([self._oversized_bytes, *oversized])
        original(builder, found)

    def _check(self, loop: Any) -> None:
        device, most_bytes = loop._planner.state.device, loop.split.room_bytes
        if loop._planner.state.forked:
            return
        if self._oversized_bytes > most_bytes:
            most_bytes += self._oversized_bytes
        self._oversized_bytes = 0
        peaks = {
            "resident": device.memory().resident_peak_bytes or 0,
            "in chunks": device.swap_counters().used_peak_bytes,
        }
        where = f"{loop.rung}, after step {loop.observer.clock.step_count}" if hasattr(loop.observer, "clock") else ""
        self.breaches += [
            f"{peak} bytes {what} at most, of {most_bytes} ({where})"
            for what, peak in peaks.items()
            if peak > most_bytes
        ]


class _WhenImported(MetaPathFinder):
    """Begins to watch when the module of loops has been imported."""

    def find_spec(self, name: str, _path: Any = None, _target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_watch(module: ModuleType) -> None:
            execute(module)
            watch_process()

        spec.loader.exec_module = execute_and_watch  # type: ignore[method-assign]
        return spec


def watch_process() -> None:
    """Watches this process to its end, which is a failure where a loop has exceeded its budget."""
    watch = BudgetWatch()
    watch.begin()
    process = os.getpid()

    def fail() -> None:
        if watch.breaches and os.getpid() == process:
            sys.stdout.flush()
            sys.stderr.write("over budget: " + "\n".join(watch.breaches) + "\n")
            sys.stderr.flush()
            os._exit(FAILED)

    atexit.register(fail)


def watch_when_imported() -> None:
    """Watches this process as soon as it imports umadvise's loops."""
    sys.meta_path.insert(0, _WhenImported())
