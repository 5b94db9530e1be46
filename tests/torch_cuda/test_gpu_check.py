"""tools/gpu_check in the sizes of a dry run, with `cuda` for its device: what somebody with minutes on a GPU starts."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from on_stand_ins import BUILD, CHECKOUT

STAGES = ["bert_16", "bert", "resnet", "resnet_256"][: 1 if os.environ.get("UMADVISE_SHORT") else 4]
COMPILED = "compiled, activation_memory_budget"  # its kernels are code for a GPU
CUPTI = ["counters_first", "memory_first"]


def checked(output: Path, stages: str) -> dict[str, dict[str, Any]]:
    """What the record says of each stage."""
    words = ["tools/gpu_check", "--small", "--stages", stages, "--output", str(output), "--build-directory", str(BUILD)]
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # the CMake that made the build
    environment = {**os.environ, "STAND_IN_MIB": "2048", "STAND_IN_ASYNC": "1", "PATH": tools}
    ended = subprocess.run(
        [sys.executable, *words], cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode in (0, 3), ended.stderr
    return {stage["name"]: stage for stage in json.loads((output / "record.json").read_text())["stages"]}


def test_what_asks_the_driver(tmp_path: Path) -> None:
    found = checked(tmp_path, "probes,driver_costs,touches,device,overhead,page_locked")
    assert {name: stage["reason"] for name, stage in found.items() if not stage["passed"]} == {}
    for part in CUPTI:
        assert found["probes"]["data"][part]["sampled_steps"] == 0, part
    assert found["page_locked"]["data"]["streams"]["record_stream"]["swap_outs"] > 0


@pytest.mark.parametrize("stage", STAGES)
def test_training_on_every_rung(tmp_path: Path, stage: str) -> None:
    found = checked(tmp_path, stage)[stage]
    unable = {row["name"]: row["reason"] for row in found["data"]["rows"] if row["outcome"] == "failed"}
    assert set(unable) <= {COMPILED}
    assert found["passed"] or found["reason"] == f"failed: {COMPILED}"
    ran = [row["name"] for row in found["data"]["rows"] if row["outcome"] == "ran"]
    assert {"vanilla", "vanilla again", "resident"} <= set(ran) or stage not in ("bert", "resnet")
    assert any(name.startswith("swap+recompute") for name in ran)
    swapped = next(row for row in found["data"]["rows"] if row["name"].startswith("swap,") and row["outcome"] == "ran")
    copies = swapped["driver_calls"]["cuMemcpyHtoDAsync"]
    assert copies["calls"] > 0 and copies["ns"] > 0
