"""tools/gpu_check's dry run, as somebody on another machine runs it, and what fidelity makes of its record.

A bundle is unpacked into an empty directory, and each stage is a process of its own that has no network, no compiler
and no cache.
"""

import importlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import stand_ins
from stand_ins import CHECKOUT

pytestmark = pytest.mark.long

MIB = 1 << 20
STAGES = ["probes", "driver_costs", "touches", "device", "overhead", "page_locked", "tokens", "tests", "bert"]
STAGES += ["resnet_256", "bert_16", "eviction", "resnet", "bert_32", "vit_giant", "bert_managed"]
# Not this environment's Python, which finds umadvise in the checkout, wherever it runs.
PYTHON = getattr(sys, "_base_executable", sys.executable)
BROUGHT = ("msgspec", "rich")
"""Packages that the machine lacks and the bundle brings."""


def without_network() -> list[str]:
    """Words before a command that take the network away from it, where this machine lets us."""
    words = ["unshare", "--map-root-user", "--net"]
    if shutil.which("unshare") is None:
        return []
    return words if subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0 else []


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that has nothing but what was in the archive."""
    stand_ins.folder()
    folder = tmp_path_factory.mktemp("gpu_check")
    command = [sys.executable, str(CHECKOUT / "tools" / "gpu_check" / "bundle.py"), "--output", str(folder / "bundle")]
    words = ["--archive", str(folder / "archive.tar.gz"), "--build-directory", str(stand_ins.BUILD)]
    subprocess.run([*command, *words], check=True, capture_output=True)
    with tarfile.open(folder / "archive.tar.gz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian 12's Python 3.11.2 has none
        archive.extractall(folder / "unpacked")
    for package in BROUGHT:  # as --package does, from a registry
        found = Path(importlib.import_module(package).__file__ or "").parent
        shutil.copytree(found, folder / "unpacked" / "build" / "gpu_bundle" / "packages" / package / package)
    return folder / "unpacked"


def lacking(packages: tuple[str, ...], folder: Path) -> Path:
    """A folder with all that is installed here but these."""
    folder.mkdir()
    for installed in (path for place in sys.path if place.endswith("site-packages") for path in Path(place).iterdir()):
        if installed.name.partition("-")[0] not in packages and not (folder / installed.name).exists():
            (folder / installed.name).symlink_to(installed)
    return folder


@pytest.fixture(scope="module")
def dry_run(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The record of a dry run that passed every stage there is, stage by stage."""
    folder = tmp_path_factory.mktemp("results")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("UMADVISE_")}
    environment |= {
        "PYTHONPATH": str(lacking(BROUGHT, folder / "site-packages")),
        "PYTHONNOUSERSITE": "1",
        "XDG_CACHE_HOME": str(folder / "cache"),
        "CXX": "no-such-compiler",
    }
    for stage in STAGES:
        command = [PYTHON, "tools/gpu_check", "--dry-run", "--stages", stage, "--output", str(folder / "output")]
        words = [*without_network(), *command]
        ended = subprocess.run(words, cwd=unpacked, env=environment, check=False, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
    assert sorted(path.name for path in (folder / "output").iterdir()) == ["log.txt", "record.json", "summary.txt"]
    return folder / "output" / "record.json"


@pytest.fixture(scope="module")
def data(dry_run: Path) -> dict[str, Any]:
    return {stage["name"]: stage["data"] for stage in json.loads(dry_run.read_text())["stages"]}


def test_every_stage_has_passed_with_what_the_bundle_brought(dry_run: Path, data: dict[str, Any]) -> None:
    record = json.loads(dry_run.read_text())
    assert {stage["name"] for stage in record["stages"]} == {*STAGES, "build", "environment", "hooks"}
    assert all(stage["passed"] for stage in record["stages"])
    assert (data["build"]["from"], data["hooks"]["from"]) == ("bundle", "bundle")
    assert "unpacked/build/gpu_bundle/libumadvise.so" in data["build"]["library"]
    summary = (dry_run.parent / "summary.txt").read_text()
    assert all(f"\n{stage} (" in summary for stage in STAGES)


def test_the_probes_find_what_the_emulated_device_does(data: dict[str, Any]) -> None:
    probes = data["probes"]
    assert not [name for name, found in probes.items() if isinstance(found, dict) and "reason" in found]
    calls = probes["busy_calls"]["calls"]
    waiting = {name for name, row in calls.items() if not row["kernel_still_ran"]}
    assert waiting >= {"cuMemFree", "cuMemFree of managed memory"}  # as cudaFree waits for the device
    assert not waiting & {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuEventRecord", "cuStreamWaitEvent"}
    assert all(row["behind a kernel_still_ran"] for name, row in calls.items() if name.startswith("cuEvent"))
    beside = probes["launches_beside"]["beside"]
    assert all(row[when]["launches"] > 0 for row in beside.values() for when in ("idle", "kernel"))
    kernel_ns = probes["launches_beside"]["kernel_ms"] * 1e6
    assert beside["cuMemUnmap"]["kernel"]["median_launch_ns"] < kernel_ns  # the emulated driver lets others launch
    assert [row["chunks"] for row in probes["several_mappings"]] == [1, 8]
    aliased = probes["aliased"]
    assert [aliased[name] for name in aliased if name.startswith("read_")] == [True] * 3
    assert (aliased["ranges"], aliased["wrong_kernels"], aliased["wrong_copies"]) == (16, [], [])
    assert probes["layout"]["mappings"] == 64
    assert all(found["all_written_kept"] for found in probes["discards"].values())
    assert {way["h2d"]["gb_per_s"] > 0 for way in probes["bandwidth"].values()} == {True}
    assert len(probes["prefetches"]["rows"]) == 4 * 2 * 3
    assert (probes["counters_first"]["sampled_steps"], probes["memory_first"]["sampled_steps"]) == (1, 1)
    blocks = probes["memory_first"]["bytes"] // (2 * MIB)
    assert probes["memory_first"]["fault_groups"] == blocks  # one sweep over what lay with the host
    assert probes["host_numa"]["host_reads_what_kernel_wrote"] is True


def test_tokens_are_the_same_in_every_way(data: dict[str, Any]) -> None:
    found = data["tokens"]
    assert list(found) == ["plain", "swap", "auto"]
    assert len({str([found[way][name]["sums_hex"] for name in ("first", "again")]) for way in found}) == 1
    assert len(set(found["plain"]["first"]["sums_hex"])) == 4
    assert found["swap"]["rung_at_end"] == "swap" and found["swap"]["swaps_per_token"]["swap_ins"] > 0


def test_costs_are_by_size(data: dict[str, Any]) -> None:
    costs = data["driver_costs"]
    for kind in ("prefetch", "advice", "discard", "chunks", "host_chunks"):
        sizes = [row["bytes"] for row in costs[kind]]
        assert sizes == sorted(sizes) and len(sizes) > 1, kind
        assert all(value > 0 for row in costs[kind] for value in row["median_ns"].values()), kind
    assert {row["bytes"] for row in costs["chunks"]} == {2 * MIB, 20 * MIB}
    assert [row["bytes"] for row in data["touches"]["by_size"]] == [2 * MIB, 16 * MIB]
    assert data["overhead"].keys() == {"vanilla_ns", "allocator_ns", "interposed_ns"}


def test_ops_give_the_same_where_their_storages_lie_in_page_locked_memory(data: dict[str, Any]) -> None:
    assert data["page_locked"].pop("streams") == {"reason": "torch has no streams on the emulated device"}
    ops = {f"{part}, {name}": op for part, found in data["page_locked"].items() for name, op in found.items()}
    assert {name for name, op in ops.items() if not (op["right"] and op["repeats"] and op["same_bits"])} == set()
    assert all(op["moved"] > 0 for op in ops.values())
    assert {"atomics, index_add_, float16", "gradients, LSTM", "optimizers, AdamW, foreach"} <= ops.keys()


def test_the_device_file_is_of_the_catalogue_and_has_what_was_measured(data: dict[str, Any]) -> None:
    from umadvise.devices import catalogue

    profile = catalogue.decode(data["device"]["device_file"].encode())
    assert profile.link.kind == "host-memory"
    assert "medians by size" in profile.unified_memory.costs.prefetch_call_ns.source
    link = data["device"]["link"]
    assert set(link) == {"h2d", "d2h", "both_h2d", "both_d2h"}
    assert len({tuple(row["bytes"] for row in rows) for rows in link.values()}) == 1


def test_the_model_evicts_what_was_not_prefetched_again(data: dict[str, Any]) -> None:
    seen = data["eviction"]  # csrc/um/model.h: a prefetch of what is resident makes it the youngest
    for came_back in (seen["as_it_came"]["first"], seen["prefetched_again"]["second"]):
        assert 20 * MIB < came_back["came_back_bytes"] <= 24 * MIB  # less what finds room in plain memory that is there
    assert seen["as_it_came"]["second"]["came_back_bytes"] == seen["prefetched_again"]["first"]["came_back_bytes"] == 0
    assert seen["prefetch_refreshes"] is True


def test_rows_say_who_was_busy(data: dict[str, Any]) -> None:
    for row in data["bert"]["rows"]:
        if row["outcome"] == "ran":
            assert row["host_busy_ns"] > 0 and 0 < row["launch_ns"] <= max(row["steps_ns"])
            assert row["busy"] == {"gpu_ns": None, "reason": "torch's profiler saw no kernel"}
    swap = next(row for row in data["bert"]["rows"] if row["name"] == "swap, 50 %")
    assert swap["driver_calls"]["cuMemcpyHtoDAsync"]["calls"] > 0 and swap["swaps"]["swap_ins"] > 0
    assert max(swap["model_resident_peak_bytes"], swap["chunks_used_peak_bytes"]) == swap["peak_bytes"]


@pytest.mark.parametrize("comparison", ["resnet_256", "bert_16"])
def test_a_comparison_says_what_a_plan_promises_and_moves(data: dict[str, Any], comparison: str) -> None:
    rows = {row["name"]: row for row in data[comparison]["rows"]}
    assert list(rows) == ["vanilla", "resident", "swap+recompute, 50 %", "swap, 50 %"]
    swap = rows["swap, 50 %"]
    assert swap["outcome"] == "ran" and swap["same_losses"]
    assert swap["predicted_step_ns"] >= swap["recorded_ops_ns"] > 0
    # A swap-out that is cancelled, or whose host copy is valid, moves nothing: on a slow machine more of them are.
    assert min(*swap["planned_bytes"].values(), swap["swaps"]["swap_in_bytes"], swap["swaps"]["swap_out_bytes"]) > 0


@pytest.mark.parametrize(("network", "parts"), [("bert", (100, 50)), ("resnet", (100,))])
def test_every_rung_and_every_way_has_a_row(data: dict[str, Any], network: str, parts: tuple[int, ...]) -> None:
    from umadvise.devices.rungs import RUNGS

    rows = {row["name"]: row for row in data[network]["rows"]}
    below = [rung for rung in RUNGS if rung != "resident"]
    expected = {"resident"} | {f"{rung}, {part} %" for rung in (*below, "unified, no advice") for part in parts}
    assert {name for name, row in rows.items() if row["way"] is None} == expected
    assert data[network]["vanilla_repeats"] is True
    absent = {name: row["reason"] for name, row in rows.items() if row["outcome"] == "absent"}
    assert absent == {
        "torchtune OffloadActivations": "torchtune.training is not installed",
        "torchao CPUOffloadOptimizer": "torchao.optim is not installed",
    }
    ran = [row for row in rows.values() if row["outcome"] == "ran"]
    assert len(ran) >= len(rows) - 2
    assert all(row["same_losses"] for row in ran if row["way"] is None)
    needed_bytes = rows["resident"]["needed_bytes"]
    of_budget = [row for row in ran if row["budget_percent"] is not None]
    assert all(row["budget_bytes"] == needed_bytes * row["budget_percent"] // 100 for row in of_budget)


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
    # One op of the small ResNet uses more than a plan has in half of its memory.
    unpredicted = {each for each in unpredicted if "12.00 MiB at once: no plan" not in each}
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
