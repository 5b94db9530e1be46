"""No operator writes what it says it only reads, but for those of the reviewed list: tools/find_silent_writes.py."""

import subprocess
from pathlib import Path

import pytest
import torch
import warm_processes

from umadvise._native.library import hooks_library
from umadvise.recording.operators import (
    CREATIONS,
    RESIZES,
    SHAPE_READERS,
    SILENT_WRITES,
    UNANNOTATED_BYSTANDERS,
    derive,
)
from umadvise.records.trace import Access

ROOT = Path(__file__).parents[2]
MOST_USED = (
    "add mul div sub where cat stack bmm matmul addmm mean sum cumsum softmax log_softmax exp sqrt clamp gather "
    "index_select index_put masked_fill scatter_add native_layer_norm native_batch_norm nn.functional.conv2d "
    "nn.functional.batch_norm nn.functional.layer_norm nn.functional.group_norm nn.functional.gelu nn.functional.relu "
    "nn.functional.embedding nn.functional.embedding_bag nn.functional.cross_entropy nn.functional.dropout "
    "nn.functional.max_pool2d nn.functional.scaled_dot_product_attention nn.LSTM nn.GRU SGD AdamW"
)


def found(*words: str) -> list[str]:
    command = [warm_processes.python(), str(ROOT / "tools" / "find_silent_writes.py"), *words]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert finished.returncode == (3 if finished.stdout else 0), finished.stderr
    return finished.stdout.splitlines()


@pytest.mark.long
def test_the_most_used_operators_write_what_they_say() -> None:
    pytest.importorskip("expecttest")
    assert found(*MOST_USED.split()) == []


def test_writes_are_found() -> None:
    pytest.importorskip("expecttest")
    lines = [line.partition("  #")[0] for line in found("--reviewed-too", "nn.LSTM", "nn.BatchNorm2d", "relu")]
    assert sorted(lines) == [
        "aten::mkldnn_rnn_layer_backward: workspace",
        "aten::native_batch_norm: running_mean",
        "aten::native_batch_norm: running_var",
    ]


def test_the_lists_name_operators_and_arguments_of_torch() -> None:
    for op, arguments in SILENT_WRITES.items():
        schema = getattr(torch.ops.aten, op.removeprefix("aten::")).default._schema
        assert {*arguments} <= {each.name for each in schema.arguments}, op
    for op in CREATIONS | RESIZES | UNANNOTATED_BYSTANDERS | SHAPE_READERS:
        assert getattr(torch.ops.aten, op.removeprefix("aten::")).overloads(), op


def test_collectives_write_what_they_do_not_read() -> None:
    def written(name: str) -> set[str]:
        arguments = derive(getattr(torch.ops.c10d, name).default).arguments
        return {each.name for each in arguments if Access.WRITE in each.flags}

    assert written("send") == written("barrier") == set()
    assert written("allreduce_") == {"tensors", "sparse_indices"}
    assert written("_allgather_base_") == {"output_tensor"}


def guarded(func: torch._ops.OpOverload) -> str:
    """What the guard derives of an operator, as `um_hooks_operator` says it."""
    overload = "" if func._overloadname == "default" else func._overloadname
    text = hooks_library().um_hooks_operator(func._schema.name.encode(), overload.encode())
    return "" if text is None else text.decode()


def recorded(func: torch._ops.OpOverload) -> str:
    """The same of what recorders derive, which run without a compiled extension."""
    on = {backend: derive(func, backend.upper()) for backend in ("cpu", "cuda")}
    info = on["cpu"]
    happens = {
        each.index: "when_training" if each.only_in_training else "write" if Access.WRITE in each.flags else "read"
        for each in info.arguments
    }
    kind = " ".join([info.kind.name.lower(), *(backend for backend, its in on.items() if its.composite)])
    return ": ".join([kind, *(happens.get(index, "nothing") for index in range(len(func._schema.arguments)))])


def test_guard_and_recorders_derive_the_same_of_each_operator() -> None:
    names = torch._C._dispatch_get_all_op_names()
    differ, count = {}, 0
    for name in names:
        library, _, rest = name.partition("::")
        op, _, overload = rest.partition(".")
        try:
            func = getattr(getattr(getattr(torch.ops, library), op), overload or "default")
        except AttributeError:
            continue
        count += 1
        if guarded(func).replace("shape", "nothing") != recorded(func):
            differ[name] = guarded(func), recorded(func)
    assert differ == {}
    assert count > 0.9 * len(names)
