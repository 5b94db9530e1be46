"""No operator writes what it says it only reads, but for those of the reviewed list: tools/find_silent_writes.py."""

import re
import subprocess
from pathlib import Path

import pytest
import torch
import warm_processes

from umadvise.recording.operators import (
    CREATIONS,
    RESIZES,
    SHAPE_READERS,
    SILENT_WRITES,
    UNANNOTATED_BYSTANDERS,
    derive,
)

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


def test_both_reviewed_lists_are_one() -> None:
    text = (ROOT / "umadvise" / "_hooks" / "operator_info.cpp").read_text()
    rows = re.findall(r'\{"(aten::\w+)", "(\w+)", Write::(\w+)\}', text)
    assert {(op, argument) for op, argument, _ in rows} == {
        (op, argument) for op, arguments in SILENT_WRITES.items() for argument in arguments
    }
    for op, argument, write in rows:
        derived = derive(getattr(torch.ops.aten, op.removeprefix("aten::")).default).arguments
        found = next(each for each in derived if each.name == argument)
        assert found.only_in_training == (write == "when_training"), op


@pytest.mark.parametrize(
    ("array", "names"),
    [
        ("kCreations", CREATIONS),
        ("kResizes", RESIZES),
        ("kUnannotatedBystanders", UNANNOTATED_BYSTANDERS),
        ("kShapeReaders", SHAPE_READERS),
    ],
)
def test_the_other_lists_are_one(array: str, names: frozenset[str]) -> None:
    text = (ROOT / "umadvise" / "_hooks" / "operator_info.cpp").read_text()
    found = re.search(rf"std::string_view, (\d+)> {array} = {{(.*?)}};", text, re.DOTALL)
    assert found is not None
    listed = re.findall(r'"(aten::\w+)"', found[2])
    assert (len(listed), set(listed)) == (int(found[1]), names)
