"""A step whose times can be worked out, and a command of umadvise as its user sees it."""

from pathlib import Path

import pytest

from umadvise.__main__ import main
from umadvise.devices.catalogue import load_device
from umadvise.recording.builder import TraceBuilder
from umadvise.records.enums import Role
from umadvise.records.trace import Access, OpClass, Trace

V100 = load_device("v100-16gb")
GIB = 1 << 30
OP_NS = 4000 + 10**9
"""A second of arithmetic at 80 % of a V100's 14 TFLOP/s, and its launch."""


def maps(count: int, bytes_: int = GIB) -> Trace:
    """Forward makes a map an op from a weight, backward reads them in the opposite order."""
    builder, live = TraceBuilder(), []
    weight = builder.allocate(GIB, Role.PARAMETER, "weight")
    second = {"op_class": OpClass.MATMUL, "flops": int(14e12 * 0.8), "duration_ns": OP_NS}
    for _ in range(count):
        builder.begin_op("aten::mm", **second)
        live.append(builder.allocate(bytes_, Role.INTERMEDIATE))
        builder.access(weight, Access.READ)
        builder.access(live[-1], Access.WRITE | Access.WHOLE)
        builder.end_op()
    for each in reversed(live):
        builder.begin_op("aten::mm", **second)
        builder.access(each, Access.READ)
        builder.end_op()
        builder.free(each)
    return builder.finish(target="cuda", source="synthetic", device=V100.name, workload="maps")


def command(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err
