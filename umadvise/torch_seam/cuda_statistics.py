"""Our memory's statistics in the words of `torch.cuda.memory_stats()`.

All of its keys are there, because frameworks and `torch.cuda.memory_summary()` read them by name. What only a caching
allocator has (pools by size, segments, splits, retries) is 0, as torch itself has it where its backend is CUDA's own
allocator.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from umadvise.torch_seam.memory_peaks import Reading

Nested = dict[str, Any]

_BY_POOL = (
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)
_NOTHING = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
_NEVER: Nested = {
    "oversize_allocations": _NOTHING,
    "oversize_segments": _NOTHING,
    "reserved_bytes_by_private_pools": {},
    "max_split_size": -1,  # torch's word for no limit
    "num_alloc_retries": 0,
    "num_device_alloc": 0,
    "num_device_free": 0,
    "num_oom_rejections": 0,
    "num_sync_all_streams": 0,
}


@dataclass(frozen=True, slots=True)
class Totals:
    """What came and went; `reset_accumulated_memory_stats` lets it count no more."""

    allocations: int = 0
    frees: int = 0
    bytes: int = 0
    freed_bytes: int = 0
    failures: int = 0

    @classmethod
    def of(cls, readings: Iterable[Reading]) -> "Totals":
        """Totals of everything that was allocated and freed on some devices so far."""
        counts = [
            (
                reading.held.allocation_count,
                reading.held.free_count,
                reading.history.requested_bytes,
                reading.history.requested_bytes - reading.held.requested_bytes,
                reading.history.failure_count,
            )
            for reading in readings
        ]
        return cls(*map(sum, zip(*counts, strict=True))) if counts else cls()


def nested(readings: Iterable[Reading], before: Totals) -> Nested:
    """`torch.cuda.memory_stats_as_nested_dict()` of some devices of ours together.

    Allocated is what tensors asked for, which is also what is in use; reserved is what the driver gave for them. A peak
    of several devices is at most the sum of theirs, which it gives.

    Args:
        readings: one reading for each device.
        before: totals at the last reset, which are taken off what is counted since.
    """
    readings = list(readings)
    now = Totals.of(readings)

    def level(current: str, peak: str, allocated: int, freed: int) -> dict[str, int]:
        found = {"current": 0, "peak": 0}
        for reading in readings:
            found["current"] += getattr(reading.held, current)
            found["peak"] += getattr(reading.history if peak.startswith("live") else reading.held, peak)
        return {**found, "allocated": allocated, "freed": freed}

    counted = level(
        "live_allocations", "live_allocations_peak", now.allocations - before.allocations, now.frees - before.frees
    )
    sizes = level(
        "requested_bytes", "requested_peak_bytes", now.bytes - before.bytes, now.freed_bytes - before.freed_bytes
    )
    known = {
        "reserved_bytes": level("reserved_bytes", "reserved_peak_bytes", 0, 0),
        **dict.fromkeys(("allocation", "active"), counted),
        **dict.fromkeys(("allocated_bytes", "active_bytes", "requested_bytes"), sizes),
    }
    by_pool = {
        name: {"all": known.get(name, _NOTHING), "large_pool": _NOTHING, "small_pool": _NOTHING} for name in _BY_POOL
    }
    return {**by_pool, **_NEVER, "num_ooms": now.failures - before.failures}


def flat(statistics: Nested, prefix: str = "") -> dict[str, int]:
    """`torch.cuda.memory_stats()` of the same: "allocated_bytes.all.current" and its kin, sorted."""
    found: dict[str, int] = {}
    for key, value in statistics.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return dict(sorted(found.items()))
