"""SIGSEGV: the emulated device's page faults come as this signal, so that whoever else wants it comes after the device.

What Python sets is put behind the device's handler at once. What a library sets in C (`sigaction`) cannot be seen then:
it is found at the next edge of a step or a session. `signal.getsignal` says what it says without umadvise.

Like the handler itself all of this stays to the end of the process, as tensors may outlive `unpatch()`.
"""

import faulthandler
import importlib
import logging
import signal
from collections.abc import Callable, Iterable
from typing import Any

from umadvise import _native
from umadvise.torch_seam.replacements import calling

log = logging.getLogger("umadvise")

_signal = importlib.import_module("_signal")  # whose functions `signal`'s call, where somebody holds one of them too
_guarded = False


def install() -> None:
    """Puts the device's handler on top now, and whenever Python sets another one."""
    global _guarded
    _native.claim_signals(chosen=callable(signal.getsignal(signal.SIGSEGV)))
    if _guarded:
        return
    _guarded = True
    _guard(_signal, "signal", _signal_signal)
    _guard(_signal, "pthread_sigmask", _pthread_sigmask)
    for name in ("enable", "disable"):
        _guard(faulthandler, name, _then_claim)


def keep() -> None:
    """Puts the device's handler back on top where somebody has replaced it meanwhile; theirs comes after it."""
    if _native.claim_signals():
        log.warning(
            "a library has put its handler for SIGSEGV in place of the emulated device's, which is in front of it again"
        )


def _guard(module: Any, name: str, function: Callable[..., Any]) -> None:
    setattr(module, name, calling(function, getattr(module, name)))


def _signal_signal(original: Callable[..., Any], number: int, handler: Any, /) -> Any:
    before = original(number, handler)
    if number == signal.SIGSEGV:
        # Not the default: a fault that a handler above ours raises again must not end the process.
        _native.claim_signals(chosen=callable(handler) or handler == signal.SIG_IGN)
    return before


def _pthread_sigmask(original: Callable[..., Any], how: int, mask: Iterable[int], /) -> Any:
    """The kernel kills a thread that blocks SIGSEGV and faults, whoever handles it."""
    return original(how, mask if how == signal.SIG_UNBLOCK else set(mask) - {signal.SIGSEGV})


def _then_claim(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    result = original(*arguments, **named)
    _native.claim_signals()  # else the first page fault would be reported as a crash, or be one
    return result
