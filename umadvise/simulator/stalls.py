"""How long the ops of a simulated step stood still, by cause; the same for unified memory and for swapping."""

from umadvise.records.counters import Count, Record


class Stalls(Record, frozen=True):
    """How long the compute queue stood still in a step, in nanoseconds.

    Attributes:
        fault_ns: time in which page faults were served.
        wait_copy_ns: time until bytes had come that were on their way.
        wait_room_ns: time until device memory was free.
        remote_ns: time by which accesses over the link made ops longer.
    """

    fault_ns: Count = 0
    wait_copy_ns: Count = 0
    wait_room_ns: Count = 0
    remote_ns: Count = 0

    @property
    def total_ns(self) -> int:
        """Nanoseconds of all causes together."""
        return self.fault_ns + self.wait_copy_ns + self.wait_room_ns + self.remote_ns
