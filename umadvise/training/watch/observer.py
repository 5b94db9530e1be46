"""What watches one training loop, together: names of modules, clock of steps, recorder, and the fault profile."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from umadvise import _native
from umadvise._native.abi import Counting
from umadvise._version import __version__
from umadvise.errors import StateError
from umadvise.recording.op_timer import OpTimer
from umadvise.records.fault_profile import FaultProfile, RunEnvironment, RungChange, RungPrediction
from umadvise.reports.counters.builder import ProfileBuilder
from umadvise.reports.counters.step_picture import KnownStep
from umadvise.torch_seam.runtime import Runtime
from umadvise.torch_seam.traced import rehearsing
from umadvise.training.watch.device_readings import DeviceReader
from umadvise.training.watch.module_names import ModuleNames
from umadvise.training.watch.refused_steps import RefusedSteps
from umadvise.training.watch.sampling import SAMPLE_EVERY, Sampler
from umadvise.training.watch.step_clock import StepClock
from umadvise.training.watch.trace_recorder import TraceRecorder
from umadvise.training.watch.unmarked_steps import UnmarkedSteps


class Observer:
    """Watches what runs on one device, and makes the fault profile of it.

    Attributes:
        names: names of modules and of their tensors.
        refused: what keeps refused steps from training.
        reader: what reads the device's counters and events.
        clock: marks of the steps and what each of them cost; there from `attach` on.
        unmarked: what begins and ends steps until somebody marks them.
        recorder: what records the loop and single steps as traces.
        rungs: rungs of the ladder that steps ran on, with the reasons, for the profile.
    """

    def __init__(
        self,
        runtime: Runtime,
        script: str | None = None,
        sample_every: int = SAMPLE_EVERY,
        policy: str | None = None,
    ) -> None:
        """Prepares to watch what runs on a runtime's device; `attach` starts.

        Args:
            runtime: the patched state of the process, with its device.
            script: path of the script, as the user typed it; None in a session.
            sample_every: distance between the steps that are sampled on CUDA: the first three and every n-th; 0 samples
                none.
            policy: name of the policy, as the user typed it; None where there is none.
        """
        self._runtime = runtime
        self._script = script
        self._sample_every = sample_every
        self._policy = policy
        self._builder: ProfileBuilder | None = None
        self.names = ModuleNames()
        self.refused = RefusedSteps(runtime)
        self.unmarked = UnmarkedSteps(runtime, self.names, self.refused)
        self.reader = DeviceReader(runtime.device)
        self.recorder = TraceRecorder(runtime, script or "")
        self.rungs: list[RungChange] = []
        keeps_time = runtime.device.keeps_time
        self._timer: AbstractContextManager[Any] = OpTimer(runtime.device.link_profile) if keeps_time else nullcontext()

    def attach(self) -> None:
        """Starts to watch."""
        device = self._runtime.device
        device.enable_events(True)
        if not self._runtime.emulated:
            self.reader.sampler = Sampler(device, self._sample_every)
        readings = self.reader.begin()
        self._builder = ProfileBuilder(
            self._environment(), readings.counters, readings.swaps, sampled=self.reader.sampler is not None
        )
        self.names.attach()
        self._timer.__enter__()
        self.clock = StepClock(self._runtime, self.reader, self._builder, self.refused)
        self.refused.attach()
        self.unmarked.attach(self.clock)

    def belongs_to_session(self, policy: str) -> None:
        """Has the profile of `umadvise run` name and judge what a session of the script was given, not the command.

        Args:
            policy: name of the session's policy, as the user typed it; its budget is in force already.
        """
        self._policy, self._script = policy, None
        if self._builder is not None:
            self._builder.set_environment(self._environment())

    def detach(self) -> None:
        """Stops watching. What was seen can still be had, though the device may go."""
        self._timer.__exit__(None, None, None)
        self.unmarked.detach()
        self.names.detach()
        self.refused.detach()
        if self._builder is not None:
            self.clock.stop()
        self.recorder.stop()
        self.reader.close()
        self._runtime.device.enable_events(False)

    @contextmanager
    def rehearsing(self) -> Iterator[None]:
        """What runs until the end is no part of the training: nothing of it is watched, timed or guarded."""
        self._timer.__exit__(None, None, None)
        _native.interpose(None)
        try:
            with rehearsing():
                yield
        finally:
            _native.interpose(self._runtime.device)
            self._timer.__enter__()

    def profile(self, predictions: tuple[RungPrediction, ...] = (), known: KnownStep | None = None) -> FaultProfile:
        """The fault profile so far.

        Args:
            predictions: what steps would take on other rungs.
            known: a recorded step, for the picture of the one that was seen last.

        Raises:
            StateError: nothing was watched.
        """
        if self._builder is None:
            raise StateError("nothing was watched: expected attach() first")
        self.clock.flush()
        readings = self.reader.now()
        return self._builder.build(
            readings.counters,
            readings.dropped_events,
            self.rungs,
            readings.sampling,
            swaps=readings.swaps,
            chunks=readings.chunks,
            placed=self.reader.placed(),
            exported=self.reader.exported(),
            predictions=predictions,
            steps_are_found=self.clock.steps_are_found,
            known=known,
        )

    def _environment(self) -> RunEnvironment:
        info = self._runtime.device.info()
        return RunEnvironment(
            device_name=info.name,
            provider="emulated" if self._runtime.emulated else "cuda",
            counting="ordered" if info.counting == Counting.ORDERED else "raw",
            capacity_bytes=info.total_bytes,
            budget_bytes=self._runtime.limit_bytes,
            policy=self._policy,
            umadvise_version=__version__,
            torch_version=torch.__version__,
            script=self._script,
        )
