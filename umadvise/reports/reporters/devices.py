"""The device catalogue for people: all of it as a table, one device with every source."""

from collections.abc import Iterable

import msgspec
from rich.text import Text

from umadvise.records.device import DTYPES, DeviceProfile, Fact, FactOrNone
from umadvise.records.units import format_bytes, format_duration_ns
from umadvise.reports.reporters.printing import DEFAULT_WIDTH, LEAST_WIDTH, new_grid, printed

MARK = "?"
"""Behind what is uncertain."""


def render_list(devices: Iterable[DeviceProfile], width: int = DEFAULT_WIDTH) -> str:
    """One line a device: memory, dense peak TFLOP/s, link, and whether it pages unified memory."""
    grid = new_grid("", ("device",), ("GiB", "GB/s", *DTYPES))
    grid.add_column("link, GB/s h2d / d2h", no_wrap=True)
    grid.add_column("paging", no_wrap=True)
    for device in devices:
        peaks = [_scaled(getattr(device.peak_flops, dtype), 1e12) for dtype in DTYPES]
        speeds = f"{_scaled(device.link.h2d.bytes_per_s, 1e9)} / {_scaled(device.link.d2h.bytes_per_s, 1e9)}"
        grid.add_row(
            device.name,
            _scaled(device.memory.bytes, 1 << 30),
            _scaled(device.memory.bytes_per_s, 1e9),
            *peaks,
            f"{device.link.kind} {speeds}",
            _paging(device),
        )
    note = f"peaks in dense TFLOP/s; {MARK} uncertain; `umadvise devices NAME` shows where each number comes from"
    return printed([grid, Text(), Text(note)], max(width, LEAST_WIDTH))


def render_device(device: DeviceProfile, width: int = DEFAULT_WIDTH) -> str:
    """Every fact of a device with its source."""
    heading = f"{device.name}: {device.label}"
    also = [f"also called {', '.join(device.aliases)}"] if device.aliases else []
    grid = new_grid("", ("fact",), ("value",))
    grid.add_column("source")
    for name, fact in _facts(device, ""):
        grid.add_row(name, _value(name, fact) + (f" {MARK}" if fact.uncertain else "  "), fact.source)
    lines = [Text(line) for line in (heading, *also, f"link {device.link.kind}; {MARK} uncertain, - unknown or none")]
    return printed([*lines, Text(), grid], max(width, LEAST_WIDTH))


def _facts(record: msgspec.Struct, prefix: str) -> Iterable[tuple[str, Fact[object] | FactOrNone[object]]]:
    for field in record.__struct_fields__:
        value = getattr(record, field)
        if isinstance(value, (Fact, FactOrNone)):
            yield prefix + field, value
        elif isinstance(value, msgspec.Struct):
            yield from _facts(value, f"{prefix}{field}.")


def _value(name: str, fact: Fact[object] | FactOrNone[object]) -> str:
    value = fact.value
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        if name.endswith("bytes"):
            return format_bytes(value)
        return format_duration_ns(value) if name.endswith("_ns") else str(value)
    assert isinstance(value, float)
    if name.endswith("bytes_per_s"):
        return f"{value / 1e9:g} GB/s"
    return f"{value / 1e12:g} TFLOP/s" if name.startswith("peak_flops") else f"{value:g}"


def _scaled(fact: Fact[int] | Fact[float] | FactOrNone[float], unit: float) -> str:
    if fact.value is None:
        return "-"
    return f"{fact.value / unit:.4g}{MARK if fact.uncertain else ''}"


def _paging(device: DeviceProfile) -> str:
    if device.unified_memory.supported.value is None:
        return "unknown"
    return "no" if not device.pages_managed_memory else "yes, coherent" if device.coherent else "yes"
