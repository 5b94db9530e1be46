"""Random but possible traces for property-based tests."""

from hypothesis import strategies as st

from umadvise.recording.builder import TraceBuilder
from umadvise.records.enums import Phase, Role
from umadvise.records.trace import Access, EventKind, OpClass, Trace

FLAGS = (Access.READ, Access.WRITE, Access.WRITE | Access.WHOLE, Access.READ | Access.WRITE | Access.IN_PLACE)


@st.composite
def traces(draw: st.DrawFn, most_ops: int = 12) -> Trace:
    """A trace that some program could have produced."""
    builder, live = TraceBuilder(), []
    for index in range(draw(st.integers(0, 4))):
        live.append(builder.allocate(draw(st.integers(0, 1 << 24)), Role.PARAMETER, f"w{index}", "net"))
    for _ in range(draw(st.integers(0, most_ops))):
        builder.begin_op(
            draw(st.sampled_from(["aten::mm", "aten::add_.Tensor", "aten::relu"])),
            phase=draw(st.sampled_from(list(Phase))),
            module=draw(st.sampled_from(["", "net.0", "net.1"])),
            op_class=draw(st.sampled_from(list(OpClass))),
            duration_ns=draw(st.none() | st.integers(0, 10**9)),
            flops=draw(st.none() | st.integers(0, 10**15)),
            host_touch=draw(st.booleans()),
        )
        for _ in range(draw(st.integers(0, 2))):
            live.append(builder.allocate(draw(st.integers(0, 1 << 24)), draw(st.sampled_from(list(Role)))))
        if live:
            for _ in range(draw(st.integers(0, 3))):
                builder.access(draw(st.sampled_from(live)), draw(st.sampled_from(FLAGS)))
        builder.end_op()
        while live and draw(st.booleans()):
            storage = live.pop(draw(st.integers(0, len(live) - 1)))
            if draw(st.booleans()):
                builder.event(EventKind.HOST_READ, storage, 0, 0)
            builder.free(storage)
    return builder.finish(target=draw(st.sampled_from(["cpu", "cuda"])), source="synthetic", workload="random")


def layers(count: int, *, bytes_: int = 10 << 20, op_ns: int = 10**6, held: bool = False) -> Trace:
    """Forward makes a map a layer, backward reads them in the opposite order and frees them; or else the end does."""
    builder, maps = TraceBuilder(), []
    for _ in range(count):
        builder.begin_op("aten::relu", duration_ns=op_ns)
        maps.append(builder.allocate(bytes_, Role.INTERMEDIATE))
        builder.access(maps[-1], Access.WRITE | Access.WHOLE)
        builder.end_op()
    for each in reversed(maps):
        builder.begin_op("aten::threshold_backward", duration_ns=op_ns)
        builder.access(each, Access.READ)
        builder.end_op()
        if not held:
            builder.free(each)
    for each in maps if held else ():
        builder.free(each)
    return builder.finish(target="cuda", source="synthetic")
