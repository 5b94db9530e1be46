"""tools/gpu_check as far as that goes without a GPU: what fails in it, what is cut off, and its small parts."""

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import stand_ins
import torch
import warm_processes
from stand_ins import CHECKOUT

PROGRAMS = CHECKOUT / "tools" / "gpu_check"
MIB = 1 << 20


def gpu_check(output: Path, *words: str, **environment: str) -> tuple[int, dict[str, Any]]:
    """Exit code and record."""
    command = [sys.executable, str(PROGRAMS), "--output", str(output), *words]
    finished = subprocess.run(command, env={**os.environ, **environment}, check=False, capture_output=True, text=True)
    assert finished.stdout == (output / "summary.txt").read_text(), finished.stderr
    return finished.returncode, json.loads((output / "record.json").read_text())


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """program(name): a file of tools/gpu_check as a module, for this test alone."""
    monkeypatch.syspath_prepend(str(PROGRAMS))
    for path in PROGRAMS.glob("*.py"):
        monkeypatch.delitem(sys.modules, path.stem, raising=False)
    return importlib.import_module


@pytest.fixture
def check(program: Callable[[str], ModuleType], tmp_path: Path) -> Any:
    """What stages share, with a minute left, on a device that has 1 GiB."""
    record = program("record")
    output = record.Output(tmp_path / "output", dry_run=True)
    data = {"device": {"name": "GPU", "free_bytes": 1 << 30}, "available_bytes": 1 << 30}
    output.put({"name": "environment", "passed": True, "reason": None, "seconds": 0, "data": data})
    made = record.GpuCheck(CHECKOUT, tmp_path, program("prebuilt").Prebuilt(None), tmp_path, output, True)
    made.stage_ends_s = time.monotonic() + 60
    output.log.touch()
    return made


# ---- fidelity --------------------------------------------------------------------------------------------------------


def test_the_table_has_errors_and_their_geometric_mean() -> None:
    from replay import measured_table
    from replay.measured import MeasuredRow

    rows = [
        MeasuredRow("net", "vanilla", {"step_ns": 1e6}, {"step_ns": 1e6}, calibrates=True),
        MeasuredRow("net", "swap", {"step_ns": 4e6, "evictions": 0}, {"step_ns": 2e6, "evictions": 0}),
        MeasuredRow("net", "advise", {"step_ns": 1e6, "bytes_h2d": None}, {"step_ns": 8e6, "bytes_h2d": MIB}),
        MeasuredRow("net", "window", {}, {}, problem="dropped: no time was left"),
    ]
    lines = list(measured_table.lines(rows))
    cells = {line.split("  ")[1].strip(): line.split() for line in lines[2:6]}
    assert cells["swap"][1:5] == ["2.0", "/", "4.0", "-50%"]
    assert cells["advise"][1:5] == ["8.0", "/", "1.0", "+700%"]
    assert cells["advise"][6:9] == ["1.0", "/", "-"]  # nobody could count it: it is no error
    assert "  window: dropped: no time was left" in lines
    assert "geometric-mean error of step: 300.0% over 2 rows" in lines  # twice too short, eight times too long: x4
    assert "geometric-mean error of evictions: nothing to compare" in lines


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read"),
        ("{", "is no record of gpu_check"),
        ('{"schema": "umadvise.gpu_check/2"}', "expected the schema 'umadvise.gpu_check/3'"),
        ('{"schema": "umadvise.gpu_check/3", "dry_run": true, "stages": []}', "has no device file"),
    ],
)
def test_fidelity_refuses_what_is_no_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, message: str
) -> None:
    import fidelity

    path = tmp_path / "record.json"
    if text is not None:
        path.write_text(text)
    assert fidelity.main(["--measured", str(path)]) == 1
    assert message in capsys.readouterr().err


def test_records_of_several_commands_are_one(tmp_path: Path) -> None:
    from replay import measured

    from umadvise.errors import FormatError

    def record(name: str, dry_run: bool, **stages: int) -> Path:
        entries = [{"name": stage, "data": data} for stage, data in stages.items()]
        path = tmp_path / name
        path.write_text(json.dumps({"schema": measured.SCHEMA, "dry_run": dry_run, "stages": entries}))
        return path

    one, two = record("one", False, device=1, bert=1), record("two", False, bert=2, resnet=2)
    merged = {stage["name"]: stage["data"] for stage in measured.read(one, two)["stages"]}
    assert merged == {"device": 1, "bert": 2, "resnet": 2}
    with pytest.raises(FormatError, match="some of these records are of dry runs"):
        measured.read(one, record("three", True))


# ---- stages ----------------------------------------------------------------------------------------------------------


def test_a_stage_that_fails_is_recorded_and_what_needs_it_is_not_begun(tmp_path: Path) -> None:
    words = ["--stages", "probes,environment,build,tests,bert", "--build-directory", str(tmp_path / "build")]
    status, record = gpu_check(tmp_path / "output", *words, CUDA_VISIBLE_DEVICES="", PATH="")
    assert status == 3
    reasons = {stage["name"]: stage["reason"] for stage in record["stages"] if not stage["passed"]}
    assert set(reasons) == {"probes", "environment", "build", "hooks", "tests", "bert"}
    assert "sees no CUDA device" in reasons["environment"]
    assert reasons["build"].startswith("cmake cannot be started")
    assert reasons["hooks"] == "not started: build and environment did not pass"
    assert reasons["bert"] == "not started: build and environment and hooks did not pass"
    assert {path.name for path in (tmp_path / "output").iterdir()} == {"record.json", "summary.txt", "log.txt"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--stages", "everything"], "no such stage: everything; expected some of probes,"),
        (["--most-managed", "9"], "at most 8: more managed memory can stall the machine"),
        (["--bundle", "."], "is no bundle"),
    ],
)
def test_usage_errors(tmp_path: Path, words: list[str], message: str) -> None:
    command = [sys.executable, str(PROGRAMS), "--output", str(tmp_path), *words]
    finished = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert finished.returncode == 2
    assert message in " ".join(finished.stderr.split())


def test_another_kind_of_record_is_left_alone(program: Callable[[str], ModuleType], check: Any) -> None:
    with pytest.raises(program("record").FolderError, match="name another folder"):
        program("record").Output(check.output.folder, dry_run=False)


def test_what_comes_later_keeps_its_time(program: Callable[[str], ModuleType], check: Any) -> None:
    record, allowed = program("record"), []

    def work(check: Any) -> None:
        allowed.append(check.stage_ends_s - time.monotonic())

    stages = {"first": record.Stage(90, work), "second": record.Stage(90, work, reserved_s=70)}
    check.dry_run = False
    assert record.run_stages(check, stages, within_s=100.0)
    assert 25 < allowed[0] <= 30
    assert 85 < allowed[1] <= 90


def test_a_stage_without_time_is_not_started(program: Callable[[str], ModuleType], check: Any) -> None:
    assert not program("record").run_stages(check, {"none": program("record").Stage(0, lambda _: None)})
    record = json.loads((check.output.folder / "record.json").read_text())
    assert record["stages"][-1]["reason"] == "not started: no time was left"


CUT_OFF = """
import os, signal, sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import __main__, prebuilt, record

def first(check):
    return {"kept": 1}

def second(check):
    check.run(["sleep", "0"])
    check.keep({"kept": 2})
    print("ready", flush=True)
    check.run(["sleep", "100"])

signal.signal(signal.SIGTERM, lambda *_: sys.exit("SIGTERM"))
folder = Path(sys.argv[2])
output = record.Output(folder, dry_run=True)
check = record.GpuCheck(folder, folder, prebuilt.Prebuilt(None), folder.parent, output, True)
record.run_stages(check, {"first": record.Stage(50, first), "second": record.Stage(50, second)})
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_is_cut_off_loses_nothing_that_had_ended(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", CUT_OFF, str(PROGRAMS), str(tmp_path / "output")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(number)
    first, second = json.loads((tmp_path / "output" / "record.json").read_text())["stages"]
    assert (first["passed"], first["data"]) == (True, {"kept": 1})
    assert (second["passed"], second["data"]) == (False, {"kept": 2})
    assert second["reason"].startswith("cut off")
    assert "$ sleep 0\n# status 0 after" in (tmp_path / "output" / "log.txt").read_text()


def test_a_command_is_stopped_with_what_it_started(program: Callable[[str], ModuleType], check: Any) -> None:
    check.dry_run = False
    child = "import signal, subprocess; signal.signal(15, signal.SIG_IGN); subprocess.Popen(['sleep', '987']); input()"
    begun = "import subprocess, sys; print('begun', file=sys.stderr, flush=True); subprocess.run(['sleep', '987.5'])"
    program("commands")._GRACE_S = 0.2
    for words in (["-c", begun], ["-c", child]):
        with pytest.raises(program("record").StageError, match=r"its time was up|EOF"):
            check.run([sys.executable, *words], within_s=1.0)
    assert "\nbegun\n# its time was up after" in check.output.log.read_text()
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert "sleep 987.5" not in left


def test_what_cannot_be_killed_ends_the_check(
    program: Callable[[str], ModuleType], check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stuck(*_: object, **__: object) -> None:
        raise program("commands").StuckError("process 1 did not end when it was killed")

    monkeypatch.setattr(program("commands"), "run", stuck)
    for reason in ("process 1 did not end", "not started: process 1 did not end"):
        with pytest.raises(program("record").StageError, match=reason):
            check.run(["true"])


def test_half_a_record_is_never_seen(check: Any) -> None:
    before = (check.output.folder / "record.json").read_text()
    with pytest.raises(TypeError):
        check.output.put({"name": "new", "passed": True, "seconds": 0, "data": {1, 2}})
    assert (check.output.folder / "record.json").read_text() == before


def test_managed_memory_is_never_more_than_what_is_free(check: Any) -> None:
    assert check.managed_limit_bytes() == 1 << 30
    check.most_managed_bytes = 1 << 20
    assert check.managed_limit_bytes() == 1 << 20


PARTS = """
import os, signal, sys
sys.path.insert(0, sys.argv.pop(1))
import parts
from driver import DriverError

def lacks(kind):
    raise DriverError("cuMemDiscardBatchAsync is missing")

def dies(kind):
    os.kill(os.getpid(), signal.SIGSEGV)

sys.exit(parts.main({"dies": dies, "lacks": lacks, "works": lambda kind: 7}))
"""


def test_a_part_that_dies_costs_only_itself(program: Callable[[str], ModuleType], check: Any, tmp_path: Path) -> None:
    fake = tmp_path / "fake.py"
    fake.write_text(PARTS.replace("sys.argv.pop(1)", repr(str(PROGRAMS))))
    with pytest.raises(program("record").StageError, match="1 of 3 parts did not end well: dies") as raised:
        program("parts").run_parts(check, fake, ["dies", "lacks", "works"], 30.0)
    assert "status -11" in raised.value.data.pop("dies")["crashed"]
    assert raised.value.data == {"lacks": {"reason": "cuMemDiscardBatchAsync is missing"}, "works": 7}


def test_outcomes_of_tests_are_known_before_pytest_ends(program: Callable[[str], ModuleType], tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("tests/gpu/test_a.py::test_before PASSED [1%]\n")
    begun = log.stat().st_size
    with log.open("a") as file:
        file.write("tests/gpu/test_a.py::test_one[cuda] PASSED [10%]\ntests/gpu/test_b.py::test_two FAILED [20%]\n")
        file.write("tests/gpu/test_b.py::test_three ")
    seen = program("stages")._until_now(log, begun)
    assert seen == [{"name": "test_one[cuda]", "outcome": "passed"}, {"name": "test_two", "outcome": "failed"}]


# ---- rows ------------------------------------------------------------------------------------------------------------

ROWS = [{"name": name, "rung": "advise"} for name in ("one", "two", "three", "four")]
FAKE = """
import json, os, signal, sys, time
asked = json.load(open(sys.argv[1]))
for row in asked["rows"]:
    {special}
    with open(asked["results"], "a") as file:
        file.write(json.dumps({{**row, "way": None, "outcome": "ran", "reason": None}}) + "\\n")
"""


@pytest.mark.parametrize(
    ("special", "reason"),
    [
        ("if row['name'] == 'two': os.kill(os.getpid(), signal.SIGALRM)", "stopped: it took too long"),
        ("if row['name'] == 'two': sys.exit('CUDA error: gone')", "ended with status 1: CUDA error: gone"),
        ("if row['name'] == 'two': sys.exit(0)", "the process ended without a word"),
    ],
)
def test_a_row_that_ends_its_process_costs_only_itself(
    program: Callable[[str], ModuleType], check: Any, tmp_path: Path, special: str, reason: str
) -> None:
    training = program("training")
    fake = tmp_path / "fake.py"
    fake.write_text(FAKE.format(special=special))
    rows = training.run_rows(check, {}, ROWS, check.stage_ends_s, {}, fake)
    assert [row["name"] for row in rows] == ["one", "two", "three", "four"]
    assert [row["outcome"] for row in rows] == ["ran", "failed", "ran", "ran"]
    assert reason in rows[1]["reason"]


def test_rows_without_time_are_dropped(program: Callable[[str], ModuleType], check: Any) -> None:
    rows = program("training").run_rows(check, {}, ROWS, time.monotonic() - 1, {})
    assert {(row["outcome"], row["reason"]) for row in rows} == {("dropped", "no time was left")}


@pytest.fixture
def runner(program: Callable[[str], ModuleType]) -> Callable[..., Any]:
    rows, workloads = program("rows"), program("workloads")

    def runner(**changed: Any) -> Any:
        settings = {
            "network": workloads.choose("bert_large", 0, dry_run=True),
            "rows": [],
            "on_gpu": False,
            "warm_up": 1,
            "measured": 1,
            "row_s": 1.0,
            "longest_s": 60.0,
            "ends_s": time.monotonic() + 100,
            "managed_limit_bytes": 10 * MIB,
            "results": "",
            **changed,
        }
        return rows.RowRunner(rows.Assignment(**settings))

    return runner


def test_a_row_says_why_it_is_not_begun(program: Callable[[str], ModuleType], runner: Callable[..., Any]) -> None:
    row = program("rows").AskedRow
    managed = runner(peak_bytes=11 * MIB).run(row(name="", rung="advise", budget_percent=50, managed=True))
    assert (managed["outcome"], managed["reason"].partition(" ")[0]) == ("dropped", str(11 * MIB))
    more = runner(peak_bytes=9 * MIB)
    more._managed_bytes = 12 * MIB  # that a row before it has really taken
    dropped = more.run(row(name="", rung="advise", budget_percent=50, managed=True))
    assert (dropped["outcome"], dropped["reason"].partition(" ")[0]) == ("dropped", str(12 * MIB))
    unknown = runner().run(row(name="", rung="advise", budget_percent=50))
    assert (unknown["outcome"], unknown["reason"]) == ("dropped", "the peak that its budget is a part of is not known")
    beside = runner(peak_bytes=9 * MIB).run(row(name="", rung="swap", budget_of="a row that did not run"))
    assert beside["reason"] == unknown["reason"]
    late = runner(ends_s=time.monotonic() + 5)
    late._longest_s = 30.0
    dropped = late.run(row(name="", rung="resident"))
    assert (dropped["outcome"], dropped["reason"]) == ("dropped", "5 s were left, and a row takes up to 30 s")


def test_a_budget_is_part_of_plain_pytorchs_peak_or_the_peak_of_another_row(
    program: Callable[[str], ModuleType], runner: Callable[..., Any]
) -> None:
    row = program("rows").AskedRow
    running = runner(peak_bytes=1000, peaks={"torchao": 700})
    assert running._budget_bytes(row(name="", rung="swap", budget_percent=23.5)) == 235
    assert running._budget_bytes(row(name="", rung="swap", budget_of="torchao")) == 700
    assert running._budget_bytes(row(name="", rung="resident")) is None


def test_comparisons_name_ways_that_exist(program: Callable[[str], ModuleType]) -> None:
    ways, comparisons = program("peers").WAYS, program("comparisons").COMPARISONS
    for name, comparison in comparisons.items():
        assert comparison.peers[0] == "vanilla" and set(comparison.peers) <= set(ways), name
        beside = {budget["budget_of"] for _, budget in comparison.ours if "budget_of" in budget}
        assert beside <= set(comparison.peers), name
    assert set(comparisons) <= set(program("stages").STAGES)


def test_a_row_that_has_no_room_is_no_failure(program: Callable[[str], ModuleType], runner: Callable[..., Any]) -> None:
    row = program("rows").AskedRow
    found = runner(peak_bytes=100 * MIB, managed_limit_bytes=1 << 40).run(row(name="", rung="swap", budget_percent=10))
    assert found["outcome"] == "no room"
    assert "chunk" in found["reason"]
    assert runner().run(row(name="", rung="no such rung"))["outcome"] == "failed"


def test_losses_are_compared_to_the_last_bit(program: Callable[[str], ModuleType]) -> None:
    training, record = program("training"), program("record")

    def row(name: str, way: str | None, *losses: str) -> dict[str, Any]:
        return {"name": name, "way": way, "outcome": "ran", "losses_hex": list(losses)}

    vanilla = [row("vanilla", "vanilla", "0x1", "0x2"), row("vanilla again", "vanilla again", "0x1", "0x2")]
    found: dict[str, Any] = {"rows": [*vanilla, row("swap", None, "0x1"), row("advise", None, "0x1", "0x3")]}
    training.compare_losses(found)
    assert [each["same_losses"] for each in found["rows"]] == [True, True, True, False]
    with pytest.raises(record.StageError, match=r"losses differ from vanilla in: advise$"):
        training._judged(found)
    other = row("compiled, activation_memory_budget", "compiled, activation_memory_budget", "0x9")
    compared = {"rows": [*vanilla, other]}
    training.compare_losses(compared)
    assert training._judged(compared) is compared  # it is known to compute something else
    nothing = {"rows": [{"name": "swap", "way": None, "outcome": "failed", "reason": "why"}]}
    training.compare_losses(nothing)
    with pytest.raises(record.StageError, match="failed: swap, no row ran"):
        training._judged(nothing)


def test_networks_are_as_large_as_the_limit_allows(program: Callable[[str], ModuleType]) -> None:
    choose = program("workloads").choose
    assert choose("resnet50", 8 << 30, dry_run=False).options == {"batch": 48}
    assert choose("resnet50", 4 << 30, dry_run=False).options == {"batch": 24}
    assert choose("resnet50", 1 << 30, dry_run=False) is None
    assert choose("bert_large", 8 << 30, dry_run=False).options == {"batch": 2, "length": 128}


@pytest.mark.parametrize("name", ["bert_32", "bert_16", "resnet_256", "bert_managed"])
def test_comparisons_take_what_they_are_said_to(program: Callable[[str], ModuleType], name: str) -> None:
    from umadvise.recording.dry.recorder import record

    comparison = program("comparisons").COMPARISONS[name]
    trace = record(comparison.network.build)
    assert trace.peak_bytes == pytest.approx(comparison.peak_bytes, rel=0.02)


def test_bf16_is_of_the_forward_pass_and_losses_are_float32(program: Callable[[str], ModuleType]) -> None:
    workload = program("workloads").dry_run_size(program("comparisons").COMPARISONS["bert_32"].network).build()
    seen: list[torch.dtype] = []
    linear = next(each for each in workload.modules[0].modules() if type(each) is torch.nn.Linear)
    linear.register_forward_hook(lambda _module, _inputs, output: seen.append(output.dtype))
    assert workload.step().dtype == torch.float32
    assert set(seen) == {torch.bfloat16}
    assert {parameter.dtype for parameter in workload.modules[0].parameters()} == {torch.float32}


def test_spans_that_overlap_count_once(program: Callable[[str], ModuleType]) -> None:
    covered = program("busy").covered_ns
    assert covered([]) == 0
    assert covered([(10, 20), (12, 15), (18, 25), (30, 31)]) == 16


def test_clocks_are_asked_for_while_steps_run(
    program: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nread line < $0.steps\necho 1980 MHz, 2619 MHz\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    os.mkfifo(tmp_path / "nvidia-smi.steps")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def step() -> None:
        steps.append(1)
        if len(steps) == 3:
            (tmp_path / "nvidia-smi.steps").write_text("enough\n")

    clocks = program("busy").clocks
    assert clocks(step, lambda: None, on_gpu=True) == "1980 MHz, 2619 MHz"
    assert len(steps) >= 3
    monkeypatch.setenv("PATH", "")
    assert "nvidia-smi" in clocks(step, lambda: None, on_gpu=True)


def test_the_summary_says_who_wins_each_budget_and_where_the_time_went(program: Callable[[str], ModuleType]) -> None:
    def row(name: str, step_ns: float, **more: Any) -> dict[str, Any]:
        return {"name": name, "way": None, "outcome": "ran", "step_ns": step_ns, "peak_bytes": 1 << 30, **more}

    ours: dict[str, Any] = {
        "budget_percent": 50,
        "budget_bytes": 2 << 30,
        "host_busy_ns": 5e6,
        "busy": {"gpu_ns": 9e6, "copies_ns": 6e6},
        "swaps": {"wait_copy_ns": 1e6, "wait_room_ns": 0},
        "driver_calls": {"cuEventRecord": {"calls": 3, "ns": 2e6}, "cuMemMap": {"calls": 1, "ns": 5e5}},
    }
    rows = [
        row("vanilla", 8e6, way="vanilla", peak_bytes=4 << 30),
        row("save_on_cpu(pin_memory=True)", 2e7, way="save_on_cpu(pin_memory=True)", busy={"gpu_ns": None}),
        row("swap, 50 %", 1e7, **ours),
        row("advise, 25 %", 3e7, budget_percent=25, budget_bytes=1 << 29, followed_steps=0),
        {"name": "swap, 25 %", "way": None, "outcome": "no room", "budget_percent": 25},
    ]
    promise = {"predicted_step_ns": 9e6, "planned_bytes": {"in": 2e9, "out": 1e9}, "recorded_ops_ns": 8e6}
    copied = {"swap_in_bytes": 2e9, "swap_out_bytes": 4e9}
    assert ", ".join(program("summary")._promised({**promise, "swaps": copied})) == (
        "predicted 9.0 ms, planned 2.0 + 1.0 GB in + out of 2.0 + 4.0 copied, recorded ops 8.0 ms"
    )
    assert list(program("summary").verdicts(rows)) == [
        "  at 50 % (2.00 GiB) swap, 50 % wins: 10.0 ms, kernels 90%, copies 60%, host 50%, waits 1.0 + 0.0 ms, "
        "4 driver calls in 2.5 ms, 1 map; next save_on_cpu(pin_memory=True): 20.0 ms",
        "  at 25 % (0.50 GiB) advise, 25 % wins: 30.0 ms, NO PLAN FOLLOWED; nothing else kept it",
    ]


# ---- ops in page-locked memory ---------------------------------------------------------------------------------------

DIFFERS = """
import json, sys
sys.path.insert(0, sys.argv[1])
import page_locked, torch
trial = page_locked.Trial("emulated")

def wrong(words):
    there = torch.zeros(64)
    first = page_locked.address_of(there)
    return [there], lambda: [there.fill_(float(page_locked.address_of(there) != first))]

def fails(words):
    return [torch.zeros(64)], lambda: [torch.zeros(2) @ torch.zeros(3)]

print(json.dumps(trial.all({"wrong": wrong, "fails": fails, "works": page_locked.COPIES["clone"]})))
"""


def test_an_op_that_gives_something_else_where_its_storage_lies_is_told() -> None:
    command = [warm_processes.python(), "-c", DIFFERS, str(PROGRAMS)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    assert (found["wrong"]["right"], found["wrong"]["repeats"], found["wrong"]["difference"]) == (False, True, 1.0)
    assert found["fails"]["reason"].startswith("RuntimeError: ")
    assert (found["works"]["right"], found["works"]["moved"]) == (True, 1)


def test_what_differs_in_page_locked_memory_fails_the_stage(
    program: Callable[[str], ModuleType], check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages, record = program("stages"), program("record")
    found = {"copies": {"clone": {"right": True}, "fill_": {"right": False}}, "streams": {"reason": "there are none"}}
    monkeypatch.setattr(stages, "run_parts", lambda *_, **__: found)
    with pytest.raises(record.StageError, match=r"^not as in device memory: copies: fill_$") as raised:
        stages.page_locked(check)
    assert raised.value.data == found


# ---- ways of others, with stand-ins for their packages ---------------------------------------------------------------


def trained(use: Callable[[Any, bool], AbstractContextManager[Any]]) -> list[float]:
    """Losses of three steps of a small network."""
    from umadvise.recording.workload import training_step

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    workload = training_step(model, optimizer, lambda model, inputs: model(inputs).square().mean(), torch.ones(4, 8))
    with use(workload, False) as step:
        return [float(step()) for _ in range(3)]


def test_activations_are_offloaded_around_the_forward_pass(
    program: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    ways, entered = program("peers").WAYS, []

    class Offload:
        def __init__(self, use_pin_memory: bool, use_streams: bool) -> None:
            entered.append((use_pin_memory, use_streams))

        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setitem(sys.modules, "torchtune.training", SimpleNamespace(OffloadActivations=Offload))
    assert trained(ways["torchtune OffloadActivations"].use) == trained(ways["vanilla"].use)
    assert entered == [(True, True)] * 3


def test_an_offloaded_optimizer_takes_the_others_place(
    program: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    ways, made = program("peers").WAYS, []

    class Offloaded:
        def __init__(self, parameters: Any, kind: type[torch.optim.Optimizer], **options: Any) -> None:
            self._inner = kind(parameters, **options)
            made.append(options)

        def step(self) -> None:
            self._inner.step()

        def zero_grad(self) -> None:
            self._inner.zero_grad()

    monkeypatch.setitem(sys.modules, "torchao.optim", SimpleNamespace(CPUOffloadOptimizer=Offloaded))
    assert trained(ways["torchao CPUOffloadOptimizer"].use) == trained(ways["vanilla"].use)
    assert made == [{"lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2}]
    assert ways["torchao CPUOffloadOptimizer"].absent(on_gpu=False) is not None


# ---- small parts -----------------------------------------------------------------------------------------------------


def test_the_probes_ask_for_the_same_forms_of_functions_as_the_core(program: Callable[[str], ModuleType]) -> None:
    table = (CHECKOUT / "csrc" / "driver" / "table.h").read_text()
    core = {name: int(version) for name, version in re.findall(r"X\(\w+, (cu\w+), (\d+)", table)}
    probes = {name: version for name, (version, _) in program("driver").FUNCTIONS.items()}
    only_probes = {"cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel", "cuMemDiscardAndPrefetchBatchAsync"}
    only_probes |= {"cuMemHostRegister", "cuMemHostUnregister"}
    assert probes.keys() - core.keys() == only_probes
    assert {name: version for name, version in probes.items() if name not in only_probes} == {
        name: core[name] for name in probes.keys() - only_probes
    }


def test_a_dry_run_never_opens_a_real_driver() -> None:
    script = "import sys; sys.path.insert(0, sys.argv[1]); import driver; driver.RawDriver(sys.argv[2])"
    for kind, variables, message in (
        ("cuda", {"LD_LIBRARY_PATH": str(stand_ins.libcuda_folder())}, "libcuda.so.1 is a stand-in: see cuda"),
        ("cuda", {"LD_LIBRARY_PATH": "/nonexistent"}, "no driver: "),
    ):
        command = [sys.executable, "-c", script, str(PROGRAMS), kind]
        ended = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
        assert message in ended.stderr


def test_a_toolkit_is_found_beside_its_compiler(
    program: Callable[[str], ModuleType], check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, error = program("build").toolkit_headers, program("record").StageError
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert found(check) is None
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\n")
    nvcc.chmod(0o755)
    with pytest.raises(error, match=r"is there, and no cudaTypedefs\.h"):  # the compiler alone, without headers
        found(check)
    include = tmp_path / "include"
    include.mkdir()
    (include / "cudaTypedefs.h").write_text("")
    for version, expected in (("12080", 12), ("13000", 13), ("11080", 11)):
        (include / "cuda.h").write_text(f"#define CUDA_VERSION {version}\n")
        assert found(check) == (expected, include)
    elsewhere = tmp_path / "toolkit"  # a script that calls the compiler of another folder
    include.rename(tmp_path / "moved")
    elsewhere.mkdir()
    (tmp_path / "moved").rename(elsewhere / "include")
    nvcc.write_text(f"#!/bin/sh\necho '#$ TOP={elsewhere}/bin/..' >&2\n")
    (elsewhere / "bin").mkdir()
    assert found(check) == (11, elsewhere / "include")


def test_a_package_that_all_need_is_asked_for(
    program: Callable[[str], ModuleType], check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages, record = program("stages"), program("record")
    seen = {"device": {"name": "GPU"}, "needed": {"msgspec": "ImportError: for another Python", "numpy": None}}
    monkeypatch.setattr(record.GpuCheck, "run", lambda *_, **__: json.dumps(seen))
    monkeypatch.setattr(program("build"), "for_driver", lambda _check: None)
    with pytest.raises(record.StageError, match="umadvise needs msgspec, not to be imported here: bring a bundle"):
        stages.environment(check)
    seen["device"]["name"] = "another GPU"
    with pytest.raises(record.StageError, match="this folder has results of GPU: name another one"):
        stages.environment(check)


def test_a_bundle_is_used_where_it_fits(
    program: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prebuilt = program("prebuilt")
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "checkout" / "csrc" / "tests").mkdir(parents=True)
    source = tmp_path / "checkout" / "csrc" / "engine.cpp"
    source.write_text("one")
    bundle = tmp_path / "bundle"
    for package in ("msgspec", "no_such_package"):
        (bundle / "packages" / package).mkdir(parents=True)
    (bundle / prebuilt.LIBRARY).write_text("")
    (bundle / "sources").write_text(prebuilt.sources_digest(tmp_path / "checkout"))
    brought = prebuilt.Prebuilt(bundle)
    assert brought.core(tmp_path / "checkout") == bundle / prebuilt.LIBRARY
    assert brought.packages == [bundle / "packages" / "no_such_package"]  # the others are installed
    assert str(bundle / "packages" / "no_such_package") in sys.path  # the check itself needs them too
    (source.parent / "tests" / "test.cpp").write_text("no part of the core")
    assert brought.core(tmp_path / "checkout") is not None
    source.write_text("two")
    assert brought.core(tmp_path / "checkout") is None
    assert prebuilt.Prebuilt(None).core(tmp_path / "checkout") is None


@pytest.mark.parametrize(
    ("plain", "again", "expected"),
    [((24, 0), (0, 24), True), ((24, 0), (24, 0), False), ((12, 12), (0, 24), None), ((24, 0), (12, 12), None)],
)
@pytest.mark.parametrize("counted", [True, False])
def test_who_left_first_is_told_by_bytes_or_by_times(
    program: Callable[[str], ModuleType],
    plain: tuple[int, int],
    again: tuple[int, int],
    expected: bool | None,
    counted: bool,
) -> None:
    def seen(numbers: tuple[int, int]) -> dict[str, Any]:
        names = ("first", "second")
        return {
            name: {"ns": 10 + number, "came_back_bytes": number if counted else None}
            for name, number in zip(names, numbers, strict=True)
        }

    assert program("eviction").verdict(seen(plain), seen(again)) is expected
