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
from typing import Any, Literal

import msgspec
import torch
from harness import asked, available_bytes

import umadvise
from umadvise.recording.workload import Workload

WARM_UP = 12
"""Steps that are not measured: the first makes the optimizer's state, others are recorded and planned, and more map
what they take until memory lies as a step needs it (csrc/memory/layout.h)."""
_BLOCK_BYTES = 2 << 20
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


class TraineeTask(msgspec.Struct, frozen=True, kw_only=True):
    """What to train, and where.

    Attributes:
        network: a factory of examples/networks.
        options: arguments of the factory.
        kind: the kind of memory.
        capacity_bytes: memory of the emulated device.
        link: the device of the catalogue with the link that is charged; None for memcpy.
        threads: threads that compute, and leave the other processors to those that copy; None: torch's own number.
    """

    network: str
    options: dict[str, int | str]
    kind: Kind
    capacity_bytes: int
    link: str | None = None
    threads: int | None = None


class TraineeStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step: its length, its loss, and the rung of the ladder that it ran on."""

    duration_ns: int
    loss_hex: str
    rung: str = ""


class TraineeRun(msgspec.Struct, frozen=True, kw_only=True):
    """What happened.

    Attributes:
        steps: those that ended.
        error: why it ran out of memory; None when all steps ended.
        needed_bytes: the most that tensors took in the last step.
        rung: the rung of the ladder at the end.
    """

    steps: list[TraineeStep]
    error: str | None = None
    needed_bytes: int = 0
    rung: str = ""

    def durations_s(self, first: int = 0) -> list[float]:
        """Seconds of each step from one on, which are counted from 0."""
        return [step.duration_ns / 1e9 for step in self.steps[first:]]


class Trainee:
    """A process that trains.

    Attributes:
        runs: it has not run out of memory.
        rung: the rung of the ladder that its last step ran on.
        last_s: the seconds of its last step.
    """

    def __init__(self, specification: TraineeTask) -> None:
        """Starts it; its first step waits until it is asked for."""
        self._specification = specification
        self.runs, self.rung, self.last_s = True, "", 0.0
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

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()

    def step(self, times: int = 1) -> None:
        """Steps, each from its beginning to its end; nothing once it has run out of memory."""
        for _ in range(times):
            begun = time.perf_counter()
            answer = asked(self._process, mark=_DONE)  # libraries print too
            self.runs = answer != ""
            if self.runs:
                self.rung, self.last_s = answer.removeprefix(_DONE).strip(), time.perf_counter() - begun

    def finish(self) -> TraineeRun:
        """What happened; a process that died otherwise than by want of memory ends the benchmark."""
        self._process.communicate()
        if not self._written.exists():
            raise SystemExit(f"{self._specification} did not finish:\n{self._log.read_text()[-2000:]}")
        return msgspec.json.decode(self._written.read_bytes(), type=TraineeRun)


def run(specification: TraineeTask, steps: int) -> TraineeRun:
    """As many steps, unless it runs out of memory before."""
    with Trainee(specification) as trainee:
        trainee.step(steps)
        return trainee.finish()


def task(network: str, options: dict[str, int | str], kind: Kind, size_bytes: int, **others: Any) -> TraineeTask:
    """A task on a device of at least so many bytes, in whole blocks.

    Args:
        network: name of a factory of examples/networks.
        options: arguments of the factory.
        kind: the kind of memory.
        size_bytes: size of device memory.
        others: other fields of the task.
    """
    capacity_bytes = -(-size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES
    return TraineeTask(network=network, options=options, kind=kind, capacity_bytes=capacity_bytes, **others)


def needed_bytes(network: str, options: dict[str, int | str], kind: Kind = "resident", **others: Any) -> int:
    """What training takes of unlimited memory: of two steps, as the first one makes the optimizer's state."""
    return run(task(network, options, kind, available_bytes() * 2 // 3, **others), 2).needed_bytes


def _workload(specification: TraineeTask) -> Workload:
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
def _session(specification: TraineeTask, workload: Workload) -> Iterator[umadvise.session]:
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


def _train(specification: TraineeTask, written: Path) -> None:
    """Trains, writes what happened, and ends the process."""
    workload = _workload(specification)
    if specification.kind == "plain":
        written.write_bytes(msgspec.json.encode(_train_plain(workload)))
        return
    steps: list[TraineeStep] = []
    error: str | None = None
    with _session(specification, workload) as session:
        try:
            for _ in sys.stdin:
                steps.append(_step(session, workload))
                print(_DONE, steps[-1].rung, flush=True)
        except (torch.OutOfMemoryError, umadvise.errors.BudgetError) as raised:
            error = str(raised)
        found = TraineeRun(
            steps=steps,
            error=error,
            needed_bytes=session.memory_stats().requested_peak_bytes,
            rung=session.rung,
        )
        written.write_bytes(msgspec.json.encode(found))
        os._exit(0)  # the session would give every tensor back, for which the host needs as much memory again


def _train_plain(workload: Workload) -> TraineeRun:
    steps: list[TraineeStep] = []
    for _ in sys.stdin:
        start_ns = time.perf_counter_ns()
        loss = workload.step()
        duration_ns = time.perf_counter_ns() - start_ns
        assert isinstance(loss, torch.Tensor)
        steps.append(TraineeStep(duration_ns=duration_ns, loss_hex=float(loss.item()).hex()))
        print(_DONE, flush=True)
    return TraineeRun(steps=steps)


def _step(session: umadvise.session, workload: Workload) -> TraineeStep:
    start_ns = time.perf_counter_ns()
    with session.step():
        rung = session.rung
        loss = workload.step()
    duration_ns = time.perf_counter_ns() - start_ns
    assert isinstance(loss, torch.Tensor)
    return TraineeStep(duration_ns=duration_ns, loss_hex=float(loss.item()).hex(), rung=rung)


def main() -> None:
    """Trains as the first file says, and writes what happened to the second."""
    asked, written = map(Path, sys.argv[1:])
    specification = msgspec.json.decode(asked.read_bytes(), type=TraineeTask)
    if specification.threads is not None:
        torch.set_num_threads(specification.threads)
    _train(specification, written)


if __name__ == "__main__":
    main()
