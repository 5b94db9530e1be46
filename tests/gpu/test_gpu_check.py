"""tools/gpu_check as far as that goes without a GPU: its dry run, what fidelity makes of it, and what fails in it."""

import importlib
import json
import os
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
from stand_ins import CHECKOUT

PROGRAMS = CHECKOUT / "tools" / "gpu_check"
MIB = 1 << 20


def gpu_check(output: Path, *words: str, **environment: str) -> tuple[int, dict[str, Any]]:
    """Exit code and record."""
    command = [sys.executable, str(PROGRAMS), "--output", str(output), *words]
    finished = subprocess.run(command, env={**os.environ, **environment}, check=False, capture_output=True, text=True)
    assert finished.stdout == f"{output}\n", finished.stderr
    return finished.returncode, json.loads(output.read_text())


@pytest.fixture(scope="module")
def dry_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The record of a dry run that passed every stage there is."""
    path = tmp_path_factory.mktemp("gpu_check") / "record.json"
    stages = ["environment", "build", "hooks", "tests", "driver_costs", "touches", "device", "overhead"]
    stages += ["bert", "resnet", "eviction"]
    words = ["--dry-run", "--build-directory", str(stand_ins.BUILD)]
    status, record = gpu_check(path, *words, "--stages", ",".join(stages))
    assert [(stage["name"], stage["reason"]) for stage in record["stages"]] == [(name, None) for name in stages]
    assert status == 0
    return path


@pytest.fixture(scope="module")
def data(dry_run: Path) -> dict[str, Any]:
    return {stage["name"]: stage["data"] for stage in json.loads(dry_run.read_text())["stages"]}


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """program(name): a file of tools/gpu_check as a module, for this test alone."""
    monkeypatch.syspath_prepend(str(PROGRAMS))
    for path in PROGRAMS.glob("*.py"):
        monkeypatch.delitem(sys.modules, path.stem, raising=False)
    return importlib.import_module


# ---- the dry run -----------------------------------------------------------------------------------------------------


def test_costs_are_by_size(data: dict[str, Any]) -> None:
    costs = data["driver_costs"]
    assert costs["missing"] == {}
    for kind in ("prefetch", "advice", "discard", "chunks", "host_chunks"):
        sizes = [row["bytes"] for row in costs[kind]]
        assert sizes == sorted(sizes) and len(sizes) > 1, kind
        assert all(value > 0 for row in costs[kind] for value in row["median_ns"].values()), kind
    assert {row["bytes"] for row in costs["chunks"]} == {2 * MIB, 20 * MIB}
    assert [row["bytes"] for row in data["touches"]["by_size"]] == [2 * MIB, 16 * MIB]
    assert data["overhead"].keys() == {"vanilla_ns", "allocator_ns", "interposed_ns"}


def test_the_device_file_is_of_the_catalogue_and_has_what_was_measured(data: dict[str, Any]) -> None:
    from umadvise import catalogue

    profile = catalogue.decode(data["device"]["device_file"].encode())
    assert profile.link.kind == "host-memory"
    assert "medians by size" in profile.unified_memory.costs.prefetch_call_ns.source
    link = data["device"]["link"]
    assert set(link) == {"h2d", "d2h", "both_h2d", "both_d2h"}
    assert len({tuple(row["bytes"] for row in rows) for rows in link.values()}) == 1


def test_the_model_evicts_what_was_not_prefetched_again(data: dict[str, Any]) -> None:
    seen = data["eviction"]  # csrc/um/model.h: a prefetch of what is resident makes it the youngest
    assert seen["as_it_came"]["first"]["came_back_bytes"] == 24 * MIB
    assert seen["prefetched_again"]["second"]["came_back_bytes"] == 24 * MIB
    assert seen["prefetch_refreshes"] is True


@pytest.mark.parametrize("network", ["bert", "resnet"])
def test_every_rung_and_every_way_has_a_row(data: dict[str, Any], network: str) -> None:
    from umadvise.roles import RUNGS

    rows = {row["name"]: row for row in data[network]["rows"]}
    below = [rung for rung in RUNGS if rung != "resident"]
    expected = {"resident"} | {f"{rung}, {part} %" for rung in (*below, "unified, no advice") for part in (100, 50)}
    assert {name for name, row in rows.items() if row["way"] is None} == expected
    assert data[network]["vanilla_repeats"] is True
    absent = {name: row["reason"] for name, row in rows.items() if row["outcome"] == "absent"}
    assert absent == {
        "torchtune OffloadActivations": "torchtune.training is not installed",
        "torchao CPUOffloadOptimizer": "torchao.optim is not installed",
    }
    ran = [row for row in rows.values() if row["outcome"] == "ran"]
    assert len(ran) >= len(rows) - 4  # of resnet, chunks of half the memory have no room
    assert all(row["same_losses"] for row in ran if row["way"] is None)
    assert all(row["budget_bytes"] == rows["resident"]["needed_bytes"] // 2 for row in ran if "50 %" in row["name"])


def test_budgets_make_rows_move_bytes(data: dict[str, Any]) -> None:
    rows = {row["name"]: row for row in data["bert"]["rows"]}
    assert rows["resident"]["counters"]["fault_groups"] == 0
    assert rows["advise, 50 %"]["counters"]["fault_groups"] > 0
    assert rows["advise, 50 %"]["counters"]["bytes_d2h"]["user"] > 0  # the budget sends pages away
    assert rows["swap, 50 %"]["swaps"]["swap_in_bytes"] > 0
    assert rows["swap, 50 %"]["peak_bytes"] <= rows["swap, 50 %"]["budget_bytes"]


def test_fidelity_predicts_every_row_that_it_has_a_model_of(dry_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import fidelity
    from replay import measured

    comparisons = list(measured.compare(measured.read(dry_run)))
    silent = {each.row for each in comparisons if each.problem is None and not each.predicted}
    assert silent == set()
    unpredicted = {each.problem for each in comparisons if each.problem is not None and each.measured}
    assert unpredicted == {"not predicted: there is no model of it"}
    by_name = {(each.network, each.row): each for each in comparisons}
    vanilla = by_name["bert_large", "vanilla"]
    assert vanilla.calibrates
    assert vanilla.predicted["step_ns"] == pytest.approx(vanilla.measured["step_ns"], rel=0.01)
    for part in (50, 100):
        unadvised = by_name["bert_large", f"unified, no advice, {part} %"]
        # One model of paging decides on the device and in the simulator; the recordings differ a little.
        assert unadvised.predicted["bytes_h2d"] == pytest.approx(unadvised.measured["bytes_h2d"], rel=0.2)
        assert unadvised.predicted["peak_bytes"] == unadvised.measured["peak_bytes"]
    assert fidelity.main(["--measured", str(dry_run)]) == 0
    printed = capsys.readouterr().out
    assert "bert_large: predicted / measured" in printed
    assert "torchtune OffloadActivations: absent: torchtune.training is not installed" in printed


# ---- fidelity --------------------------------------------------------------------------------------------------------


def test_the_table_has_errors_and_their_geometric_mean() -> None:
    from replay import measured_table
    from replay.measured import Comparison

    rows = [
        Comparison("net", "vanilla", {"step_ns": 1e6}, {"step_ns": 1e6}, calibrates=True),
        Comparison("net", "swap", {"step_ns": 4e6, "evictions": 0}, {"step_ns": 2e6, "evictions": 0}),
        Comparison("net", "advise", {"step_ns": 1e6, "bytes_h2d": None}, {"step_ns": 8e6, "bytes_h2d": MIB}),
        Comparison("net", "window", {}, {}, problem="dropped: no time was left"),
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
        ('{"schema": "umadvise.gpu_check/1"}', "expected the schema 'umadvise.gpu_check/2'"),
        ('{"schema": "umadvise.gpu_check/2", "stages": []}', "has no device file"),
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


# ---- stages ----------------------------------------------------------------------------------------------------------


def test_a_stage_that_fails_is_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    words = ["--stages", "environment,build,tests,touches,bert", "--build-directory", str(tmp_path / "build")]
    status, record = gpu_check(
        tmp_path / "record.json", *words, CUDA_VISIBLE_DEVICES="", PATH="", PYTEST_ADDOPTS="--no-such-option"
    )
    assert status == 3
    reasons = {stage["name"]: stage["reason"] for stage in record["stages"] if not stage["passed"]}
    assert set(reasons) == {"environment", "build", "tests", "touches", "bert"}
    assert "sees no CUDA device" in reasons["environment"]
    assert reasons["build"].startswith("cmake cannot be started")
    assert reasons["tests"].startswith("pytest did not run")
    assert "no CUDA device can be used here" in reasons["touches"]
    assert "has not found a device" in reasons["bert"]


def test_an_unknown_stage_is_a_usage_error(tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAMS), "--stages", "everything"]
    finished = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert finished.returncode == 2
    assert "no such stage: everything; expected some of environment," in finished.stderr


def test_what_comes_later_keeps_its_time(
    program: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = program("record")
    monkeypatch.setattr(record, "TOTAL_S", 100.0)
    allowed = []

    def work(check: Any) -> None:
        allowed.append(check.stage_ends_s - time.monotonic())

    stages = {"first": record.Stage(90, work), "second": record.Stage(90, work, reserved_s=70)}
    check = record.Check(tmp_path, tmp_path, tmp_path, False)
    path, passed = record.run_stages(check, stages, lambda name: tmp_path / f"{name}.json")
    assert passed and path.name == "unknown-device.json"
    assert 25 < allowed[0] <= 30
    assert 85 < allowed[1] <= 90


def test_a_stage_without_time_is_not_started(program: Callable[[str], ModuleType], tmp_path: Path) -> None:
    record = program("record")
    check = record.Check(tmp_path, tmp_path, tmp_path, True)
    stages = {"none": record.Stage(0, lambda _: None)}
    path, passed = record.run_stages(check, stages, lambda name: tmp_path / f"{name}.json")
    assert not passed
    assert json.loads(path.read_text())["stages"][0]["reason"] == "not started: no time was left"


def test_a_command_is_stopped_with_what_it_started(program: Callable[[str], ModuleType], tmp_path: Path) -> None:
    record = program("record")
    check = record.Check(tmp_path, tmp_path, tmp_path, True)
    check.stage_ends_s = time.monotonic() + 100.0
    child = "import subprocess, sys; print('begun', flush=True); subprocess.run(['sleep', '1000'])"
    with pytest.raises(record.StageError, match="its time was up"):
        check.run([sys.executable, "-c", child], within_s=1.0)
    assert check.output[1] == "begun\n"


def test_half_a_record_is_never_seen(program: Callable[[str], ModuleType], tmp_path: Path) -> None:
    record = program("record")
    path = tmp_path / "record.json"
    record.write({"stages": [1]}, path)
    with pytest.raises(TypeError):
        record.write({"stages": {1, 2}}, path)
    assert json.loads(path.read_text()) == {"stages": [1]}


def test_managed_memory_is_never_more_than_what_is_free(program: Callable[[str], ModuleType], tmp_path: Path) -> None:
    record = program("record")
    check = record.Check(tmp_path, tmp_path, tmp_path, False)
    check.found["environment"] = {"device": {"free_bytes": 100 << 30}}
    assert check.managed_limit_bytes() == 8 << 30
    check.found["environment"] = {"device": {"free_bytes": 3 << 30}}
    assert check.managed_limit_bytes() == 3 << 30


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
    program: Callable[[str], ModuleType], tmp_path: Path, special: str, reason: str
) -> None:
    training, record = program("training"), program("record")
    fake = tmp_path / "fake.py"
    fake.write_text(FAKE.format(special=special))
    check = record.Check(CHECKOUT, tmp_path, tmp_path, True)
    check.found["environment"] = {"device": {"free_bytes": 1 << 30}}
    check.stage_ends_s = time.monotonic() + 60
    rows = training.run_rows(check, {}, ROWS, check.stage_ends_s, None, fake)
    assert [row["name"] for row in rows] == ["one", "two", "three", "four"]
    assert [row["outcome"] for row in rows] == ["ran", "failed", "ran", "ran"]
    assert reason in rows[1]["reason"]


def test_rows_without_time_are_dropped(program: Callable[[str], ModuleType], tmp_path: Path) -> None:
    training, record = program("training"), program("record")
    check = record.Check(CHECKOUT, tmp_path, tmp_path, True)
    rows = training.run_rows(check, {}, ROWS, time.monotonic() - 1, None)
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
        return rows.Runner(rows.Specification(**settings))

    return runner


def test_a_row_says_why_it_is_not_begun(program: Callable[[str], ModuleType], runner: Callable[..., Any]) -> None:
    row = program("rows").Row
    managed = runner(peak_bytes=11 * MIB).run(row(name="", rung="advise", budget_percent=50, managed=True))
    assert (managed["outcome"], managed["reason"].partition(" ")[0]) == ("dropped", str(11 * MIB))
    more = runner(peak_bytes=9 * MIB)
    more._managed_bytes = 12 * MIB  # that a row before it has really taken
    dropped = more.run(row(name="", rung="advise", budget_percent=50, managed=True))
    assert (dropped["outcome"], dropped["reason"].partition(" ")[0]) == ("dropped", str(12 * MIB))
    unknown = runner().run(row(name="", rung="advise", budget_percent=50))
    assert (unknown["outcome"], unknown["reason"]) == ("dropped", "the peak that its budget is a part of is not known")
    late = runner(ends_s=time.monotonic() + 5)
    late._longest_s = 30.0
    dropped = late.run(row(name="", rung="resident"))
    assert (dropped["outcome"], dropped["reason"]) == ("dropped", "5 s were left, and a row takes up to 30 s")


def test_a_row_that_has_no_room_is_no_failure(program: Callable[[str], ModuleType], runner: Callable[..., Any]) -> None:
    row = program("rows").Row
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


# ---- ways of others, with stand-ins for their packages ---------------------------------------------------------------


def trained(use: Callable[[Any, bool], AbstractContextManager[Any]]) -> list[float]:
    """Losses of three steps of a small network."""
    from umadvise.trace.workload import training_step

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


def test_the_driver_is_called_through_the_core(program: Callable[[str], ModuleType]) -> None:
    import umadvise

    driver = program("driver")
    device = umadvise.EmulatedDevice(capacity="64MiB").open()
    calls = driver.Driver(device)
    assert calls.missing == {}
    assert calls.granularity() == 2 * MIB
    device.fail("cuMemCreate", 1)
    with pytest.raises(driver.DriverError, match="cuMemCreate failed with"):
        calls.create(2 * MIB)
    with pytest.raises(driver.DriverError, match="is no function of the driver table"):
        calls.call("cuNoSuchFunction")
    device.close()


def test_a_toolkit_is_found_beside_its_compiler(
    program: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = program("stages")._toolkit_headers
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert found() is None
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").write_text("")
    (tmp_path / "bin" / "nvcc").chmod(0o755)
    assert found() is None  # the compiler alone, without headers
    include = tmp_path / "include"
    include.mkdir()
    (include / "cudaTypedefs.h").write_text("")
    for version, expected in (("12080", (12, include)), ("13000", (13, include)), ("11080", None)):
        (include / "cuda.h").write_text(f"#define CUDA_VERSION {version}\n")
        assert found() == expected


def test_a_package_that_all_need_is_asked_for(
    program: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages, record = program("stages"), program("record")
    packages = {"msgspec": None, "numpy": "2.0", "pytest": None}
    seen = json.dumps({"device": {"name": "GPU", "free_bytes": 1}, "packages": packages})
    monkeypatch.setattr(record.Check, "run", lambda *_, **__: seen)
    with pytest.raises(record.StageError, match="umadvise needs msgspec, not installed here: install it"):
        stages.environment(record.Check(tmp_path, tmp_path, tmp_path, False))


def test_costs_of_a_driver_library_are_measured_alike() -> None:
    """Through libcuda.so.1, behind which the emulated device works (csrc/tests/fake_libcuda)."""
    script = """
import json, sys
sys.path.insert(0, sys.argv[1])
import driver_costs as costs
costs.RANGES_MIB["cuda"], costs.CHUNKS_IN_GRANULES["cuda"] = (2, 4), (1, 2)
costs.CHUNKS["cuda"], costs.ROUNDS["cuda"] = 2, 1
print(json.dumps(costs.measured("cuda")))
"""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(stand_ins.libcuda_folder())}
    command = [sys.executable, "-c", script, str(PROGRAMS)]
    finished = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, cwd=CHECKOUT)
    assert finished.returncode == 0, finished.stderr
    seen = json.loads(finished.stdout)
    for kind in ("prefetch", "advice", "discard", "chunks", "host_chunks"):
        assert len(seen[kind]) == 2, seen[kind]
        assert all(value > 0 for row in seen[kind] for value in row["median_ns"].values()), kind


def test_a_kind_of_cost_that_cannot_be_had_has_its_reason(program: Callable[[str], ModuleType]) -> None:
    driver_costs, driver = program("driver_costs"), program("driver")

    def lacking() -> None:
        raise driver.DriverError("cuMemDiscardBatchAsync needs CUDA 13.0; this driver supports CUDA 12.8")

    assert "needs CUDA 13.0" in driver_costs._or_reason(lacking)["reason"]


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
