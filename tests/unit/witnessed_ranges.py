"""What cuda-python says of ranges of managed memory, where it is installed."""

from umadvise.doctor import witness


def range_attribute(address: int, size_bytes: int, attribute: int) -> int:
    """What holds for a range of managed memory (cuMemRangeGetAttribute), by CUmem_range_attribute's number.

    Raises:
        UmadviseError: it cannot be asked, or the range is no managed memory.
    """
    module = witness.driver()
    value = witness._answer(
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
    except witness.AbsentError:
        return False
