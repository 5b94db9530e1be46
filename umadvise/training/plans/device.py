"""The device that a session plans for: its link as it is charged, or as it is measured."""

import hashlib
import logging
from dataclasses import dataclass

from umadvise import _native
from umadvise._native.abi import Small
from umadvise.devices import catalogue, probe
from umadvise.errors import NativeError
from umadvise.records.device import DeviceProfile

log = logging.getLogger("umadvise")

_SIZES_BYTES = (64 << 10, 512 << 10, 4 << 20)
_ROUNDS = 2
_PART = 4
"""A copy that is timed takes at most this part of the memory that is free."""
_STAND_IN = "v100-16gb"

_measured: dict[str, DeviceProfile] = {}


@dataclass(frozen=True)
class PlanningDevice:
    """A profile, and a name for plans that were made with it.

    Attributes:
        profile: profile of the device, whose link copies.
        key: text that is equal where plans made for one are good for the other. Measured numbers are never the same
            twice, and make no plan wrong: such a device goes by its name.
        synchronous: whether an op ends before the next one begins, as on the emulated device.
        small: what tensors of half a chunk and less do.
        beside: whether ops wait for no prefetch of which they use nothing, as in virtual time.
    """

    profile: DeviceProfile
    key: str
    synchronous: bool
    small: Small = Small.STAY
    beside: bool = False


def planning_device(device: _native.Device, room_bytes: int) -> PlanningDevice:
    """Measures the link of a device, once in a process: it takes a tenth of a second, and device memory.

    Args:
        device: device to plan for. A device with a link profile is not measured.
        room_bytes: bytes of device memory that the loop may use. The copies take a part of the bytes that are unused
            now, so this function is called before the loop's first step.
    """
    charged: DeviceProfile | None = device.link_profile
    info = device.info()
    synchronous = info.provider == "emulated"
    if charged is not None:
        key = hashlib.sha256(catalogue.encode(charged)).hexdigest()
        return PlanningDevice(charged, key, synchronous, device.small, device.keeps_time)
    key = f"measured {info.provider} {info.name}"
    if key not in _measured:
        unused_bytes = min(info.free_bytes, room_bytes - (device.memory().resident_bytes or 0))
        sizes = [size for size in _SIZES_BYTES if size <= unused_bytes // _PART]
        if len(sizes) < 2:  # a later session may have more memory, and measures then
            return PlanningDevice(catalogue.load_device(_STAND_IN), key, synchronous, device.small)
        try:
            _measured[key] = probe.probe(device, sizes_bytes=sizes, rounds=_ROUNDS)
        except NativeError as error:
            log.warning("the link cannot be measured (%s): plans are made for that of %s", error, _STAND_IN)
            _measured[key] = catalogue.load_device(_STAND_IN)
    return PlanningDevice(_measured[key], key, synchronous, device.small)
