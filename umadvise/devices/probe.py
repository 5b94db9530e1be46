"""Measuring the device at hand: a device file of this machine.

The link is measured with copies of page-locked memory; what only NVML can tell is asked of it where it is there. What
nobody can know here stays unknown, with the reason as its source.
"""

import math
import os
import re
from collections.abc import Sequence
from typing import Any

from umadvise import _native
from umadvise._native.abi import DeviceInfo
from umadvise._version import __version__
from umadvise.devices import catalogue, nvml
from umadvise.devices.cuda_attributes import Attribute, pci_address, read
from umadvise.errors import NvmlUnavailableError
from umadvise.records.device import SCHEMA, DeviceProfile

SIZES_BYTES = tuple(4 << shift for shift in range(10, 26, 2))
"""Copies that are timed: 4 KiB to 64 MiB. What is small shows the fixed cost, what is large the bandwidth."""
ROUNDS = 5
_COPIES_BYTES = 64 << 20
_CORE_CLOCK, _MEMORY_CLOCK = 1, 2  # nvml.h, nvmlClockType_t

Table = dict[str, Any]


def probe(device: _native.Device, *, sizes_bytes: Sequence[int] = SIZES_BYTES, rounds: int = ROUNDS) -> DeviceProfile:
    """Measures a device; takes some seconds by default, and of its memory twice the largest copy.

    Args:
        device: open device to measure.
        sizes_bytes: sizes of the copies that are timed, at least two.
        rounds: how often each copy is timed; the shortest time counts.

    Raises:
        NativeError: the device has no such memory, or its driver lacks a function.
    """
    info = device.info()
    facts = _nvml_facts(info) if info.provider == "cuda" else _emulated_facts()
    memory = {"bytes": _fact(info.total_bytes, f"cuMemGetInfo of {info.name}"), "bytes_per_s": facts["bytes_per_s"]}
    if info.provider == "emulated":
        memory["reserved_bytes"] = _fact(0, "the emulated device keeps none of its capacity for itself")
    unknown = "the driver does not tell what its arithmetic units reach"
    return catalogue.complete(
        {
            "schema": SCHEMA,
            "name": _slug(info.name),
            "label": f"{info.name}, measured",
            "memory": memory,
            "peak_flops": {"fp32": facts["fp32"]} | {dtype: _unknown(unknown) for dtype in ("tf32", "bf16", "fp16")},
            "link": {"kind": facts["link"]} | measured_link(device, info.name, sizes_bytes, rounds),
            "unified_memory": _unified_memory(info),
        }
    )


def measured_link(
    device: _native.Device, name: str, sizes_bytes: Sequence[int] = SIZES_BYTES, rounds: int = ROUNDS
) -> Table:
    """Measures both directions of the link, alone and at once; the result is tables of a device file."""

    def times(*, h2d: bool, d2h: bool) -> tuple[list[int], list[int]]:
        return _times(device, sizes_bytes, rounds, h2d=h2d, d2h=d2h)

    alone = times(h2d=True, d2h=False)[0], times(h2d=False, d2h=True)[1]
    both = times(h2d=True, d2h=True)
    source = (
        f"measured on {name} by umadvise {__version__}: best of {rounds}, "
        f"{sizes_bytes[0] >> 10} to {sizes_bytes[-1] >> 10} KiB from page-locked memory"
    )
    directions = {}
    for way, times_alone, times_both in zip(("h2d", "d2h"), alone, both, strict=True):
        fixed_ns, bytes_per_s = fit(sizes_bytes, times_alone)
        # Two directions that do not disturb each other measure the same, give or take: never more than one alone.
        both_bytes_per_s = min(fit(sizes_bytes, times_both)[1], bytes_per_s)
        directions[way] = {
            "fixed_ns": _fact(round(fixed_ns), source),
            "bytes_per_s": _fact(bytes_per_s, source),
            "both_bytes_per_s": _fact(both_bytes_per_s, f"{source}, while the other direction copies"),
        }
    return directions


def fit(sizes_bytes: Sequence[int], times_ns: Sequence[float]) -> tuple[float, float]:
    """The fixed time in nanoseconds and the bytes a second that describe measured copies best.

    Least squares of the relative errors of fixed + bytes / speed, so that small copies count as much as large ones. A
    fixed cost is at least 0 and less than the shortest time.
    """
    ones = [1 / time for time in times_ns]
    slopes = [size / time for size, time in zip(sizes_bytes, times_ns, strict=True)]
    one_one, one_slope, slope_slope = _dot(ones, ones), _dot(ones, slopes), _dot(slopes, slopes)
    one, slope = math.fsum(ones), math.fsum(slopes)
    fixed_ns = (one * slope_slope - slope * one_slope) / (one_one * slope_slope - one_slope**2)
    fixed_ns = min(max(0.0, fixed_ns), min(times_ns) * (1 - 1e-6))
    return fixed_ns, 1e9 * slope_slope / (slope - fixed_ns * one_slope)


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return math.fsum(x * y for x, y in zip(left, right, strict=True))


def _times(
    device: _native.Device, sizes_bytes: Sequence[int], rounds_: int, *, h2d: bool, d2h: bool
) -> tuple[list[int], list[int]]:
    """The shortest time of one copy of each size, to the device and to the host; empty for what was not asked."""
    best: tuple[list[int], list[int]] = ([], [])
    for size in sizes_bytes:
        copies = min(32, max(2, _COPIES_BYTES // size))
        rounds = [device.measure_link(size, copies, h2d=h2d, d2h=d2h) for _ in range(rounds_)]
        for way in (0, 1):
            times = [each for each in (times[way] for times in rounds) if each is not None]
            if times:
                best[way].append(max(1, min(times)))
    return best


def _emulated_facts() -> Table:
    nothing = _unknown("an emulated device computes on this machine's processors")
    return {"link": "host-memory", "bytes_per_s": nothing, "fp32": nothing}


def _nvml_facts(info: DeviceInfo) -> Table:
    """Link, memory bandwidth and arithmetic of a CUDA device, as far as NVML (nvidia-ml-py) tells."""
    facts = {"link": "unknown"} | dict.fromkeys(("bytes_per_s", "fp32"), _unknown("NVML does not tell"))
    try:
        with nvml.opened() as opened:
            card = _card(opened, info)
            return facts if card is None else facts | _asked(card)
    except NvmlUnavailableError as error:
        reason = _unknown(str(error))
        return facts | {"bytes_per_s": reason, "fp32": reason}


def _card(opened: nvml.Nvml, info: DeviceInfo) -> nvml.Card | None:
    """The card in the device's slot; where the driver does not tell the slot, the first of its name: they are alike."""
    address = pci_address(info.ordinal)
    card = None if address is None else opened.card_at(address)
    return card or next((each for each in opened.cards() if each.name == info.name), None)


def _asked(card: nvml.Card) -> Table:
    facts: Table = {}
    link = card.link()
    if link["max_generation"] and link["max_width"]:
        facts["link"] = f"pcie{link['max_generation']}-x{link['max_width']}"
    memory_mhz, bits = (
        card.number("nvmlDeviceGetMaxClockInfo", _MEMORY_CLOCK),
        card.number("nvmlDeviceGetMemoryBusWidth"),
    )
    if memory_mhz and bits:
        source = f"NVML: {memory_mhz} MHz x 2 x {bits} bits"
        facts["bytes_per_s"] = _fact(memory_mhz * 1e6 * 2 * bits / 8, source, uncertain=True)
    core_mhz, cores = card.number("nvmlDeviceGetMaxClockInfo", _CORE_CLOCK), card.number("nvmlDeviceGetNumGpuCores")
    if core_mhz and cores:
        source = f"NVML: {cores} cores x {core_mhz} MHz x 2; the clock is lower under load"
        facts["fp32"] = _fact(cores * core_mhz * 1e6 * 2, source, uncertain=True)
    return facts


def _unified_memory(info: DeviceInfo) -> Table:
    known = {1: True, 0: False, None: None}[info.concurrent_managed]
    supported = f"concurrent managed access of {info.name} (CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)"
    if info.provider == "emulated":
        coherent = _fact(False, "an emulated device has page tables of its own")
    else:
        source = f"CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES of {info.name}"
        value = read(info.ordinal, Attribute.PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES)
        coherent = _unknown(source) if value is None else _fact(value == 1, source)
    return {
        "supported": _unknown(supported) if known is None else _fact(known, supported),
        "coherent": coherent,
        "system_page_bytes": _fact(os.sysconf("SC_PAGE_SIZE"), "sysconf(_SC_PAGE_SIZE)"),
    }


def _fact(value: float, source: str, *, uncertain: bool = False) -> Table:
    return {"value": value, "source": source, "uncertain": uncertain}


def _unknown(source: str) -> Table:
    return {"source": source}


def _slug(name: str) -> str:
    """A device's own name as the catalogue writes names."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:64] or "device"
