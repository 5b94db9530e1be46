"""How long ops take on a device of the catalogue, by the roofline (Williams, Waterman and Patterson, 2009)."""

from collections.abc import Sequence

from umadvise.device_profile import DeviceProfile, DType
from umadvise.trace.schema import UNKNOWN, OpClass

_CLASSES = tuple(each.name.lower() for each in OpClass)
_DTYPES: dict[str, DType] = {"float16": "fp16", "bfloat16": "bf16"}


def arithmetic_of(dtype_name: str) -> DType:
    """The units that work on a torch dtype. float32 means fp32 and not tf32: torch's own default for matmuls."""
    return _DTYPES.get(dtype_name, "fp32")


def durations_ns(
    device: DeviceProfile,
    op_classes: Sequence[int],
    dtypes: Sequence[DType],
    flops: Sequence[int],
    bytes_: Sequence[int],
) -> list[int]:
    """Nanoseconds of each op, UNKNOWN where the device file lacks what it takes.

    Args:
        device: whose roofline.
        op_classes: OpClass of each op.
        dtypes: number format of its arithmetic.
        flops: UNKNOWN counts as none: then memory alone limits the op.
        bytes_: read and written, those changed in place twice.
    """
    durations = []
    for op_class, dtype, operations, touched in zip(op_classes, dtypes, flops, bytes_, strict=True):
        duration = device.op_ns(_CLASSES[op_class], dtype, max(operations, 0), touched)  # type: ignore[arg-type]
        durations.append(UNKNOWN if duration is None else duration)
    return durations
