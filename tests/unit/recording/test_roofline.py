"""The roofline against hand-made ops on a V100: 14 TFLOP/s in fp32, 900 GB/s of which 85 % can be had."""

import pytest

from umadvise.devices.catalogue import load_device
from umadvise.recording.builder import TraceBuilder
from umadvise.recording.dry.roofline import retimed, touched_bytes
from umadvise.records.device import DType
from umadvise.records.enums import Role
from umadvise.records.trace import Access, OpClass, Trace

LAUNCH_NS = 4000
SECOND_NS = 10**9


def op(
    op_class: OpClass, flops: int | None, bytes_: int, arithmetic: DType = "fp32", flags: Access = Access.READ
) -> Trace:
    builder = TraceBuilder()
    storage = builder.allocate(bytes_, Role.INTERMEDIATE)
    builder.begin_op("aten::op", op_class=op_class, flops=flops, arithmetic=arithmetic)
    builder.access(storage, flags)
    builder.end_op()
    return builder.finish(target="cuda", source="synthetic")


def duration_ns(trace: Trace, device: str = "v100-16gb") -> int:
    timed = retimed(trace, load_device(device))
    assert timed.device == load_device(device).name
    return int(timed.ops.duration_ns[0])


def test_an_op_takes_what_limits_it() -> None:
    assert duration_ns(op(OpClass.MATMUL, 0, 0)) == LAUNCH_NS
    assert duration_ns(op(OpClass.MATMUL, int(14e12 * 0.8), 1)) == LAUNCH_NS + SECOND_NS
    memory = op(OpClass.ELEMENTWISE, None, int(900e9 * 0.85 * 0.9))
    assert duration_ns(memory) == pytest.approx(LAUNCH_NS + SECOND_NS, rel=1e-9)


def test_what_is_changed_in_place_is_read_and_written() -> None:
    in_place = op(OpClass.ELEMENTWISE, None, 1000, flags=Access.READ | Access.WRITE | Access.IN_PLACE)
    assert touched_bytes(in_place).tolist() == [2000]


def test_fp32_units_do_what_the_device_has_no_unit_for() -> None:
    flops = 10**12
    assert duration_ns(op(OpClass.MATMUL, flops, 1, "bf16")) == duration_ns(op(OpClass.MATMUL, flops, 1))
    assert duration_ns(op(OpClass.MATMUL, flops, 1, "bf16"), "a100-40gb") < duration_ns(
        op(OpClass.MATMUL, flops, 1), "a100-40gb"
    )
