"""The driver's answers through NVIDIA's own cuda-python: an independent witness of what our core says.

Optional (`pip install cuda-bindings`): doctor compares device attributes, and the tests that need a GPU ask it whether
advice is set.
"""

import importlib
from collections.abc import Iterable
from typing import Any

from umadvise.errors import UmadviseError


class AbsentError(UmadviseError):
    """cuda-python is not installed."""


def driver() -> Any:
    """cuda.bindings.driver, initialised.

    Raises:
        AbsentError: it is not installed.
        UmadviseError: there is no driver.
    """
    try:
        module: Any = importlib.import_module("cuda.bindings.driver")
    except ImportError:
        raise AbsentError("cuda-python is not installed (pip install cuda-bindings)") from None
    try:
        _answer(module.cuInit(0))
    except UmadviseError:
        raise
    except Exception as error:  # without a driver it raises an error of another package (cuda-pathfinder)
        first_line = str(error).strip().partition("\n")[0]
        raise UmadviseError(f"cuda-python cannot load the driver: {first_line or type(error).__name__}") from None
    return module


def _answer(result: tuple[Any, ...]) -> Any:
    """What a call gave beside its error code, of which 0 is success."""
    code, *answer = result
    if int(code) != 0:
        raise UmadviseError(f"cuda-python: the driver answered {code}")
    return answer[0] if answer else None


def attributes(ordinal: int, numbers: Iterable[int]) -> dict[int, int]:
    """Device attributes by their numbers; those that package or driver do not know are left out.

    Raises:
        UmadviseError: it cannot be asked.
    """
    module = driver()
    device = _answer(module.cuDeviceGet(ordinal))
    found: dict[int, int] = {}
    for number in numbers:
        try:
            found[number] = int(_answer(module.cuDeviceGetAttribute(module.CUdevice_attribute(number), device)))
        except (UmadviseError, ValueError):
            continue
    return found


def range_attribute(address: int, size_bytes: int, attribute: int) -> int:
    """What holds for a range of managed memory (cuMemRangeGetAttribute), by CUmem_range_attribute's number.

    Raises:
        UmadviseError: it cannot be asked, or the range is no managed memory.
    """
    module = driver()
    value = _answer(
        module.cuMemRangeGetAttribute(
            4, module.CUmem_range_attribute(attribute), module.CUdeviceptr(address), size_bytes
        )
    )
    return int(value[0] if isinstance(value, list | tuple) else value)


def contradicts(address: int, size_bytes: int, attribute: int, value: int) -> bool:
    """Whether it is installed, and says something else of a range of managed memory.

    Raises:
        UmadviseError: it is installed, and cannot be asked.
    """
    try:
        return range_attribute(address, size_bytes, attribute) != value
    except AbsentError:
        return False
