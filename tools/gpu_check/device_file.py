"""The link by size and a device file for the catalogue, as JSON: `python device_file.py cuda [driver_costs.json]`.

What driver_costs.py has measured takes the place of the catalogue's guesses.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from sizes import by_kind

import umadvise
from umadvise._native import Device
from umadvise.devices import catalogue, probe
from umadvise.devices.open_device import open_device
from umadvise.records.device import DeviceProfile, Fact

SIZES_BYTES = by_kind(cuda=(*probe.SIZES_BYTES, 256 << 20), emulated=(64 << 10, 1 << 20, 4 << 20))
ROUNDS = by_kind(cuda=3, emulated=1)
CAPACITY = "256MiB"
"""Of the emulated device."""
_BLOCK_BYTES = 2 << 20
_MOST_COPIED_BYTES = 256 << 20
"""In a round, of each size."""

_WAYS = {"h2d": (True, False), "d2h": (False, True), "both": (True, True)}


def curves(device: Device, kind: str) -> dict[str, list[dict[str, int]]]:
    """The shortest time of one copy of each size: to the device, to the host, and of each while both are copied."""
    found: dict[str, list[dict[str, int]]] = {"h2d": [], "d2h": [], "both_h2d": [], "both_d2h": []}
    for size in SIZES_BYTES[kind]:
        copies = min(16, max(2, _MOST_COPIED_BYTES // size))
        for way, (h2d, d2h) in _WAYS.items():
            rounds = [device.measure_link(size, copies, h2d=h2d, d2h=d2h) for _ in range(ROUNDS[kind])]
            for direction, index in (("h2d", 0), ("d2h", 1)):
                times = [each for each in (times[index] for times in rounds) if each is not None]
                if times:
                    name = direction if way != "both" else f"both_{direction}"
                    found[name].append({"bytes": size, "ns": min(times)})
    return found


def with_costs(profile: DeviceProfile, costs: dict[str, Any]) -> DeviceProfile:
    """The profile with the calls as they were measured; a part that could not be measured changes nothing."""
    source = (
        f"measured on {profile.label.removesuffix(', measured')} by umadvise {umadvise.__version__}: medians by size"
    )
    facts: dict[str, Fact[int]] = {}
    if isinstance(rows := costs.get("prefetch"), list):
        call_ns, bytes_per_s = _fitted(rows, "to_device_call")
        facts["prefetch_call_ns"] = Fact(round(call_ns), source)
        facts["prefetch_block_ns"] = Fact(round(_BLOCK_BYTES / bytes_per_s * 1e9), source)
    if isinstance(rows := costs.get("advice"), list):
        call_ns, _ = _fitted(rows, "set_preferred_location")
        facts["advise_call_ns"] = Fact(round(call_ns), source)
        _, bytes_per_s = _fitted(rows, "set_read_mostly")
        facts["read_mostly_block_ns"] = Fact(round(_BLOCK_BYTES / bytes_per_s * 1e9), source)
    replaced = msgspec.structs.replace(profile.unified_memory.costs, **facts)
    unified = msgspec.structs.replace(profile.unified_memory, costs=replaced)
    return msgspec.structs.replace(profile, unified_memory=unified)


def _fitted(rows: Sequence[dict[str, Any]], name: str) -> tuple[float, float]:
    """The fixed part in ns, and the bytes a second of the rest."""
    return probe.fit([row["bytes"] for row in rows], [max(1, row["median_ns"][name]) for row in rows])


def main() -> int:
    """Prints both."""
    kind = sys.argv[1]
    costs = json.loads(Path(sys.argv[2]).read_text()) if len(sys.argv) > 2 else {}
    device = open_device("cuda" if kind == "cuda" else umadvise.EmulatedDevice(capacity=CAPACITY))
    measured = curves(device, kind)
    profile = probe.probe(device, sizes_bytes=SIZES_BYTES[kind][: -1 if kind == "cuda" else None], rounds=ROUNDS[kind])
    file = catalogue.encode(with_costs(profile, costs))
    catalogue.decode(file)  # what cannot be read again is no device file
    print(json.dumps({"link": measured, "device_file": file.decode()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
