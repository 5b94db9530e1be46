"""Trains one network in several ways, one after the other, in a process of its own: `python rows.py SPEC.json`.

Each row is written to a file as soon as it is there, one line of JSON. A row that there is no time left for is dropped;
one that takes far too long ends the process, and who started it goes on with the next one.
"""

import faulthandler
import gc
import json
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import busy
import msgspec
import torch
from ours import Calls, Training, training
from peers import WAYS
from workloads import SizedNetwork, checkpoint_blocks, repeatable

from umadvise.devices.rungs import SWAP_RECOMPUTE
from umadvise.errors import BudgetError, NativeError


class AskedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One way to train.

    Attributes:
        name: the row's name.
        way: a name in `peers.WAYS`; None: umadvise.
        rung: a rung of umadvise's ladder, or unadvised unified memory.
        budget_percent: the budget in percent of the peak of torch alone.
        budget_of: the row whose peak is the budget. Without either there is no budget.
        managed: it is trained in managed memory.
    """

    name: str
    way: str | None = None
    rung: str | None = None
    budget_percent: float | None = None
    budget_of: str | None = None
    managed: bool = False


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """What one process does.

    Attributes:
        network: the network that is trained.
        rows: the most important first.
        on_gpu: whether it is trained on CUDA; else on the CPU and on an emulated device.
        warm_up: steps that are not measured: the optimizer's state is made, a step is recorded and planned.
        measured: steps that are, at most. Before them one is counted: counting may take time.
        row_s: seconds until no further step is begun, once one was measured.
        longest_s: seconds until a row ends its process.
        ends_s: the end of the whole process, by the monotonic clock.
        peak_bytes: the peak of torch alone; None: that of the first row, in which nothing is limited.
        peaks: the peaks of rows that have run, by name, in bytes.
        managed_limit_bytes: most that may be in managed memory.
        results: file that rows are written to.
    """

    network: SizedNetwork
    rows: list[AskedRow]
    on_gpu: bool
    warm_up: int
    measured: int
    row_s: float
    longest_s: float
    ends_s: float
    managed_limit_bytes: int
    results: str
    peak_bytes: int | None = None
    peaks: dict[str, int] = {}


def main() -> int:
    """Runs the rows."""
    spec = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Assignment)
    faulthandler.register(signal.SIGALRM, chain=True)  # says where it was when it took too long
    repeatable()
    runner = RowRunner(spec)
    with Path(spec.results).open("a") as file:
        for row in spec.rows:
            found = runner.run(row)
            file.write(json.dumps(found) + "\n")
            file.flush()
            if found["outcome"] == "failed" and spec.on_gpu:
                return 1  # a CUDA error stays: the rest is for a fresh process
    return 0


class RowRunner:
    """Runs one row after the other."""

    def __init__(self, spec: Assignment) -> None:
        self._spec = spec
        self._peak_bytes, self._peaks = spec.peak_bytes, dict(spec.peaks)
        self._longest_s = 0.0
        self._managed_bytes = 0  # the most that a row in managed memory really took

    def run(self, row: AskedRow) -> dict[str, Any]:
        """What became of a row."""
        started = time.monotonic()
        left_s = self._spec.ends_s - started
        if left_s < self._longest_s:
            return outcome(row, "dropped", f"{left_s:.0f} s were left, and a row takes up to {self._longest_s:.0f} s")
        if (refusal := self._refusal(row)) is not None:
            return outcome(row, *refusal)
        # A little before who started this would end it without a word.
        signal.setitimer(signal.ITIMER_REAL, min(self._spec.longest_s, max(left_s - 1.0, 1.0)))
        try:
            found = outcome(row, "ran", None, **self._trained(row))
        except (torch.OutOfMemoryError, BudgetError) as error:
            found = outcome(row, "no room", str(error))
        except Exception as error:
            no_room = isinstance(error, NativeError) and "memory" in str(error)
            found = outcome(row, "no room" if no_room else "failed", f"{type(error).__name__}: {error}")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            gc.collect()
        found["seconds"] = round(time.monotonic() - started, 2)
        self._longest_s = max(self._longest_s, found["seconds"])
        if row.managed:
            self._managed_bytes = max(self._managed_bytes, found.get("reserved_peak_bytes", 0))
        if found.get("peak_bytes"):
            self._peaks[row.name] = found["peak_bytes"]
        if self._peak_bytes is None and row.way is None and row.budget_percent is None:
            self._peak_bytes = found.get("needed_bytes")
        return found

    def _budget_bytes(self, row: AskedRow) -> int | None:
        """The row's budget; None where it has none, or where the peak that it is a part of is not known."""
        if row.budget_of is not None:
            return self._peaks.get(row.budget_of)
        if row.budget_percent is None or self._peak_bytes is None:
            return None
        return int(self._peak_bytes * row.budget_percent // 100)

    def _refusal(self, row: AskedRow) -> tuple[str, str] | None:
        """Outcome and reason, where a row is not even begun."""
        if row.way is not None and (reason := WAYS[row.way].absent(on_gpu=self._spec.on_gpu)) is not None:
            return "absent", reason
        if (row.budget_percent, row.budget_of) != (None, None) and self._budget_bytes(row) is None:
            return "dropped", "the peak that its budget is a part of is not known"
        # The core would stop it there, after minutes.
        most_bytes, needed_bytes = self._spec.managed_limit_bytes, max(self._peak_bytes or 0, self._managed_bytes)
        if row.managed and needed_bytes > most_bytes:
            return "dropped", f"{needed_bytes} bytes of managed memory, more than the limit of {most_bytes}"
        return None

    # ---- training ---------------------------------------------------------------------------------------------------

    def _trained(self, row: AskedRow) -> dict[str, Any]:
        budget_bytes = self._budget_bytes(row)
        with self._way(row, budget_bytes) as running:
            steps = _Steps(running.step, self._synchronize)
            for _ in range(self._spec.warm_up):
                steps.run()
            with running.counted(), busy.memory(on_gpu=self._spec.on_gpu) as memory:
                steps.run()
            begun, calls = time.monotonic(), running.driver_calls()
            for number in range(self._spec.measured):
                if number > 0 and time.monotonic() - begun > self._spec.row_s:
                    break
                steps.run()
            first = self._spec.warm_up + 1
            called = _a_step(calls, running.driver_calls(), len(steps.times_ns) - first)
            found = {
                "budget_bytes": budget_bytes,
                "step_ns": int(statistics.median(steps.times_ns[first:])),
                "launch_ns": int(statistics.median(steps.launches_ns[first:])),
                "host_busy_ns": int(statistics.median(steps.cpu_ns[first:])),
                "steps_ns": steps.times_ns,
                "losses_hex": steps.losses_hex,
                "device_used_bytes": memory,
                "driver_calls": called or None,
                **running.observed(),
            }
            found["clocks"] = busy.clocks(running.step, self._synchronize, on_gpu=self._spec.on_gpu)
            found["busy"] = busy.profiled(running.step, self._synchronize, on_gpu=self._spec.on_gpu)
            return found

    @contextmanager
    def _way(self, row: AskedRow, budget_bytes: int | None) -> "Iterator[Training | _Torch]":
        if row.way is not None:
            with WAYS[row.way].use(self._built(), self._spec.on_gpu) as step:
                yield _Torch(step, self._spec.on_gpu)
            return
        assert row.rung is not None
        build, counted_step = partial(self._built, row.rung), self._spec.warm_up + 1
        most_bytes = self._spec.managed_limit_bytes
        with training(
            build, row.rung, budget_bytes, most_bytes, counted_step=counted_step, on_gpu=self._spec.on_gpu
        ) as running:
            yield running

    def _built(self, rung: str | None = None) -> Any:
        torch.manual_seed(0)
        with torch.device("cuda" if self._spec.on_gpu else "cpu"):  # and no longer: an optimizer counts on the host
            workload = self._spec.network.build()
        if rung == SWAP_RECOMPUTE.name:  # what runs again lies in regions that the user marks
            checkpoint_blocks(workload)
        torch.manual_seed(0)  # of dropout: whatever the weights took from the generator
        return workload

    def _synchronize(self) -> None:
        if self._spec.on_gpu:
            torch.cuda.synchronize()


class _Steps:
    """Runs steps, and keeps what came out, and what they took: in all, until the last op was launched, and of CPUs."""

    def __init__(self, step: Callable[[], Any], synchronize: Callable[[], None]) -> None:
        self._step, self._synchronize = step, synchronize
        self.times_ns: list[int] = []
        self.launches_ns: list[int] = []
        self.cpu_ns: list[int] = []
        self.losses_hex: list[str] = []

    def run(self) -> None:
        """One more."""
        cpu, started = time.process_time_ns(), time.perf_counter_ns()
        loss = self._step()
        self.launches_ns.append(time.perf_counter_ns() - started)
        self.cpu_ns.append(time.process_time_ns() - cpu)
        self._synchronize()
        self.times_ns.append(time.perf_counter_ns() - started)
        self.losses_hex.append(float(loss.item()).hex())


class _Torch:
    """A workload in torch's own memory."""

    def __init__(self, step: Any, on_gpu: bool) -> None:
        self.step, self._on_gpu = step, on_gpu

    @contextmanager
    def counted(self) -> Iterator[None]:
        """From the warm-up's end on the peak is taken."""
        if self._on_gpu:
            torch.cuda.reset_peak_memory_stats()
        yield

    def driver_calls(self) -> Calls:
        """Nobody counts torch's own."""
        return {}

    def observed(self) -> dict[str, Any]:
        """Only a GPU's allocator has a peak."""
        return {"peak_bytes": torch.cuda.max_memory_allocated() if self._on_gpu else None}


def _a_step(before: Calls, after: Calls, steps: int) -> dict[str, dict[str, float]]:
    """What was called in each of some steps, the mean; what was not is left out."""
    means = {}
    for name, made in after.items():
        earlier = before.get(name, dict.fromkeys(made, 0))
        means[name] = {what: round((number - earlier[what]) / steps, 1) for what, number in made.items()}
    return {name: made for name, made in means.items() if made["calls"]}


def outcome(row: AskedRow, what: str, reason: str | None, **found: Any) -> dict[str, Any]:
    """A row and what became of it."""
    return {**msgspec.to_builtins(row), "outcome": what, "reason": reason, **found}


if __name__ == "__main__":
    sys.exit(main())
