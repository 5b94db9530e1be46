"""Sessions on a CUDA device, through the libcuda provider: the programs of cuda_programs.py, each in its process."""

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import stand_ins
import warm_processes
from stand_ins import CHECKOUT

MANAGED, DEVICE, CHUNKED = 0, 1, 3
Program = Callable[..., Any]


@pytest.fixture(scope="session")
def program() -> Program:
    """program(name, ...): what that program prints as JSON, and what it says on standard error."""

    def run(*words: str) -> Any:
        libcuda = stand_ins.libcuda_folder() / "libcuda.so.1"
        command = [warm_processes.python(), str(Path(__file__).with_name("cuda_programs.py")), str(libcuda), *words]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")])}
        finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert finished.returncode == 0, finished.stderr[-4000:]
        return json.loads(finished.stdout.splitlines()[-1])

    return run


def check_identity(seen: Any) -> Any:
    """Numbers are vanilla torch's to the last bit, and nothing stays on the device; returns the rest."""
    session = seen["session"]
    assert (session["losses"], session["state"]) == (seen["vanilla"]["losses"], seen["vanilla"]["state"])
    assert session["provider"] == "cuda"
    assert not session["owned_afterwards"]
    return session


@pytest.mark.parametrize("host_memory", ["crashes", "none"])
def test_chunks_swap_under_a_plan(program: Program, host_memory: str) -> None:
    session = check_identity(program("swapping", host_memory))
    assert (session["rung"], session["memories"], session["chunk_bytes"]) == ("swap", [CHUNKED], 2 << 20)
    assert session["swapped"]
    assert session["within"]
    assert session["followed"] > 0
    assert (session["timed"], session["explained"]) == ([1, 2, 3], True)  # the first three steps are sampled
    assert session["apart"] == [0] * 8  # each table by role, phase, module, tensor and op
    untried = ["discard of dead ranges"]
    assert session["lacks"] == untried


def test_chunks_are_small_enough_for_what_is_to_be_swapped(program: Program) -> None:
    session = check_identity(program("smaller"))
    assert (session["chunk_bytes"], session["swapped"], session["within"]) == (2 << 20, True, True)


@pytest.mark.parametrize(("policy", "rungs"), [("window", {"window"}), ("auto", {"window", "swap", "swap+recompute"})])
def test_other_policies_run_there_too(program: Program, policy: str, rungs: set[str]) -> None:
    """Whatever `auto` has chosen, the model is in that memory."""
    session = check_identity(program("unified", policy))
    assert session["rung"] in rungs
    assert session["memories"] == [MANAGED if session["rung"] == "window" else CHUNKED]


# As on WSL, and on some virtual GPUs.
def test_without_concurrent_access_chunks_do_as_well(program: Program) -> None:
    session = check_identity(program("lacking", "89", "auto"))
    assert (session["rung"], session["memories"], session["swapped"]) == ("swap", [CHUNKED], True)


def test_a_script_does_without_concurrent_access_too(program: Program) -> None:
    seen = program("script", "89", "auto")
    assert (seen["script"]["losses"], seen["script"]["state"]) == (seen["vanilla"]["losses"], seen["vanilla"]["state"])
    assert seen["script"]["memories"] == [CHUNKED]
    assert seen["steps"] == 3


def test_auto_has_no_swapping_rungs_where_the_device_has_no_chunks(program: Program) -> None:
    session = check_identity(program("lacking", "102", "auto"))
    assert session["rung"] in ("advise", "window")
    assert session["memories"] == [MANAGED]


def test_a_script_is_refused_what_it_cannot_do_without(program: Program) -> None:
    seen = program("script", "89", "window")
    assert "policy window needs prefetches: the device has no concurrent managed access" in seen["message"]
    assert not seen["patched"]


@pytest.mark.parametrize(
    ("attribute", "policy", "reason"),
    [
        ("89", "window", r"policy window needs prefetches: the device has no concurrent managed access"),
        ("89", "advise", r"no budget can be kept: the device has no concurrent managed access \(attribute 89\)"),
        ("102", "swap", r"explicit swapping is not possible: .* no management of virtual memory \(attribute 102\)"),
    ],
)
def test_what_a_policy_cannot_do_without_is_refused_in_words(
    program: Program, attribute: str, policy: str, reason: str
) -> None:
    seen = program("refused", attribute, policy)
    assert re.search(reason, seen["message"]), seen["message"]
    assert not seen["patched"]


def test_an_address_that_left_torch_is_good_while_others_swap_and_after_the_session(program: Program) -> None:
    seen = program("addresses")
    assert seen["inside"] == [1.0, float(6 << 20)]
    assert seen["outside"] == [1.0, float(6 << 20), 8.0, 8.0]
    assert (seen["memory"], seen["exports"]) == (CHUNKED, 1)


def test_ops_find_room_where_every_address_is_out(program: Program) -> None:
    session = check_identity(program("addresses_of_all"))
    assert session["exports_ended"] > 0
    assert session["within"]


def test_what_a_device_lacks_is_told_by_name(program: Program) -> None:
    told = program("features")
    assert told["managed memory"] is None
    assert "attribute 89" in told["advice, prefetches and a budget"]
    assert "attribute 102" in told["explicit swapping"]
