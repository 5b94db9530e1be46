"""What is patched now: the device, the policy, and where this thread's allocations go."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from umadvise import _native
from umadvise._native.abi import Converted, Owners, Placement, Route, RouteState, Status
from umadvise.devices.rungs import ADVISE, ARENA_ROLES, UNADVISED, Policy
from umadvise.errors import NativeError, StateError
from umadvise.records.enums import Advice, Role
from umadvise.torch_seam.openmp import SleepingTeam
from umadvise.torch_seam.out_of_memory import out_of_memory
from umadvise.torch_seam.replacements import Replacements
from umadvise.torch_seam.tensors import local_part

# torch's own, whatever is patched on the classes below them.
_data_ptr = torch._C.TensorBase.data_ptr
_storage_data_ptr: Callable[[torch.UntypedStorage], int] = vars(torch._C.StorageBase)["data_ptr"]


SESSION = "a session"
"""Who watches the device while a session is open."""


class _Forks:
    """How many forks lie between this process and the first one: asking the system takes longer, at every call."""

    def __init__(self) -> None:
        self.count = 0
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self.count += 1


_forks = _Forks()


class _Here(threading.local):
    def __init__(self) -> None:
        self.thread = object()


_here = _Here()


def this_thread() -> object:
    """Tells this thread from all others; `threading.get_ident()` may be that of one that has ended."""
    return _here.thread


@dataclass
class Runtime:
    """What `patch()` has set up in this process, until `unpatch()`.

    Attributes:
        device: the open device.
        emulated: whether the device is the emulated one.
        ordinal: the index that "cuda:<index>" means; 0 on the emulated device.
        policy: memory and advice for new allocations.
        budget_bytes: what managed memory may keep on the device; None where only its capacity limits it.
        session_budget_bytes: budget in bytes of a session that has one of its own, in place of `budget_bytes`; None
            without one.
        replaced: functions of torch that were replaced, to be put back.
        watched_by: name of the session, or of `umadvise run`, that watches the device now; None where none does.
        owners: whether the device remembers who owns memory while no loop converts it.
        intermediate_advice: advice that the user gave with `torch.cuda.set_unified`, which beats every policy; None
            without one.
        own_thread: the thread that patched, as `this_thread` tells it.
        thread: the one whose ops are the steps' now.
        lease: number of the lease that the route of a thread has which is followed.
        team: thread that makes OpenMP's threads share their processors with others; None on CUDA.
    """

    device: _native.Device
    emulated: bool
    ordinal: int
    budget_bytes: int | None
    policy: Policy = UNADVISED
    replaced: Replacements = field(default_factory=Replacements)
    watched_by: str | None = None
    owners: Owners = Owners.FORGOTTEN
    intermediate_advice: Advice | None = None
    session_budget_bytes: int | None = None
    team: SleepingTeam | None = None
    forks: int = field(default_factory=lambda: _forks.count)
    own_thread: object = field(default_factory=this_thread)
    thread: object = field(default_factory=this_thread)
    lease: int = 0

    @property
    def forked(self) -> bool:
        """Whether this process was forked from the one that patched: the device stays with its parent."""
        return _forks.count != self.forks

    @property
    def limit_bytes(self) -> int | None:
        """The budget that holds now, in bytes: the session's, else that of `patch()`; None is no limit."""
        return self.budget_bytes if self.session_budget_bytes is None else self.session_budget_bytes

    @property
    def torch_device(self) -> str:
        """What torch calls the device: the emulated one's tensors are the CPU's."""
        return "cpu" if self.emulated else f"cuda:{self.ordinal}"

    def take_in(self, storage: torch.UntypedStorage, role: Role) -> None:
        """Moves a storage's bytes onto the emulated device, where nobody has put them or given their address away.

        What an op made has the role of an intermediate; any other role was given by the user, whose advice stays.

        Raises:
            torch.OutOfMemoryError: they do not fit there.
        """
        placed = _native.allocation_at(storage_address(storage))
        if placed is not None:
            if placed.exports > 0:
                return
            by_op = placed.role == Role.INTERMEDIATE and role != Role.INTERMEDIATE
            if placed.device == self.device.handle and not by_op:
                return
        try:
            _native.adopt_storage(storage._cdata, self.device, self.policy.placement(role))
        except NativeError as error:
            if error.code != Status.OUT_OF_DEVICE_MEMORY:
                raise
            raise out_of_memory(error.message) from error

    def convert(self, before: Policy) -> Converted:
        """Moves what lives on the device into the memory that the policy has for it now, between two steps.

        What the user has placed or advised stays, and so does what somebody outside of torch has the address of.

        Args:
            before: policy that held until now.

        Raises:
            NativeError: an op runs, or the driver fails.
        """
        usual = [  # what an op makes is labelled when it is known what it is for
            {policy.advice[each] for policy in (before, ADVISE) for each in (arena, Role.INTERMEDIATE)}
            for arena in ARENA_ROLES
        ]
        return self.device.convert(self.policy.memory, [self.policy.advice[arena] for arena in ARENA_ROLES], usual)

    def remember_owners(self) -> None:
        """Has the device remember who owns its memory until `unpatch()`: a later session may have to convert it."""
        if self.owners == Owners.FORGOTTEN:
            self.owners = Owners.REMEMBERED
            self.device.remember_owners(self.owners)

    def check_free(self) -> None:
        """Checks that another session may use the device.

        Raises:
            StateError: a session is open, or this process is a forked child.
        """
        if self.forked:
            raise StateError(
                "this process was forked while umadvise was in use, and the device stays with its parent: "
                "start processes that train with spawn or forkserver"
            )
        if self.watched_by == SESSION:
            raise StateError(
                "a session is open already, and a process has one at a time: close it first, or give one session all "
                "models and optimizers, as in umadvise.session([first, second], [one, other])"
            )

    def watch(self, watcher: str) -> str | None:
        """Names who watches the device from now on: `umadvise run`, or a session, be it in a script that it runs.

        Returns:
            Name of the one that watched it until now, to be put back; None without one.

        Raises:
            StateError: a session is open, or this process is a forked child.
        """
        self.check_free()
        before, self.watched_by = self.watched_by, watcher
        return before

    def follow_thread(self) -> None:
        """The steps are this thread's from now on: its ops are theirs, and what it makes has the policy's memory."""
        if self.thread is this_thread() or self.forked or not _native.follow_thread(True):
            return
        self.thread, self.lease = this_thread(), _native.lease_routes()
        self.set_policy(self.policy)

    def follow_own_thread(self) -> None:
        """The steps are those of the thread that patched; what another one makes from now on is its own again."""
        if self.thread is self.own_thread:
            return
        _native.follow_thread(False)
        self.thread, self.lease = self.own_thread, _native.lease_routes()

    def set_policy(self, policy: Policy) -> None:
        """Changes the policy for what is allocated from now on; live tensors stay where they are.

        It is what this thread allocates; on CUDA every thread, as autograd's allocate too.
        """
        if self.intermediate_advice is not None:
            policy = policy.with_advice(Role.INTERMEDIATE, self.intermediate_advice)
        self.policy = policy
        set_route = _native.set_thread_route if self.emulated else _native.set_process_route
        lease = 0 if this_thread() is self.own_thread else self.lease
        set_route(Route(RouteState.ON, policy.placement(Role.INTERMEDIATE), self.device.handle, lease))


_current: Runtime | None = None


def current() -> Runtime:
    """The patched state.

    Raises:
        StateError: nothing is patched.
    """
    if _current is None:
        raise StateError("umadvise is not in use: call umadvise.patch(), or open umadvise.session(...)")
    return _current


def set_current(runtime: Runtime | None) -> None:
    """Makes a state the process's, or says that nothing is patched."""
    global _current
    _current = runtime


def is_patched() -> bool:
    """Whether `patch()` or a session is in force."""
    return _current is not None


@contextmanager
def routed(route: Route) -> Iterator[None]:
    """Sends this thread's allocations elsewhere for a while."""
    before = _native.thread_route()
    _native.set_thread_route(route)
    try:
        yield
    finally:
        _native.set_thread_route(before)


def placed(placement: Placement) -> Route:
    """The route to a placement on the current device."""
    return Route(RouteState.ON, placement, current().device.handle)


HOST = Route(RouteState.OFF)
"""The route to ordinary memory."""


def address_of(tensor: torch.Tensor) -> int:
    """Address of the tensor's first element, of a sparse tensor's first value; 0 where there is none (meta, empty).

    Unlike `Tensor.data_ptr` this is no export: nothing is pinned for it. Of a DTensor it is this process's part.
    """
    with torch._C.DisableTorchFunction():  # a mode, as `with torch.device(...)`, or a subclass would call that one
        try:
            return _data_ptr(_with_bytes(tensor))
        except RuntimeError:
            return 0


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """The storage that `address_of` finds its address in; None where there is none."""
    with torch._C.DisableTorchFunction():
        try:
            return _with_bytes(tensor).untyped_storage()
        except RuntimeError:
            return None


def _with_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or the part of it, that has the values' storage."""
    tensor = local_part(tensor)
    if tensor.layout is torch.sparse_coo:
        return tensor._values()
    return tensor if tensor.layout is torch.strided else tensor.values()


def storage_address(storage: torch.UntypedStorage) -> int:
    """Address of a storage's first byte; 0 where there is none."""
    try:
        return _storage_data_ptr(storage)
    except RuntimeError:
        return 0


def on_device(tensor: torch.Tensor) -> bool:
    """Whether a tensor's bytes belong to a device of umadvise (on the emulated device `tensor.device` says "cpu")."""
    return _native.owns(address_of(tensor))
