"""One network trained in one kind of memory, in a process of its own: what the benchmarks of training compare.

    python tools/swap_run.py SPECIFICATION.json RUN.json

It does a step for each line that it reads, and answers with one, so that several such processes can take turns:
`Trainee` is one as a benchmark sees it.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Literal

import msgspec
import torch

import umadvise
from umadvise.recording.workload import Workload
from umadvise.records import plan_file as plan_io
from umadvise.records import trace_file as trace_io

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
_DONE = "a step is done, rung: "
Kind = Literal["plain", "resident", "no advice", "advise", "window", "swap", "swap+recompute", "auto", "checkpointing"]
"""Plain: PyTorch in ordinary memory, without umadvise."""
SESSION_POLICY: dict[Kind, str] = {
    "resident": "resident",
    "no advice": "advise",  # of which the advice is taken away again
    "advise": "advise",
    "window": "window",
    "swap": "swap",
    "swap+recompute": "swap+recompute",
    "auto": "auto",
    "checkpointing": "resident",
}


class Specification(msgspec.Struct, frozen=True, kw_only=True):
    """What to train, and where.

    Attributes:
        network: of examples/networks.
        options: of its factory.
        kind: of memory.
        capacity_bytes: of the emulated device.
        link: whose time is charged; None for memcpy.
        threads: that compute, and leave the other processors to those that copy; None: torch's own number.
        keep: where the steady step's trace and its plan go; None: nowhere.
    """

    network: str
    options: dict[str, int | str]
    kind: Kind
    capacity_bytes: int
    link: str | None = None
    threads: int | None = None
    keep: str | None = None


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step: its length, its loss, whether a plan drove it to its end, and what swapping did in it.

    `stood_ns` is how long ops stood still: for fault services, copies and room. `rung` is that of the ladder it ran on.
    """

    duration_ns: int
    loss_hex: str
    followed: bool
    evictions: int
    on_demand_swap_ins: int
    swap_in_bytes: int
    swap_out_bytes: int
    stood_ns: int
    rung: str


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What happened.

    Attributes:
        steps: those that ended.
        error: why it ran out of memory; None when all steps ended.
        needed_bytes: the most that tensors took in the last step.
        peak_bytes: the most of the device that was taken in it.
        pinned_bytes: of chunks, the most in it that never leaves.
        rung: of the ladder, at the end.
    """

    steps: list[Step]
    error: str | None
    needed_bytes: int
    peak_bytes: int
    pinned_bytes: int
    rung: str


class Trainee:
    """A process that trains.

    Attributes:
        runs: it has not run out of memory.
        rung: of the ladder that its last step ran on.
    """

    def __init__(self, specification: Specification) -> None:
        """Starts it; its first step waits until it is asked for."""
        self._specification = specification
        self.runs, self.rung = True, ""
        self._folder = tempfile.TemporaryDirectory()
        asked, self._written, self._log = (Path(self._folder.name, name) for name in ("asked.json", "run.json", "log"))
        asked.write_bytes(msgspec.json.encode(specification))
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(asked), str(self._written)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def __enter__(self) -> "Trainee":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()

    def step(self) -> None:
        """One step, from its beginning to its end; nothing once it has run out of memory."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self.runs = False
            return
        for line in self._process.stdout:  # libraries print too
            if line.startswith(_DONE):
                self.rung = line.removeprefix(_DONE).strip()
                return
        self.runs = False

    def finish(self) -> Run:
        """What happened; a process that died otherwise than by want of memory ends the benchmark."""
        self._process.communicate()
        if not self._written.exists():
            raise SystemExit(f"{self._specification} did not finish:\n{self._log.read_text()[-2000:]}")
        return msgspec.json.decode(self._written.read_bytes(), type=Run)


def run(specification: Specification, steps: int) -> Run:
    """As many steps, unless it runs out of memory before."""
    with Trainee(specification) as trainee:
        for _ in range(steps):
            trainee.step()
        return trainee.finish()


def trace_file(folder: str) -> Path:
    """The trace that a run with this `keep` leaves there."""
    return Path(folder, "step.trace")


def plan_file(folder: str) -> Path:
    """Likewise its plan, where it had one."""
    return Path(folder, "step.plan")


def _workload(specification: Specification) -> Workload:
    from networks import NETWORKS

    torch.manual_seed(0)
    workload = NETWORKS[specification.network](**specification.options)
    if specification.kind == "checkpointing":
        for module in workload.modules:
            # transformers' own: a region a layer.
            module.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
    torch.manual_seed(0)  # of dropout: whatever the weights took from the generator
    return workload


@contextmanager
def _session(specification: Specification, workload: Workload) -> Iterator[umadvise.session]:
    """Not of "plain"."""
    device = umadvise.EmulatedDevice(capacity=specification.capacity_bytes, link=specification.link)
    policy = SESSION_POLICY[specification.kind]
    if specification.kind != "no advice":
        with umadvise.session(workload.modules, workload.optimizers, device=device, policy=policy) as session:
            yield session
        return
    umadvise.patch(device=device)
    for module in workload.modules:
        module.to("cuda:noadvise")
    with umadvise.session(workload.modules, workload.optimizers, policy=policy) as session:
        torch.cuda.set_unified("noadvise")  # type: ignore[attr-defined]  # patch() added it
        yield session
    umadvise.unpatch()


def _train(specification: Specification, written: Path) -> None:
    """Trains, writes what happened, and ends the process."""
    workload = _workload(specification)
    if specification.kind == "plain":
        return _train_plain(workload, written)
    steps: list[Step] = []
    error: str | None = None
    with _session(specification, workload) as session:
        try:
            for _ in sys.stdin:
                steps.append(_step(session, workload))
                print(_DONE, steps[-1].rung, flush=True)
        except (torch.OutOfMemoryError, umadvise.errors.BudgetError) as raised:
            error = str(raised)
        stats, swap = session.memory_stats(), session.swap_counters()
        if specification.keep is not None and error is None:
            _keep(session, specification.keep)
        found = Run(
            steps=steps,
            error=error,
            needed_bytes=stats.requested_peak_bytes,
            peak_bytes=max(stats.resident_peak_bytes or 0, swap.used_peak_bytes),
            pinned_bytes=swap.pinned_peak_bytes,
            rung=session.rung,
        )
        written.write_bytes(msgspec.json.encode(found))
        os._exit(0)  # the session would give every tensor back, for which the host needs as much memory again


def _train_plain(workload: Workload, written: Path) -> None:
    steps: list[Step] = []
    for _ in sys.stdin:
        start_ns = time.perf_counter_ns()
        loss = workload.step()
        duration_ns = time.perf_counter_ns() - start_ns
        assert isinstance(loss, torch.Tensor)
        steps.append(
            Step(
                duration_ns=duration_ns,
                loss_hex=float(loss.item()).hex(),
                followed=False,
                evictions=0,
                on_demand_swap_ins=0,
                swap_in_bytes=0,
                swap_out_bytes=0,
                stood_ns=0,
                rung="",
            )
        )
        print(_DONE, flush=True)
    found = Run(steps=steps, error=None, needed_bytes=0, peak_bytes=0, pinned_bytes=0, rung="")
    written.write_bytes(msgspec.json.encode(found))


def _step(session: umadvise.session, workload: Workload) -> Step:
    before, served_ns = session.swap_counters(), session.counters().fault_service_ns or 0
    start_ns = time.perf_counter_ns()
    with session.step():
        rung = session.rung
        loss = workload.step()
    duration_ns, after = time.perf_counter_ns() - start_ns, session.swap_counters()
    served_ns = (session.counters().fault_service_ns or 0) - served_ns
    waited_ns = after.wait_copy_ns + after.wait_room_ns - before.wait_copy_ns - before.wait_room_ns
    assert isinstance(loss, torch.Tensor)
    return Step(
        duration_ns=duration_ns,
        loss_hex=float(loss.item()).hex(),
        followed=after.programs_followed > before.programs_followed,
        evictions=after.evictions - before.evictions,
        on_demand_swap_ins=after.on_demand_swap_ins - before.on_demand_swap_ins,
        swap_in_bytes=after.swap_in_bytes - before.swap_in_bytes,
        swap_out_bytes=after.swap_out_bytes - before.swap_out_bytes,
        stood_ns=served_ns + waited_ns,
        rung=rung,
    )


def _keep(session: umadvise.session, folder: str) -> None:
    """The step as it was planned for, so that it can be simulated."""
    if session.planned_step is not None:
        trace_io.write(session.planned_step, trace_file(folder))
    if session.plan is not None:
        plan_io.write(session.plan, plan_file(folder))


def main() -> None:
    """Trains as the first file says, and writes what happened to the second."""
    sys.path.insert(0, str(EXAMPLES))
    asked, written = map(Path, sys.argv[1:])
    specification = msgspec.json.decode(asked.read_bytes(), type=Specification)
    if specification.threads is not None:
        torch.set_num_threads(specification.threads)
    _train(specification, written)


if __name__ == "__main__":
    main()
