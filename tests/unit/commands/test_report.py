"""`umadvise report`: data on stdout, errors on stderr, exit codes, colours only on a terminal."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pictures import known, seen

from umadvise.__main__ import main
from umadvise.records import fault_profile
from umadvise.reports.counters.step_picture import pictured
from umadvise.reports.html import page
from umadvise.reports.reporters import chrome_trace, text


@pytest.fixture
def file(make: Any, tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    pattern = make.pattern(fault_groups=(3,) * 96, service_ns=(5000,) * 96, phases=("forward",) * 96)
    fault_profile.write(make.profile(pattern=pattern), path)
    return path


def test_text_goes_to_stdout(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(file)]) == 0
    output = capsys.readouterr()
    assert output.out == text.render(fault_profile.read(file))
    assert output.err == ""


def test_json_goes_to_stdout(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(file), "--json"]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["schema"] == "umadvise.fault-profile/5"
    assert output.out == file.read_text()


def test_the_page_and_the_trace_are_files(
    make: Any, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = msgspec.structs.replace(fault_profile.read(file), picture=pictured(seen(make), known()))
    fault_profile.write(profile, file)
    html, trace = tmp_path / "out.html", tmp_path / "out.trace.json"
    assert main(["report", str(file), "--html", str(html), "--trace", str(trace)]) == 0
    assert html.read_text() == page.render(profile)
    assert trace.read_bytes() == chrome_trace.render(profile)
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.splitlines() == [
        f"umadvise: written: {path} ({path.stat().st_size:,} bytes)" for path in (html, trace)
    ]
    assert main(["report", "-q", str(file), "--html", str(html), "--against", str(file)]) == 0
    assert html.read_text() == page.render(profile, profile)
    assert capsys.readouterr() == ("", "")


def test_nothing_that_is_read_is_replaced(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, out = file.read_bytes(), str(tmp_path / "out")
    for words in (
        ["--html", str(file)],
        ["--trace", str(file)],
        ["--html", out, "--trace", out],
        ["--html", out, "--against", out],
        ["--against", str(file)],
        ["--json", "--html", out],
        ["--trace", out],  # there is no picture of a step
    ):
        assert main(["report", str(file), *words]) == 2
        assert capsys.readouterr().err.startswith("umadvise report: ")
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("content", [None, "", "{}", '{"schema": "umadvise.fault-profile/9"}'])
def test_a_bad_file_is_an_operational_error(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.json"
    if content is not None:
        path.write_text(content)
    assert main(["report", str(path)]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("umadvise report: ")
    assert str(path) in output.err


def test_bad_usage_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["report"], ["report", "a", "b"], ["report", "a", "--html"]):
        with pytest.raises(SystemExit, match="2"):
            main(words)
    assert capsys.readouterr().out == ""


class _Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("no_color", "coloured"), [(None, True), ("", True), ("1", False)])
def test_a_terminal_gets_its_width_and_colours(
    file: Path, monkeypatch: pytest.MonkeyPatch, no_color: str | None, coloured: bool
) -> None:
    terminal = _Terminal(io.BytesIO(), encoding="utf-8", write_through=True)
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    assert main(["report", str(file)]) == 0
    shown = terminal.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert shown == text.render(fault_profile.read(file), 90, color=coloured)
    assert ("\x1b[" in shown) == coloured


def test_a_stream_that_cannot_show_blocks_gets_question_marks(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["report", str(file)]) == 0
    shown = stream.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]
    assert shown == text.render(fault_profile.read(file)).encode("ascii", "replace").decode("ascii")
    assert "???" in shown
