"""Which device to train on, and opening it in the native core."""

import os
from dataclasses import dataclass

from umadvise import _native
from umadvise._native.abi import Counting, EmulatedOptions, Small, Status
from umadvise.devices import discard_proof
from umadvise.devices.catalogue import load_device
from umadvise.devices.link import driver_costs, native_link
from umadvise.devices.ranks import ranks
from umadvise.errors import DeviceUnavailableError, InvalidSizeError, NativeError, UsageError
from umadvise.records.device import DeviceProfile
from umadvise.records.units import format_bytes, parse_bytes

LEAST_CAPACITY_BYTES = 16 << 20
"""Of the emulated device: eight blocks, without which hardly an op's tensors are there at once."""
_WORDS = {"counting": ("ordered", "raw"), "small": ("stay", "leave")}


@dataclass(frozen=True)
class EmulatedDevice:
    """A device with real bytes, real page faults and a real capacity, in this process's memory (x86-64 Linux).

    Attributes:
        capacity: the size of the device's memory, in bytes or as text such as "2GiB"; at least 16 MiB.
        host: the most memory that pages of unified memory outside the device may take; None is what the machine has
            available.
        link: name of a device in the catalogue, or a path to its file: copies, prefetches, faults and evictions take
            at least the time that they would take there, so that policies can be compared by the clock. None is
            memory's own speed, which is faster than any link.
        clock: name of a device in the catalogue, or a path to its file: time is virtual. Copies take that of its link,
            what the driver does for unified memory its costs, and ops of a session what its roofline says, so that
            steps, swaps and waits repeat exactly; those of swaps as they are predicted. None is real time.
        counting: "ordered" counts faults by each op's arguments and repeats exactly; "raw" as threads cause them.
        small: what policies that swap do with tensors of less than 64 KiB: they "stay" on the device, up to 12 MiB of
            them, or they "leave" it like any other, in a chunk each, for tests.
        delays: the longest random delay, in microseconds, wherever the order of things is left open; for tests.
        delay_seed: seed of the random delays.
        fail_call: driver function (None for any) and n: its nth call fails, once. For tests.
    """

    capacity: int | str = "2GiB"
    host: int | str | None = None
    counting: str = "ordered"
    small: str = "stay"
    delays: int = 0
    delay_seed: int = 0
    fail_call: tuple[str | None, int] | None = None
    link: str | os.PathLike[str] | None = None
    clock: str | os.PathLike[str] | None = None

    def options(self) -> EmulatedOptions:
        """These settings as the native core takes them.

        Raises:
            UsageError: a setting that makes no sense; sizes raise InvalidSizeError.
        """
        for what, (one, other) in _WORDS.items():
            if (given := getattr(self, what)) not in (one, other):
                raise UsageError(f'unknown {what} {given!r}: expected "{one}" or "{other}"')
        if not 0 <= self.delays < 1_000_000:
            raise UsageError(f"delays of {self.delays} us: expected 0 to 999999")
        capacity_bytes = parse_bytes(self.capacity)
        if capacity_bytes < LEAST_CAPACITY_BYTES:
            raise InvalidSizeError(
                f"a capacity of {format_bytes(capacity_bytes)} is too small for an emulated device: expected at least "
                f"{format_bytes(LEAST_CAPACITY_BYTES)}"
            )
        return EmulatedOptions(
            capacity_bytes=capacity_bytes,
            host_bytes=parse_bytes(self.host) if self.host is not None else 0,
            counting=Counting[self.counting.upper()],
            delay_max_us=self.delays,
            delay_seed=self.delay_seed,
        )

    def link_profile(self) -> DeviceProfile | None:
        """The catalogue device whose link copies must pass, by its times; None without one.

        Of several processes on a host each has its part of the link.

        Raises:
            UsageError: the catalogue has no such device, or its file does not say how long ops take.
            UmadviseError: its file cannot be read, or is refused.
        """
        sharers = ranks().local_count
        if self.clock is None:
            return None if self.link is None else load_device(self.link).among(sharers)
        if self.link is not None:
            raise UsageError("link= makes copies take real time, clock= virtual time: expected one of them")
        profile = load_device(self.clock).among(sharers)
        if profile.achievable_memory_bytes_per_s is None:
            raise UsageError(f"clock={str(self.clock)!r}: the device's file has no memory bandwidth to time ops by")
        return profile

    def open(self) -> _native.Device:
        """Opens the device.

        Raises:
            NativeError: the memory is not there.
            UmadviseError: as `link_profile`.
        """
        options, profile = self.options(), self.link_profile()
        device = _native.Device.open_emulated(options)
        device.small = Small[self.small.upper()]
        if self.clock is not None and profile is not None:
            device.set_clock(native_link(profile), driver_costs(profile))
            device.keeps_time = True
        elif profile is not None:
            device.set_link(native_link(profile), driver_costs(profile))
        device.link_profile = profile
        if self.fail_call is not None:
            device.fail(*self.fail_call)
        return device


def open_device(wanted: "str | EmulatedDevice") -> _native.Device:
    """Opens "auto" (CUDA where there is one), "cuda", "cuda:<index>", "emulated", or an EmulatedDevice.

    Of several processes of a training (`devices.ranks`) each opens a device of its own, and has an equal part of the
    host's memory.

    Raises:
        DeviceUnavailableError: no CUDA device, with the reason and both ways out.
        UsageError: no such kind of device.
    """
    here = ranks()
    _native.share_host(here.local_count)
    if isinstance(wanted, EmulatedDevice):
        return wanted.open()
    if wanted == "emulated":
        return EmulatedDevice().open()
    kind, _, index = wanted.partition(":")
    if wanted != "auto" and (kind != "cuda" or not (index or "0").isdecimal()):
        raise UsageError(
            f'unknown device {wanted!r}: expected "auto", "cuda", "emulated" or umadvise.EmulatedDevice(...)'
        )
    if (reason := _native.cuda_unavailable_reason()) is not None:
        raise DeviceUnavailableError(reason)
    device = _open_cuda(int(index) if index else None, here.local_rank)
    if discard_proof.is_proved():
        device.set_discards(True)
    return device


def _open_cuda(index: int | None, local_rank: int) -> _native.Device:
    """Without an index a rank's own GPU, or the only one that it can see."""
    if index is not None or local_rank == 0:
        return _native.Device.open_cuda(index or 0)
    try:
        return _native.Device.open_cuda(local_rank)
    except NativeError as error:
        if error.code != Status.INVALID_ARGUMENT:
            raise
        return _native.Device.open_cuda(0)
