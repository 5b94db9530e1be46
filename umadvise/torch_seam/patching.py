"""`patch()` and `unpatch()`: umadvise in this process, and out again."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from umadvise import _native
from umadvise._native.abi import Owners, Route, RouteState
from umadvise.devices import open_device as devices
from umadvise.devices.budget import Budget, budget_on, parse_budget
from umadvise.devices.open_device import EmulatedDevice
from umadvise.devices.ranks import ranks
from umadvise.errors import StateError
from umadvise.records.units import parse_bytes
from umadvise.torch_seam import (
    cuda_allocator,
    doors,
    extensions,
    regions,
    resized,
    runtime,
    saved_tensors,
    threads,
    torch_api,
    traced,
)
from umadvise.torch_seam.openmp import SleepingTeam
from umadvise.torch_seam.runtime import Runtime
from umadvise.torch_seam.tensors import addresses_of_parts

_turn = threading.RLock()


def _renew_turn() -> None:
    """Replaces the lock in a forked child, where the thread that held it does not exist."""
    global _turn
    _turn = threading.RLock()


os.register_at_fork(after_in_child=_renew_turn)


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Lets one thread at a time patch, unpatch, open or close a session.

    Each of them replaces functions of torch and puts back what it found: in turns the order of that would be wrong.
    """
    with _turn:
        yield


@one_at_a_time()
def patch(
    device: str | EmulatedDevice = "auto",
    budget: int | str | None = None,
    *,
    most_managed: int | str | None = None,
) -> None:
    """Puts tensors made from now on by this thread into unified memory, and teaches torch the words `"cuda:<advice>"`.

    Importing umadvise changes nothing: this call does. On CUDA it means every thread's CUDA tensors, and must come
    before torch sets CUDA up, as its allocator cannot be replaced later.

    Args:
        device: "auto" (CUDA where there is one), "cuda", `"cuda:<index>"`, "emulated", or `EmulatedDevice(...)`.
        budget: bytes that unified memory may keep on the device, as a number or text such as "8GiB"; "auto" is what a
            card that is shared has to spare now (`umadvise.devices.budget`); None leaves its capacity as the only
            limit. On a GPU it is lowered to what the driver says is free.
        most_managed: bytes of unified memory that this process may have of CUDA at once, over all devices, as a number
            or text. Never more than host and device have free together when a device is opened, which None takes: a
            driver promises more than that, and the machine stalls when it is used.

    Raises:
        StateError: it is patched already, or CUDA was used before.
        DeviceUnavailableError: there is no such device; the message names both ways out.
        HooksUnavailableError: the extension against the installed torch cannot be compiled.
        UsageError: a device or a size that makes no sense.
        BudgetError: "auto", and others leave too little.
    """
    if runtime.is_patched():
        runtime.current().check_free()
        raise StateError("umadvise is patched already: call umadvise.unpatch() first")
    wanted = parse_budget(budget)
    limit_managed(most_managed)
    opened = devices.open_device(device)
    try:
        start(opened, wanted)
    except BaseException:
        opened.close()
        raise


def limit_managed(most_managed: int | str | None) -> None:
    """Sets the most of CUDA's unified memory that the process may have from now on; see `patch`.

    Raises:
        InvalidSizeError: it is no size.
    """
    _native.set_most_managed(0 if most_managed is None else parse_bytes(most_managed))


def start(device: _native.Device, budget: Budget, *, unified: bool = True) -> Runtime:
    """Makes an open device the one in use; `unified`: the budget is for unified memory too."""
    info = device.info()
    state = Runtime(device, info.provider == "emulated", max(info.ordinal, 0), budget_on(device, budget))
    if state.emulated:
        state.ordinal = ranks().local_rank  # the only one that a script can see
        _native.install_allocator()
    else:
        cuda_allocator.install(state.ordinal)
    runtime.set_current(state)
    try:
        if unified:
            device.set_budget(state.budget_bytes or 0)
        torch_api.install(state)
        saved_tensors.install(state)
        traced.install(state)
        regions.install(state)
        extensions.install(state.replaced)
        threads.install(state.replaced)
        if state.emulated:
            doors.install(state)
            resized.install(state.replaced)
        else:
            doors.install_on_cuda(state)
            cuda_allocator.attend(state)
        state.set_policy(state.policy)
        _native.set_parts(addresses_of_parts)
        if state.emulated:  # whose copies have threads of their own
            state.team = SleepingTeam()
        _native.interpose(device)
    except BaseException:
        stop(state)
        raise
    return state


def stop(state: Runtime) -> None:
    """Ends what `start` began. Live tensors stay valid where they are; their memory goes with the last of them."""
    state.replaced.undo()
    state.follow_own_thread()
    _native.set_thread_route(Route(RouteState.INHERIT))
    if not state.emulated:
        _native.set_process_route(Route(RouteState.OFF))
        cuda_allocator.release()
    _native.interpose(None)
    if state.team is not None and not state.forked:
        state.team.end()
    runtime.set_current(None)


def finish(state: Runtime) -> None:
    """Ends what `start` began, and closes the device."""
    stop(state)
    if not state.forked:
        state.device.remember_owners(Owners.FORGOTTEN)
        state.device.close()


@one_at_a_time()
def unpatch() -> None:
    """Ends `patch()`: torch is as before, and new tensors are ordinary ones (on CUDA: in plain device memory).

    Tensors that live on the device stay valid; its memory is given back when the last of them dies.

    Raises:
        StateError: nothing is patched, or a session is open.
    """
    state = runtime.current()
    if state.watched_by is not None:
        raise StateError(f"{state.watched_by} uses the device: call umadvise.unpatch() after it has ended")
    finish(state)
