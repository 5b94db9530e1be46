"""What runs on a card: what a step of each batch takes on each rung of the ladder, and the largest that runs there."""

from umadvise.records.counters import Count, Record

SCHEMA = "umadvise.fit/1"


class RungFit(Record, frozen=True):
    """One batch on one rung. Where `problem` says why it does not run, all numbers are None.

    Attributes:
        rung: the rung of the ladder.
        problem: why the step does not run so; None where it does.
        step_ns: predicted length of a steady step in nanoseconds.
        times_unlimited: length of the step as a multiple of that with everything on the device, however much that is.
        samples_per_s: samples of the batch that are trained in a second.
    """

    rung: str
    problem: str | None = None
    step_ns: Count | None = None
    times_unlimited: float | None = None
    samples_per_s: float | None = None


class BatchFit(Record, frozen=True):
    """One batch on each rung.

    Attributes:
        batch: samples of a step.
        peak_bytes: most bytes of tensors that are alive at once.
        unlimited_ns: nanoseconds of the step with everything on the device.
        rungs: what it takes on each rung.
    """

    batch: Count
    peak_bytes: Count
    unlimited_ns: Count
    rungs: tuple[RungFit, ...]

    def on(self, rung: str) -> RungFit:
        """What it takes on one rung."""
        return next(each for each in self.rungs if each.rung == rung)


class LargestFit(Record, frozen=True):
    """The largest batch of a rung, of those that were looked at.

    Attributes:
        rung: the rung of the ladder.
        batch: the largest batch that runs; None where none does.
        more: whether larger ones may run too: it is the largest that was looked at.
    """

    rung: str
    batch: Count | None
    more: bool


class FitReport(Record, frozen=True, tag_field="schema", tag=SCHEMA):
    """What runs on a card.

    Attributes:
        workload: name of what trains.
        device: name of the device.
        emulated: whether it is umadvise's emulated device, with the device's times.
        budget_bytes: bytes that tensors may take on the device.
        umadvise_version: version of this package that predicted.
        largest: the largest batch of each rung.
        batches: the batches that were asked for, from the smallest up.
    """

    workload: str
    device: str
    emulated: bool
    budget_bytes: Count
    umadvise_version: str
    largest: tuple[LargestFit, ...]
    batches: tuple[BatchFit, ...]
