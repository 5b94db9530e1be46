"""What watches one training loop, together: names of modules, clock of steps, recorder, and the fault profile."""

import torch

from umadvise._native.abi import Counting
from umadvise._version import __version__
from umadvise.errors import StateError
from umadvise.records.fault_profile import FaultProfile, RunEnvironment, RungChange, RungPrediction
from umadvise.reports.counters.builder import ProfileBuilder
from umadvise.torch_seam.runtime import Runtime
from umadvise.training.watch.device_readings import DeviceReader
from umadvise.training.watch.module_names import ModuleNames
from umadvise.training.watch.sampling import SAMPLE_EVERY, Sampler
from umadvise.training.watch.step_clock import StepClock
from umadvise.training.watch.trace_recorder import TraceRecorder


class Observer:
    """Watches what runs on one device, and makes the fault profile of it.

    Attributes:
        names: names of modules and of their tensors.
        reader: reader of the device.
        clock: marks of steps, and what each cost; there from `attach` on.
        recorder: recorder of the loop and of its steps.
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
            runtime: what is patched.
            script: path of the script, as the user typed it.
            sample_every: on CUDA the counters are those of every n-th step and the first three; 0: of none.
            policy: name of the policy, as the user typed it.
        """
        self._runtime = runtime
        self._script = script
        self._sample_every = sample_every
        self._policy = policy
        self._builder: ProfileBuilder | None = None
        self.names = ModuleNames()
        self.reader = DeviceReader(runtime.device)
        self.recorder = TraceRecorder(runtime, script or "")
        self.rungs: list[RungChange] = []

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
        self.clock = StepClock(self._runtime, self.reader, self._builder)

    def detach(self) -> None:
        """Ends it. What happened can still be had, though the device may go."""
        self.names.detach()
        if self._builder is not None:
            self.clock.stop()
        self.recorder.stop()
        self.reader.close()
        self._runtime.device.enable_events(False)

    def profile(self, predictions: tuple[RungPrediction, ...] = ()) -> FaultProfile:
        """The fault profile so far.

        Args:
            predictions: what steps would take on other rungs.

        Raises:
            StateError: nothing was watched.
        """
        if self._builder is None:
            raise StateError("nothing was watched: expected attach() first")
        readings = self.reader.now()
        return self._builder.build(
            readings.counters,
            readings.dropped_events,
            self.rungs,
            readings.sampling,
            swaps=readings.swaps,
            chunks=readings.chunks,
            placed=self.reader.placed(),
            predictions=predictions,
        )

    def _environment(self) -> RunEnvironment:
        info = self._runtime.device.info()
        return RunEnvironment(
            device_name=info.name,
            provider="emulated" if self._runtime.emulated else "cuda",
            counting="ordered" if info.counting == Counting.ORDERED else "raw",
            capacity_bytes=info.total_bytes,
            budget_bytes=self._runtime.budget_bytes,
            policy=self._policy,
            umadvise_version=__version__,
            torch_version=torch.__version__,
            script=self._script,
        )
