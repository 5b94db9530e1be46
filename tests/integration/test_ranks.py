"""Trainings of several processes, started by torchrun: numbers, files, who prints, and how they end."""

import json
import os
import random
import re
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import warm_processes

from umadvise.records.fault_profile import decode

FULL = os.environ.get("UMADVISE_FULL") == "1"
RANKS = 4 if FULL else 2
STRATEGIES, NETWORKS = ("ddp", "fsdp", "tp"), ("mlp", "cnn", "transformer", "experts")
POLICIES = ("resident", "advise", "window", "swap", "auto")
# Each strategy with each network, and each of them with each policy but one.
SAMPLE = [
    f"{strategy} {network} {POLICIES[(7 * row + 3 * column) % 5]}"
    for row, strategy in enumerate(STRATEGIES)
    for column, network in enumerate(NETWORKS)
]
ALL = [f"{strategy} {network} {policy}" for strategy in STRATEGIES for network in NETWORKS for policy in POLICIES]
KINDS = ("left", "calls", "variants", "checkpoint", "flat", "stages")
OTHERS = [f"{kind} {policy}" for kind in KINDS for policy in ("swap", "advise")]
if not FULL:  # each kind once, with the two policies in turn
    OTHERS = [case for index, case in enumerate(OTHERS) if index % 4 in (0, 3)]
PROGRAMS = Path(__file__).with_name("rank_programs.py")


def torchrun(
    *words: str | Path,
    ranks: int = 2,
    directory: Path | None = None,
    timeout: float = 300,
    python: str = sys.executable,
    **environment: str,
) -> "subprocess.CompletedProcess[str]":
    """Starts ranks with a Python, which may be that of warm_processes.py where none of them is to be killed."""
    command = [warm_processes.python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return subprocess.run(
        [*command, *map(str, words)],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHON_EXEC": python, **environment},
    )


def results(cases: list[str], ranks: int) -> dict[str, list[dict[str, Any]]]:
    """By case, what each rank found; the cases share their processes, to start these once."""
    ended = torchrun(PROGRAMS, *cases, ranks=ranks, timeout=60 * len(cases), python=warm_processes.python())
    assert ended.returncode == 0, ended.stderr[-4000:]
    lines = [json.loads(line.split("RESULT ", 1)[1]) for line in ended.stdout.splitlines() if "RESULT " in line]
    assert [line["case"] for line in lines] == cases
    return {line["case"]: line["ranks"] for line in lines}


def test_the_sample_has_every_pair_with_a_strategy() -> None:
    rows = [case.split() for case in SAMPLE]
    assert len({(row[0], row[1]) for row in rows}) == len(rows) == 12
    assert {row[2] for row in rows} == set(POLICIES)
    for place, words in enumerate((STRATEGIES, NETWORKS)):
        assert all(len({row[2] for row in rows if row[place] == word}) >= 3 for word in words)


@pytest.fixture(scope="module")
def trained() -> dict[str, list[dict[str, Any]]]:
    return results(ALL if FULL else SAMPLE, RANKS)


@pytest.mark.parametrize("case", ALL if FULL else SAMPLE)
def test_bits_are_those_without_a_session(case: str, trained: dict[str, list[dict[str, Any]]]) -> None:
    strategy, _, policy = case.split()
    for rank in trained[case]:
        assert rank["equal"], rank
        assert rank["held"] == 0, "collectives have ended, and still pin what they were given"
        if policy == "swap":
            assert rank["swap_ins"] > 0
            assert rank["chunks_peak_bytes"] <= rank["budget_bytes"]
        if policy in ("advise", "window"):
            assert rank["faults"] > 0
        assert any(name.endswith("up.weight") for name in rank["names"]), rank["names"]
        assert any(name.endswith("up.weight.exp_avg") for name in rank["names"]), (strategy, rank["names"])


@pytest.fixture(scope="module")
def others() -> dict[str, list[dict[str, Any]]]:
    return results(OTHERS, 2)


@pytest.mark.parametrize("case", OTHERS)
def test_other_programs(case: str, others: dict[str, list[dict[str, Any]]]) -> None:
    for rank in others[case]:
        assert rank["equal"], rank
        assert rank.get("stayed", True), "it left before the work had ended"
        assert rank.get("held", 0) == 0, "work has ended, and still holds what it was given"
        if case.startswith("left"):
            assert rank["swap_ins" if case.endswith("swap") else "faults"] > 0


# ---- umadvise run -------------------------------------------------------------------------------------------------

TRAIN = """
    import os, sys, time
    import torch
    from torch import distributed, nn
    from torch.nn.parallel import DistributedDataParallel

    def main(end=lambda rank, step: None):
        rank = int(os.environ["RANK"])
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        distributed.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
        assert torch.cuda.device_count() == 2 and torch.cuda.current_device() == rank
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8))).to(rank)
        model = DistributedDataParallel(model, device_ids=[rank])
        optimizer = torch.optim.Adam(model.parameters())
        for step in range(12):
            end(rank, step)
            loss = model(torch.ones(32, 512, device=f"cuda:{rank}") * rank).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            mean = loss.detach().clone()
            distributed.all_reduce(mean)
            if rank == 0:
                print(step, mean.item().hex(), flush=True)
        distributed.barrier()  # see rank_programs.py
        distributed.destroy_process_group()
"""
RUN = ("-m", "umadvise", "run", "--device", "emulated", "--capacity", "1GiB", "--policy", "swap", "--budget", "40MiB")


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    def started(last_lines: str, **settings: str) -> "subprocess.CompletedProcess[str]":
        (tmp_path / "train.py").write_text(textwrap.dedent(TRAIN) + textwrap.dedent(last_lines))
        return torchrun(*RUN, "--profile", "kept.json", "train.py", directory=tmp_path, **settings)

    return started


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name not in ("__pycache__", "train.py"))


@pytest.mark.long
def test_programs_written_for_gpus_print_what_they_print_on_the_cpu(tmp_path: Path) -> None:
    program = Path(__file__).with_name("rank_examples.py")
    python = warm_processes.python()
    plain = torchrun(program, directory=tmp_path, python=python)
    ours = torchrun(*RUN, program, directory=tmp_path, python=python)
    assert (plain.returncode, ours.returncode) == (0, 0), plain.stderr[-2000:] + ours.stderr[-2000:]
    assert ours.stdout == plain.stdout
    assert len(plain.stdout.splitlines()) == 12


def test_each_rank_has_its_files_and_one_prints(
    run: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    ended = run("main()", python=warm_processes.python())
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert files(tmp_path) == ["kept.rank0.json", "kept.rank1.json"]
    profiles = [decode((tmp_path / name).read_bytes()) for name in files(tmp_path)]
    assert [each.step_count for each in profiles] == [12, 12]
    assert len(re.findall(r"^umadvise: .*steps watched", ended.stderr, re.MULTILINE)) == 1
    assert len(ended.stdout.splitlines()) == 12


def test_a_rank_that_finds_no_room_ends_all_with_its_message(
    run: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    began = time.monotonic()
    ended = run("main(lambda rank, step: rank == step == 1 and torch.ones(64 << 20, device='cuda').sum())")
    assert ended.returncode != 0
    assert time.monotonic() - began < 60
    assert "OutOfMemoryError: CUDA out of memory. umadvise: no room for aten::" in ended.stderr
    assert "kept.rank1.json" in files(tmp_path)  # it is written however a rank's own script ends
    for name in files(tmp_path):
        decode((tmp_path / name).read_bytes())


def test_a_rank_that_is_killed_leaves_nothing_behind(
    run: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    mark, step = uuid.uuid4().hex, random.randrange(12)
    lines = "main(lambda rank, step: rank == 1 and step == {} and os.kill(os.getpid(), 9))"
    ended = run(lines.format(step), UMADVISE_TEST_MARK=mark)
    assert ended.returncode != 0
    assert "SIGKILL" in ended.stderr or "exitcode: -9" in ended.stderr, (step, ended.stderr[-2000:])
    left = left_with(mark)
    assert not left, (step, left)
    for name in files(tmp_path):  # whole, where it is there at all
        decode((tmp_path / name).read_bytes())


def left_with(mark: str) -> list[str]:
    """The processes with a mark in their environment that half a minute does not end."""
    deadline = time.monotonic() + 30
    while (left := _processes_with(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def _processes_with(mark: str) -> list[str]:
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdecimal() and mark.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found
