"""`umadvise diff`: words and exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest

from umadvise.__main__ import main
from umadvise.recording.builder import TraceBuilder
from umadvise.records import fault_profile, plan_file
from umadvise.records import trace_file as io
from umadvise.records.enums import Role
from umadvise.records.plan import Action, ActionKind, Plan
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
    assert "is none of umadvise's files" in printed.err


def profiles(make: Any, tmp_path: Path) -> list[str]:
    """Two runs whose steps take 1 s, and whose second one faults."""
    paths = [str(tmp_path / name) for name in ("a.json", "b.json")]
    for faults, path in zip((0, 300), paths, strict=True):
        counters = make.counters(fault_groups=faults)
        fault_profile.write(make.profile(counters=counters, steps=make.steps(counters, counters)), path)
    return paths


def plans(tmp_path: Path) -> list[str]:
    """A plan that moves a storage away and back, and one that does nothing, of a step of three ops."""
    trace = io.read(write(tmp_path / "step.trace", 3))
    moves = [Action(ActionKind.SWAP_OUT, 0, 0, after=True), Action(ActionKind.SWAP_IN, 2, 0)]
    paths = [str(tmp_path / name) for name in ("a.plan", "b.plan")]
    for actions, path in zip((moves, []), paths, strict=True):
        plan_file.write(Plan.from_actions(trace, actions, "lms", 1 << 20), path)
    return paths


def test_two_profiles(make: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here, there = profiles(make, tmp_path)
    assert main(["diff", here, there]) == 0
    assert "groups of page faults     0    150       -  faults\n" in capsys.readouterr().out
    assert main(["diff", here, there, "--fail-if", "step_ns > +5%"]) == 0
    assert capsys.readouterr().out.endswith('\npassed: --fail-if "step_ns > +5%"\n')
    assert main(["diff", here, there, "--fail-if", "step_ns > +5%", "--fail-if", "faults > 100", "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "umadvise.difference/1"
    assert document["conditions"] == [
        {"condition": "step_ns > +5%", "holds": False},
        {"condition": "faults > 100", "holds": True},
    ]


def test_two_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here, there = plans(tmp_path)
    assert main(["diff", here, there, "--fail-if", "swap_out_bytes > +0%"]) == 0
    assert capsys.readouterr().out == (
        f"Two plans:\n  here   {here}\n  there  {there}\n\n"
        "Of a step, what is not the same\n"
        "                          here  there   change  name\n"
        "actions                      2      0  -100.0%  actions\n"
        "swapped out, actions         1      0  -100.0%  swap_out_actions\n"
        "swapped out           1.00 MiB    0 B  -100.0%  swap_out_bytes\n"
        "swapped in, actions          1      0  -100.0%  swap_in_actions\n"
        "swapped in            1.00 MiB    0 B  -100.0%  swap_in_bytes\n\n"
        "Tensors that changed most\n"
        "tensor     moved here  there\n"
        "storage 0    2.00 MiB    0 B\n\n"
        'passed: --fail-if "swap_out_bytes > +0%"\n'
    )
    assert main(["diff", here, there, "--trace", str(tmp_path / "step.trace")]) == 0
    assert "weight (parameter, 1.00 MiB)    2.00 MiB    0 B\n" in capsys.readouterr().out


def test_what_cannot_be_compared(make: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile, plan, trace = profiles(make, tmp_path)[0], plans(tmp_path)[0], str(tmp_path / "step.trace")
    other = tmp_path / "other.json"
    other.write_text('{"schema": "umadvise.device/1"}')
    for words, code, says in (
        ([profile, plan], 2, "is a profile and "),
        ([trace, profile], 2, "is a trace and "),
        ([profile, str(other)], 2, "has the schema 'umadvise.device/1': expected a trace, a fault profile or a plan"),
        ([trace, trace, "--fail-if", "ops > 3"], 2, "--fail-if is about profiles and plans"),
        ([profile, profile, "--fail-if", "step > 3"], 2, "there is no quantity 'step'"),
        ([profile, profile, "--fail-if", "swap_ins > 3"], 1, "the second file does not say swap_ins"),
        ([profile, profile, "--trace", trace], 2, "--trace names the tensors of plans"),
    ):
        assert main(["diff", *words]) == code
        printed = capsys.readouterr()
        assert printed.out == ""
        assert says in printed.err
