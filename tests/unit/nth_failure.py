"""Lets the n-th call that asks the file system for something fail, so that a test can go through all of them."""

import builtins
import io
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

_ASKS = frozenset(
    {
        *("access", "chmod", "fsync", "link", "listdir", "lstat", "mkdir", "open", "readlink", "replace", "rename"),
        *("rmdir", "scandir", "stat", "unlink", "utime"),
    }
)


class NthFailure:
    """Fails one call of those that follow `arm`.

    Attributes:
        calls: calls since then.
        failed: the call that has failed; None where there were too few.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls, self.failed = 0, ""
        self._nth, self._error = 0, Exception()
        for name in _ASKS:
            monkeypatch.setattr(os, name, self._counting(name, getattr(os, name)))
        monkeypatch.setattr(os, "fdopen", self._counting("fdopen", os.fdopen))
        opens = self._counting("open", io.open)
        monkeypatch.setattr(io, "open", opens)
        monkeypatch.setattr(builtins, "open", opens)

    def arm(self, nth: int, error: Exception) -> None:
        self.calls, self.failed, self._nth, self._error = 0, "", nth, error

    def _counting(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            if self.calls == self._nth:
                self.failed = name
                raise self._error
            return original(*arguments, **named)

        return counted


def each_failure(failing: NthFailure, make_error: Callable[[], Exception], do: Callable[[], None]) -> Iterator[str]:
    """Does the same again and again, and lets the first call fail, then the second, until none is left.

    Yields:
        The function that has failed, after each time.
    """
    nth = 1
    while True:
        failing.arm(nth, make_error())
        do()
        failed = failing.failed
        failing.arm(0, Exception())
        if not failed:
            return
        yield failed
        nth += 1
