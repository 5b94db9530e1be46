"""`umadvise diff`: words and exit codes."""

import json
from pathlib import Path

import pytest

from umadvise.__main__ import main
from umadvise.recording.builder import TraceBuilder
from umadvise.records import trace_file as io
from umadvise.records.enums import Role
from umadvise.records.trace import Access


def write(path: Path, ops: int) -> str:
    """A step of so many ops in place."""
    builder = TraceBuilder()
    builder.allocate(1 << 20, Role.PARAMETER, "weight")
    for _ in range(ops):
        builder.begin_op("aten::relu_", module="net")
        builder.access(0, Access.READ | Access.WRITE | Access.IN_PLACE)
        builder.end_op()
    io.write(builder.finish(target="cpu", source="synthetic"), path)
    return str(path)


def test_the_same_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", write(tmp_path / "a", 2), write(tmp_path / "b", 2)]) == 0
    assert capsys.readouterr().out == "The traces are of the same step.\n"


def test_where_they_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here, there = write(tmp_path / "a", 2), write(tmp_path / "b", 3)
    assert main(["diff", here, there]) == 3
    assert capsys.readouterr().out == (
        "The steps agree for 2 ops; there 1 more follow, the first is aten::relu_ in net (none).\n"
        "aten::relu_ runs 2 times here, 3 there.\n"
    )
    assert main(["diff", "--json", here, there]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "umadvise.trace-difference/1"
    assert len(document["differences"]) == 2


def test_what_is_no_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "b").write_bytes(b"\x1f\x8b damaged")
    assert main(["diff", write(tmp_path / "a", 1), str(tmp_path / "b")]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "is no trace" in printed.err
