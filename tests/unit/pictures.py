"""A small step to be pictured: three ops, a parameter, and an intermediate that is swapped out and in again."""

from typing import Any

from umadvise.recording.builder import TraceBuilder
from umadvise.records.counters import Event
from umadvise.records.enums import Phase, Role
from umadvise.records.trace import Access, Trace
from umadvise.reports.counters.step_picture import KnownStep, SeenStep

MIB = 1 << 20
START_NS = 5_000
NAMES = {7: ("weight", None, None), 21: (None, "net", "aten::mm"), 22: (None, None, None)}


def trace() -> Trace:
    """Ops of 100, 200 and 300 ns; the intermediate is made by the first, and used by the third, after which it dies."""
    builder = TraceBuilder()
    weight = builder.allocate(4 * MIB, Role.PARAMETER, "weight")
    builder.begin_op("aten::mm", phase=Phase.FORWARD, module="net", duration_ns=100)
    made = builder.allocate(2 * MIB, Role.INTERMEDIATE, module="net")
    builder.access(weight, Access.READ)
    builder.access(made, Access.WRITE | Access.WHOLE)
    builder.end_op()
    builder.begin_op("aten::relu", phase=Phase.FORWARD, module="net", duration_ns=200)
    builder.access(weight, Access.READ)
    builder.end_op()
    builder.begin_op("aten::mul", phase=Phase.BACKWARD, duration_ns=300)
    builder.access(made, Access.READ)
    builder.end_op()
    builder.free(made)
    return builder.finish(target="cpu", source="synthetic")


def known(**fields: Any) -> KnownStep:
    """The step, and a link of 16 TiB/s."""
    return KnownStep(**{"trace": trace(), "link_bytes_per_s": (1 << 44, 1 << 44), **fields})


def moves(make: Any) -> list[Event]:
    """In the step that is seen the intermediate is allocation 21; the third op waits for it."""
    second = {"op": "aten::relu", "op_index": 2}
    third = {"op": "aten::mul", "op_index": 3}
    made = {"allocation": 21, "allocation_bytes": 2 * MIB}
    return [
        make.event("swap_out", start_ns=START_NS + 150, cause="planned", bytes=2 * MIB, **second, **made),
        make.event("swap_in", start_ns=START_NS + 350, cause="planned", bytes=2 * MIB, **second, **made),
        make.event("wait_copy", start_ns=START_NS + 500, duration_ns=100, cause="planned", **third, **made),
    ]


def seen(make: Any, **fields: Any) -> SeenStep:
    """The step takes 1000 ns, of which the third op stands still for 100."""
    plain: dict[str, Any] = {
        "start_ns": START_NS,
        "duration_ns": 1000,
        "moves": moves(make),
        "tensor_of": NAMES.__getitem__,
    }
    return SeenStep(3, **{**plain, **fields})
