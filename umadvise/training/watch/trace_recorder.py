"""What is recorded of a training loop: all of it, for `trace()`, or single steps, to be planned for."""

from umadvise import _native
from umadvise.errors import StateError
from umadvise.recording import cut, live
from umadvise.recording.recorded_step import RecordedStep, recorded_step
from umadvise.records.trace import Target, Trace
from umadvise.torch_seam.runtime import Runtime


class TraceRecorder:
    """Has the device write down what runs, and makes traces of it."""

    def __init__(self, runtime: Runtime, workload: str) -> None:
        """Records nothing yet.

        Args:
            runtime: what is patched.
            workload: name of what runs, for reports.
        """
        self._device = runtime.device
        self._target: Target = "cpu" if runtime.emulated else "cuda"
        self._workload = workload
        self._device_name = ""
        self._records = False
        self._recording: _native.Recording | None = None

    def start(self) -> None:
        """Records every op, allocation, copy and fault service from now on, for the trace of the loop.

        Raises:
            StateError: somebody records already.
        """
        if self._records:
            raise StateError("this process is recorded already, by `umadvise run --record` or a session: one at a time")
        self._device.enable_events(True)
        self._device.record(True)
        self._records = True
        self._device_name = self._device.info().name

    def stop(self) -> None:
        """Ends what `start` began; does nothing where nothing is recorded."""
        if self._records:
            self._device.record(False)
            self._recording = self._device.recorded()
        self._records = False

    def trace(self, step: int | None = None) -> Trace:
        """What was recorded, until now or until `stop`: all of it, or one step that may be repeated.

        Raises:
            StateError: nothing was, or the recording is not whole.
            UsageError: there is no such step.
        """
        recording = self._device.recorded() if self._records else self._recording
        if recording is None:
            raise StateError("nothing was recorded: open the session with record=True, or use umadvise run --record")
        trace = live.trace_of(recording, target=self._target, device=self._device_name, workload=self._workload)
        return trace if step is None else cut.step(trace, step, *live.edges_of(recording, step))

    def start_step(self) -> None:
        """Records from now on, for `step`."""
        if not self._records:
            self._device.record(True)

    def stop_step(self) -> None:
        """Ends what `start_step` began; a recording of the whole loop goes on."""
        if not self._records:
            self._device.record(False)

    def step(self, number: int) -> RecordedStep:
        """A recorded step, with what is there when the next one begins.

        Raises:
            StateError: the recording is not whole.
            UsageError: nothing ran in that step.
        """
        words = {"target": self._target, "device": self._device_name, "workload": self._workload}
        return recorded_step(self._device.recorded(), number, self._device.allocations(), **words)
