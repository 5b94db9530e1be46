"""Every exception that umadvise raises. Each message says what was wrong, what was expected and what to do."""

from collections.abc import Iterable
from typing import ClassVar, Self


class UmadviseError(Exception):
    """Root of the tree; also an operational error that has no class of its own.

    Attributes:
        exit_code: what the command line exits with after this error: 1 operational, 2 usage, 3 a check failed.
    """

    exit_code: ClassVar[int] = 1


class UsageError(UmadviseError, ValueError):
    """The caller passed something that umadvise cannot mean."""

    exit_code = 2


class InvalidSizeError(UsageError):
    """A byte size that cannot be read, or that no machine can hold."""


class InvalidAdviceError(UsageError):
    """A word that is no advice."""

    def __init__(self, given: object, accepted: Iterable[str]) -> None:
        super().__init__(f"unknown advice {given!r}: expected one of {', '.join(accepted)}")


class PolicyError(UsageError):
    """A policy that does not exist, or that cannot be used with this device."""


class StateError(UmadviseError):
    """The call is right but not now: nothing is patched, a session is open already, CUDA was used too early."""


class BudgetError(UmadviseError):
    """The budget or the device's capacity does not hold what has to be on the device at once."""


class NoRoomError(BudgetError):
    """A simulated run needs memory that it cannot get.

    Attributes:
        op: index into the trace; None before its first op.
        working_set_bytes: all that the op touches.
        budget_needed_bytes: what would do for this op, at least.
    """

    def __init__(self, message: str, op: int | None, working_set_bytes: int, budget_needed_bytes: int) -> None:
        super().__init__(message)
        self.op = op
        self.working_set_bytes = working_set_bytes
        self.budget_needed_bytes = budget_needed_bytes

    def __reduce__(self) -> tuple[type[Self], tuple[str, int | None, int, int]]:
        """Planners hand it from process to process."""
        return type(self), (str(self), self.op, self.working_set_bytes, self.budget_needed_bytes)


class DeviceUnavailableError(UmadviseError):
    """The device that was asked for cannot be used on this machine."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"no CUDA device can be used here: {reason}. Expected a GPU with its driver; "
            'without one, pass device="emulated" (on the command line: --device emulated) to use the emulated device'
        )


class UntranslatedError(UmadviseError, RuntimeError):
    """A program written for CUDA uses something that the emulated device has no translation for.

    torch itself catches RuntimeErrors where it only asks whether there is CUDA.
    """

    def __init__(self, what: str, why: str, what_to_do: str) -> None:
        super().__init__(f"{what} cannot be used on the emulated device: {why}; {what_to_do}")


class UnsupportedError(UmadviseError, RuntimeError):
    """Something of torch's that needs torch's own CUDA allocator."""

    def __init__(self, what: str, why: str, what_to_do: str) -> None:
        super().__init__(f"{what} cannot be used while umadvise is torch's CUDA allocator: {why}; {what_to_do}")


class NvmlUnavailableError(UmadviseError):
    """NVML cannot be asked: nvidia-ml-py is not installed, or there is no driver. Nothing depends on it."""


class HooksUnavailableError(UmadviseError):
    """The extension against the installed torch cannot be compiled or loaded; planning and reporting do without."""


class FormatError(UmadviseError):
    """A file was refused whole: another schema version, truncated, or hostile."""


class NativeError(UmadviseError):
    """A call into the native core failed.

    Attributes:
        code: the um_status of csrc/include/umadvise.h.
        message: the core's own words.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class CheckFailedError(UmadviseError):
    """A check that the user asked for did not hold."""

    exit_code = 3
