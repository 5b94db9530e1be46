"""What holds a step up, whatever simulated it."""

from umadvise.records.counters import Count, Record


class Stalls(Record, frozen=True):
    """How long the compute queue stood still in a step, by cause, in nanoseconds."""

    fault_ns: Count = 0
    wait_copy_ns: Count = 0
    wait_room_ns: Count = 0
    remote_ns: Count = 0

    @property
    def total_ns(self) -> int:
        """All of them."""
        return self.fault_ns + self.wait_copy_ns + self.wait_room_ns + self.remote_ns
