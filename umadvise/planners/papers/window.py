"""The planner `window`: window scheduling.

Source: Hayakawa and Narihira 2020, "Out-of-core training for extremely large-scale neural networks with adaptive
window-based scheduling", arXiv:2010.14109.

By its section 3 the variables that the functions f_1 .. f_n use, in order, are one sequence v. With l the first
variable of f_i, the window is v[l : r], where r is the largest index with sum(b_vj, j = l .. r) <= schedule_window.
Before f_i (figure 2)

(a) what has come into the window, v[r- + 1 : r], and is on the host is swapped in;
(b) where that exceeds the budget, the completion of the oldest swap-outs is waited for;
(c) after f_i its variables are swapped out and the window moves to f_(i+1), but
(d) not those that are in the window again, nor those that are never used again.

There is no time in this, only bytes. Where the paper leaves something open: the window reaches at least to the end of
f_i; it stops before what finds no room even when all swap-outs have ended; what a function makes has room as soon as it
is in the window; what the next step needs is used again; what is on its way out when it comes into the window again is
waited for. All that the next step uses is on the host when a step begins.

`refined` is the scheduler as released (sony/nnabla, src/nbla/lms/swap_in_out_scheduler.cpp):

- the window counts each storage once, however often it is used in it;
- a swap-out whose storage comes into the window again before it was waited for is cancelled;
- what is freed before it is used again is freed after its last use, without a copy;
- what a function only writes is not copied, and takes its room when that function comes; where there is none, what was
  swapped in for later functions is not brought before the next one, and planning goes back to where it was;
- the step ends when all its swap-outs have.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from umadvise.errors import UsageError
from umadvise.planners.step_lists import StepLists
from umadvise.records.device import DeviceProfile
from umadvise.records.plan import ActionKind, Actions, Option, Plan
from umadvise.records.trace import Trace

WINDOW_OF_BUDGET = 1.5
"""Default schedule_window over budget: the prefetch_size of nnabla.lms.SwapInOutScheduler."""

_KINDS = len(ActionKind)
HOST, DEVICE, LEAVING, DUE = range(4)  # DUE: in the window, without memory until its function comes


def window(
    trace: Trace,
    _device: DeviceProfile,
    budget_bytes: int,
    *,
    schedule_window: int | None = None,
    refined: bool = False,
) -> Plan:
    """Plans swaps by the adaptive window.

    Args:
        trace: trace of one training step.
        _device: profile of the device, which is not used: this planner has no notion of time.
        budget_bytes: bytes that tensors may take on the device.
        schedule_window: bytes of the sequence of variables to look ahead; None is 1.5 times the budget.
        refined: whether to plan as the released code does; else as the paper says.

    Raises:
        BudgetError: an op's variables and what cannot leave do not fit.
        UsageError: schedule_window is below zero.
    """
    if schedule_window is None:
        schedule_window = int(WINDOW_OF_BUDGET * budget_bytes)
    if schedule_window < 0:
        raise UsageError(f"schedule_window: expected bytes, at least 0, found {schedule_window}")
    step = StepLists(trace)
    step.graph.require_room(budget_bytes)
    schedule = _WindowWalk(_Sequence(step), budget_bytes, schedule_window, refined)
    schedule.execute()
    rows = np.array(schedule.actions, np.int64)
    rows = rows[rows >= 0]
    code, storage = rows // schedule.storages, rows % schedule.storages
    order = np.argsort(code // _KINDS, kind="stable")
    code, storage = code[order], storage[order]
    kind, position = code % _KINDS, code // _KINDS
    zeros = np.zeros(len(rows), np.int64)
    actions = Actions(kind, position // 2, position % 2, storage, zeros, trace.storages.bytes[storage], zeros)  # type: ignore[arg-type]
    options: dict[str, Option] = {"schedule_window": schedule_window, "refined": refined}
    return Plan.of_rows(trace, actions, "window", budget_bytes, options)


_NUMBERS = ("head", "tail", "taken", "leaving_bytes", "window_bytes")
"""Where a schedule stands before an op, besides its lists."""


class _Sequence:
    """The sequence of variables: one entry for each storage that an op uses, in the order of ops.

    Attributes:
        step: of the trace.
        storage: of each entry.
        first: entry with which each op begins, and one more.
        following: next entry of the same storage, or -1.
        whole: for each entry: nothing has to be copied to the device for it.
        made: likewise; the op makes it.
    """

    def __init__(self, step: StepLists) -> None:
        trace, graph, uses = step.trace, step.graph, step.graph.uses
        order = np.lexsort((uses.storage, uses.at))
        entry = np.empty_like(order)
        entry[order] = np.arange(len(order))
        following = np.full(len(order), -1, np.int64)
        following[entry[uses.inner]] = entry[uses.inner + 1]
        begins = uses.first[uses.storage] == np.arange(len(order))
        # What is there before the step begins on the device unless a swap-in says that it does not.
        whole = uses.written_whole & ~((trace.births[uses.storage] < 0) & begins)
        self.step = step
        self.storage: list[int] = uses.storage[order].tolist()
        self.first: list[int] = np.searchsorted(uses.at[order], np.arange(len(trace.ops) + 1)).tolist()
        self.following: list[int] = following.tolist()
        self.whole: list[bool] = whole[order].tolist()
        self.made: list[bool] = (trace.births[uses.storage] == uses.at)[order].tolist()
        # Of storages that are there before the first op: what no op uses, or what the host copies before it.
        self.begins_on_device: NDArray[np.bool_] = (trace.births < 0) & (~uses.used | graph.host_begins)

    def needed_after_the_step(self) -> list[bool]:
        """Storages that are on the host when the next step begins: they are used again after their last use."""
        trace, heir = self.step.trace, self.step.graph.heir
        stays = (heir >= 0) & self.begins_on_device[heir]
        result: list[bool] = ((trace.deaths == len(trace.ops)) & ~stays).tolist()
        return result


class _WindowWalk:
    """One walk over the ops.

    A storage's bytes count from the decision to bring or to make it to the wait for its swap-out, so that what the
    executor has on the device is never more than `taken`.
    """

    def __init__(self, sequence: _Sequence, budget_bytes: int, schedule_window: int, refined: bool) -> None:
        trace = sequence.step.trace
        self.sequence, self.trace = sequence, trace
        self.budget_bytes, self.schedule_window, self.refined = budget_bytes, schedule_window, refined
        self.sizes, self.deaths = sequence.step.sizes, sequence.step.deaths
        self.needed_later = sequence.needed_after_the_step()
        self.storages = max(len(self.sizes), 1)
        self.actions: list[int] = []  # ((2 * op + after) * _KINDS + kind) * storages + storage; -1: taken back
        there = sequence.begins_on_device
        self.state: list[int] = np.where(there, DEVICE, HOST).tolist()
        self.queued = [0] * len(self.sizes)  # uses in the window
        self.leaving: list[int] = []  # storage of each swap-out, in order; -1: cancelled
        self.place = [0] * len(self.sizes)  # in `leaving`, of those that leave
        self.swap_out = [0] * len(self.sizes)  # likewise in `actions`
        self.head = self.tail = 0  # first entry beyond the window; first swap-out not waited for
        self.taken = int(trace.storages.bytes[there].sum())
        self.leaving_bytes = self.window_bytes = 0
        self.passed = [0] * len(sequence.storage)  # op at which the window took an entry in
        self.not_before = [0] * len(sequence.storage)  # op at which it may
        self.moments: list[tuple[list[int], list[int]]] = []  # before each op: what undoing sets back, and cuts off
        self.log: list[tuple[list[int], int, int]] = []
        self._require(self.taken, -1)

    def _require(self, needed_bytes: int, op: int) -> None:
        self.sequence.step.graph.require(needed_bytes, self.budget_bytes, op, "with what the window cannot move")

    def execute(self) -> None:
        """Plans every op."""
        freed, count = self.sequence.step.freed_by, len(self.trace.ops)
        self._free(freed[-1])
        op = 0
        while op < count:
            if self.refined:
                numbers = [getattr(self, name) for name in _NUMBERS]
                self.moments.append((numbers, [len(each) for each in self._grown()]))
            self._look_ahead(op)
            back_to = self._make_room_for_due(op) if self.refined else None
            if back_to is not None:
                self._undo(back_to)
                op = back_to
                continue
            self._move_on(op)
            self._free(freed[op])
            op += 1
        while self.refined and self.tail < len(self.leaving):
            self._wait(2 * count - 1)

    # ---- (a) and (b) -------------------------------------------------------------------------------------------------

    def _look_ahead(self, op: int) -> None:
        """Moves the window's end: what comes in is there, or on its way, or has its room reserved for its op."""
        sequence, state, queued, refined = self.sequence, self.state, self.queued, self.refined
        storages, end = sequence.storage, sequence.first[op + 1]
        for entry in range(self.head, len(storages)):
            storage = storages[entry]
            grows = 0 if refined and queued[storage] else self.sizes[storage]
            if entry >= end and (self.window_bytes + grows > self.schedule_window or self.not_before[entry] > op):
                return
            where = state[storage]
            if where == LEAVING and refined:
                self._cancel(storage)
            elif where == HOST and refined and sequence.whole[entry]:
                self._set(state, storage, DUE)
            elif where in (HOST, LEAVING) and not self._bring(entry, op, must=entry < end):
                return
            self._set(queued, storage, queued[storage] + 1)
            self.passed[entry] = op
            self.window_bytes += grows
            self.head = entry + 1

    def _bring(self, entry: int, op: int, *, must: bool) -> bool:
        """Brings or makes a storage, after what leaves if need be; False where that is not enough."""
        storage = self.sequence.storage[entry]
        size = self.sizes[storage]
        needed = self.taken - self.leaving_bytes + size
        if must:
            self._require(needed, op)
        elif needed > self.budget_bytes:
            return False
        while self.state[storage] == LEAVING or self.taken + size > self.budget_bytes:
            self._wait(2 * op)
        self.taken += size
        self._set(self.state, storage, DEVICE)
        if not self.sequence.made[entry]:
            self._act(ActionKind.SWAP_IN, 2 * op, storage)
        return True

    def _wait(self, position: int) -> None:
        """For the oldest swap-out."""
        storage = self.leaving[self.tail]
        self.tail += 1
        if storage < 0:
            return
        self._act(ActionKind.WAIT, position, storage)
        self._set(self.state, storage, HOST)
        self.taken -= self.sizes[storage]
        self.leaving_bytes -= self.sizes[storage]

    def _cancel(self, storage: int) -> None:
        self._set(self.actions, self.swap_out[storage], -1)
        self._set(self.leaving, self.place[storage], -1)
        self._set(self.state, storage, DEVICE)
        self.leaving_bytes -= self.sizes[storage]

    # ---- (c) and (d) -------------------------------------------------------------------------------------------------

    def _move_on(self, op: int) -> None:
        """Swaps out what the op used and the window does not hold any more."""
        sequence, queued = self.sequence, self.queued
        after = 2 * op + 1
        for entry in range(sequence.first[op], sequence.first[op + 1]):
            storage = sequence.storage[entry]
            left = queued[storage] - 1
            self._set(queued, storage, left)
            if left == 0 or not self.refined:
                self.window_bytes -= self.sizes[storage]
            if left:
                continue
            if sequence.following[entry] >= 0 or self.needed_later[storage]:
                self._set(self.state, storage, LEAVING)
                self._set(self.place, storage, len(self.leaving))
                self._set(self.swap_out, storage, len(self.actions))
                self.leaving.append(storage)
                self.leaving_bytes += self.sizes[storage]
                self._act(ActionKind.SWAP_OUT, after, storage)
            elif self.refined and op < self.deaths[storage] < len(self.trace.ops):
                self._act(ActionKind.DROP, after, storage)
                self._free([storage])

    def _free(self, storages: Iterable[int]) -> None:
        for storage in storages:
            if self.state[storage] == DEVICE:
                self.taken -= self.sizes[storage]
            self._set(self.state, storage, HOST)

    # ---- as released -------------------------------------------------------------------------------------------------

    def _make_room_for_due(self, op: int) -> int | None:
        """Gives what the op only writes its memory; where there is none, the op at which planning has to go on."""
        sequence = self.sequence
        begin, end = sequence.first[op], sequence.first[op + 1]
        due = [storage for storage in sequence.storage[begin:end] if self.state[storage] == DUE]
        needed = self.taken + sum(self.sizes[storage] for storage in due)
        while needed > self.budget_bytes and self.tail < len(self.leaving):
            before = self.taken
            self._wait(2 * op)
            needed += self.taken - before
        if needed > self.budget_bytes:
            return self._put_off(op, needed)
        for storage in due:
            self._set(self.state, storage, DEVICE)
        self.taken = needed
        return None

    def _put_off(self, op: int, needed_bytes: int) -> int:
        """Keeps the window's last storages out until the op is over; the op at which the first of them came in."""
        sequence = self.sequence
        without: dict[int, int] = {}
        left = needed_bytes
        for entry in range(self.head - 1, sequence.first[op + 1] - 1, -1):
            storage = sequence.storage[entry]
            without[storage] = without.get(storage, 0) + 1
            self.not_before[entry] = op + 1
            if without[storage] == self.queued[storage] and self.state[storage] != DUE:
                left -= self.sizes[storage]
            if left <= self.budget_bytes:
                return self.passed[entry]
        self._require(left, op)
        raise AssertionError("unreachable")

    def _act(self, kind: int, position: int, storage: int) -> None:
        self.actions.append((position * _KINDS + kind) * self.storages + storage)

    def _set(self, column: list[int], index: int, value: int) -> None:
        if self.refined:
            self.log.append((column, index, column[index]))
        column[index] = value

    def _undo(self, op: int) -> None:
        """Goes back to before an op. Starting again from the first op would lead to the same point."""
        numbers, lengths = self.moments[op]
        del self.moments[op:]
        for column, index, value in reversed(self.log[lengths[0] :]):
            column[index] = value
        for grown, length in zip(self._grown(), lengths, strict=True):
            del grown[length:]
        for name, number in zip(_NUMBERS, numbers, strict=True):
            setattr(self, name, number)

    def _grown(self) -> tuple[list[Any], ...]:
        return self.log, self.actions, self.leaving
