"""The file format: what was written is read, what is not whole or not possible is refused whole."""

import contextlib
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pictures import known, seen

from umadvise.errors import FormatError, UmadviseError
from umadvise.records import fault_profile
from umadvise.records.fault_profile import BIN_COUNT, MOST_FILE_BYTES, SCHEMA, Finding, OversizedOp
from umadvise.reports.counters.step_picture import pictured
from umadvise.reports.html import page
from umadvise.reports.reporters import chrome_trace, text

MIB = 1 << 20


@pytest.fixture(scope="module")
def full(make: Any) -> fault_profile.FaultProfile:
    """A profile in which nothing is empty."""
    return make.profile(
        environment=make.environment(budget_bytes=512 * MIB),
        placed=make.placed(),
        swaps=make.swaps(swap_ins=2),
        outside=make.counters(remote_accesses=3),
        steps=make.steps(make.counters(fault_groups=2), make.counters()),
        tables=make.tables(
            role=(make.role(role="parameter", fault_groups=2, resident_peak_bytes=3 * MIB),),
            phase=(make.phase(phase="forward", fault_groups=2),),
            role_phase=(make.role_phase(role="parameter", phase="forward"),),
            module=(make.module(module="encoder"), make.module()),
            tensor=(make.tensor(name="encoder.weight"), make.tensor(birth_op="aten::mm")),
            op=(make.op(op="aten::mm", phase="forward"),),
        ),
        pattern=make.pattern(fault_groups=(2,) + (0,) * (BIN_COUNT - 1), phases=("forward",) * BIN_COUNT),
        oversized_ops=(OversizedOp(op="aten::mm", module=None, phase=None, bytes=MIB, count=1),),
        findings=(
            Finding(id="a", severity="info", subject="s", message="Größe ✓", advice="b", evidence={"bytes": 2**63 - 1}),
        ),
        picture=pictured(seen(make), known()),
    )


def test_a_profile_comes_back_equal(full: fault_profile.FaultProfile, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    fault_profile.write(full, path)
    assert fault_profile.read(path) == full
    document = json.loads(path.read_text())
    assert document["schema"] == "umadvise.fault-profile/5"
    assert document["counters"]["remote_accesses"] is None  # unknown is null
    assert document["tables"]["role"]["rows"][0]["fault_groups"] == 2
    assert document["tables"]["role"]["rows"][0]["resident_peak_bytes"] == 3 * MIB
    assert document["tables"]["phase"]["rows"][0]["resident_peak_bytes"] is None
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_symbolic_link_stays_one(full: fault_profile.FaultProfile, tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text("old")
    (tmp_path / "link.json").symlink_to("old.json")
    fault_profile.write(full, tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert fault_profile.read(tmp_path / "old.json") == full


@pytest.mark.parametrize("function", ["write", "fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_old_file(
    full: fault_profile.FaultProfile,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    error: BaseException,
) -> None:
    path = tmp_path / "run.json"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise error

    if function == "replace":
        monkeypatch.setattr(Path, "replace", fail)
    elif function == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    else:
        real = os.fdopen

        def opened(*arguments: Any) -> Any:
            file = real(*arguments)
            return contextlib.closing(_Failing(file, fail))

        monkeypatch.setattr(os, "fdopen", opened)
    with pytest.raises(UmadviseError if isinstance(error, OSError) else KeyboardInterrupt):
        fault_profile.write(full, path)
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.json"]


class _Failing:
    def __init__(self, file: Any, fail: Any) -> None:
        self.close = file.close
        self.write = fail


@pytest.mark.parametrize("make_path", [lambda base: base, lambda base: base / "no" / "where.json", lambda _: "a\0b"])
def test_a_place_that_cannot_be_written_is_an_error_of_ours(
    full: fault_profile.FaultProfile, tmp_path: Path, make_path: Any
) -> None:
    with pytest.raises(UmadviseError, match="cannot write"):
        fault_profile.write(full, make_path(tmp_path))


def test_a_device_file_is_not_replaced(full: fault_profile.FaultProfile, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UmadviseError, match="regular file"):
        fault_profile.write(full, tmp_path / "fifo")
    assert (tmp_path / "fifo").is_fifo()


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(FormatError, match="no regular file"):
        fault_profile.read(tmp_path / "fifo")
    with pytest.raises(UmadviseError, match="cannot read"):
        fault_profile.read(tmp_path)
    with pytest.raises(UmadviseError, match="cannot read"):
        fault_profile.read(tmp_path / "missing.json")
    with pytest.raises(UmadviseError, match="cannot read"):
        fault_profile.read("a\0b")


def test_a_gigantic_file_is_refused_without_being_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(MOST_FILE_BYTES * 1000)
    with pytest.raises(FormatError, match="larger than any fault profile"):
        fault_profile.read(path)


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        (["schema"], "umadvise.fault-profile/1", "has the schema 'umadvise.fault-profile/1': expected"),
        (["schema"], "memray", "has the schema 'memray'"),
        (["schema"], None, "is no fault profile"),
        (["step_count"], -1, "step_count"),
        (["step_count"], 1.5, "step_count"),
        (["step_count"], 2**63, "step_count"),
        (["step_count"], 10**40, "step_count"),
        (["step_count"], "2", "step_count"),
        (["step_count"], None, "step_count"),
        (["step_count"], 1, "step_count is less than the steps"),
        (["environment", "script"], "../../etc/passwd\n", "script"),
        (["environment", "script"], "\x1b]0;title\x07", "script"),
        (["environment", "device_name"], "a" * 5000, "device_name"),
        (["environment", "provider"], "opencl", "provider"),
        (["tables", "role", "rows", 0, "role"], "weights", "role"),
        (["tables", "role", "rows", 0, "fault_groups"], None, "fault_groups"),
        (["tables", "tensor", "rows", 0, "name"], "\u202egpj.exe", "name"),
        (["pattern", "phases"], ["forward"] * (BIN_COUNT + 1), "phases"),
        (["steps", 1, "index"], 1, "not in order"),
        (["findings", 0, "evidence"], {"a" * 2000: 1}, "evidence"),
        (["findings", 0, "evidence"], {str(index): 1 for index in range(33)}, "evidence"),
        (["surprise"], 1, "surprise"),
        (["picture", "surprise"], 1, "surprise"),
        (["picture", "names"], ["a\n"], "names"),
        (["picture", "names"], [""], "points to a name"),
        (["picture", "times_ns"], [2, 1], "run backwards"),
        (["picture", "times_ns"], [1], "not one length"),
        (["picture", "live_bytes"], {"input": [0, 0]}, "not all roles"),
        (["picture", "ops", 0, 0], -1, "ops"),
        (["picture", "spans", 0, 0], "swap", "spans"),
    ],
)
def test_an_impossible_value_is_refused_with_its_place(
    full: fault_profile.FaultProfile, where: list[Any], value: Any, message: str
) -> None:
    document = json.loads(fault_profile.encode(full))
    place = document
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = value
    with pytest.raises(FormatError, match=message):
        fault_profile.decode(json.dumps(document).encode())


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b"\x80\x04\x95",  # pickle
        b"[" * 1_000_000,
        b'{"a":' * 100_000,
        b'{"schema":"umadvise.fault-profile/5","surprise":' + b"[" * 1_000_000,
        b'{"schema":"umadvise.fault-profile/5","step_count":NaN}',
        b'{"schema":"umadvise.fault-profile/5","step_count":Infinity}',
        b'{"schema":"\\ud800"}',
    ],
)
def test_what_is_no_profile_is_refused(document: bytes) -> None:
    with pytest.raises(FormatError):
        fault_profile.decode(document)


def test_a_refusal_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("{")
    with pytest.raises(FormatError, match=r"run\.json' is no fault profile: Input data was truncated"):
        fault_profile.read(path)


def test_every_truncation_is_refused(full: fault_profile.FaultProfile) -> None:
    document = fault_profile.encode(full).rstrip()
    for length in range(0, len(document), 37):
        with pytest.raises(FormatError):
            fault_profile.decode(document[:length])


@given(st.binary(max_size=200))
def test_bytes_never_do_worse_than_a_format_error(document: bytes) -> None:
    with pytest.raises(FormatError):
        fault_profile.decode(document)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=200, deadline=None)
@given(data=st.data())
def test_a_mutated_document_is_refused_or_can_be_shown(full: fault_profile.FaultProfile, data: st.DataObject) -> None:
    document = json.loads(fault_profile.encode(full))
    for _ in range(data.draw(st.integers(1, 3))):
        place, key = document, data.draw(st.sampled_from(sorted(document)))
        while isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans()):
            place = place[key]
            key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if data.draw(st.booleans()) or not isinstance(place, dict):
            place[key] = data.draw(json_values | st.integers(0, 2**63 - 1))
        else:
            del place[key]
        if not document:
            break
    try:
        decoded = fault_profile.decode(json.dumps(document).encode())
    except FormatError:
        return
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text.render(decoded))
    page.render(decoded)
    if decoded.picture is not None:
        chrome_trace.render(decoded)
    assert fault_profile.decode(fault_profile.encode(decoded)) == decoded
    assert SCHEMA.encode() in fault_profile.encode(decoded)
