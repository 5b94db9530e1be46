"""Which device to train on, and opening it in the native core."""

from dataclasses import dataclass

from umadvise import _native
from umadvise._abi import Counting, EmulatedOptions
from umadvise.errors import DeviceUnavailableError, UsageError
from umadvise.units import parse_bytes


@dataclass(frozen=True)
class EmulatedDevice:
    """A device with real bytes, real page faults and a real capacity, in this process's memory (x86-64 Linux).

    Attributes:
        capacity: of its memory, in bytes or as text such as "2GiB"; at least 16 MiB.
        host: the most memory that pages outside the device may take; None is what the machine has available.
        counting: "ordered" counts faults by each op's arguments and repeats exactly; "raw" as threads cause them.
        delays: up to so many microseconds wherever the order of things is left open, for tests.
        delay_seed: of those delays.
        fail_call: driver function (None for any) and n: its nth call fails, once. For tests.
    """

    capacity: int | str = "2GiB"
    host: int | str | None = None
    counting: str = "ordered"
    delays: int = 0
    delay_seed: int = 0
    fail_call: tuple[str | None, int] | None = None

    def options(self) -> EmulatedOptions:
        """These settings as the native core takes them.

        Raises:
            UsageError: a setting that makes no sense; sizes raise InvalidSizeError.
        """
        if self.counting not in ("ordered", "raw"):
            raise UsageError(f'unknown counting {self.counting!r}: expected "ordered" or "raw"')
        if not 0 <= self.delays < 1_000_000:
            raise UsageError(f"delays of {self.delays} us: expected 0 to 999999")
        return EmulatedOptions(
            capacity_bytes=parse_bytes(self.capacity),
            host_bytes=parse_bytes(self.host) if self.host is not None else 0,
            counting=Counting[self.counting.upper()],
            delay_max_us=self.delays,
            delay_seed=self.delay_seed,
        )

    def open(self) -> _native.Device:
        """Opens the device.

        Raises:
            NativeError: the memory is not there.
        """
        device = _native.Device.open_emulated(self.options())
        if self.fail_call is not None:
            device.fail(*self.fail_call)
        return device


def open_device(wanted: "str | EmulatedDevice") -> _native.Device:
    """Opens "auto" (CUDA where there is one), "cuda", "cuda:<index>", "emulated", or an EmulatedDevice.

    Raises:
        DeviceUnavailableError: no CUDA device, with the reason and both ways out.
        UsageError: no such kind of device.
    """
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
    return _native.Device.open_cuda(int(index or 0))
