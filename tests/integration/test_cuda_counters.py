"""Fault counters of device "cuda" from the program's side, on the libraries that the C++ tests make.

They are a libcuda.so.1 behind which the emulated device works, and a stand-in for CUPTI that tells of what happens
there.
"""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import stand_ins

from umadvise.records.fault_profile import FaultProfile, decode, encode
from umadvise.reports.reporters import text

MIB = 1 << 20
BYTES = 8 * MIB
BLOCKS = BYTES // (2 * MIB)

# Five steps in which one op uses a parameter that was sent to the host before, and makes an intermediate.
PROGRAM = f"""
import ctypes
import sys

from umadvise import _native
from umadvise._native.abi import Memory, Placement
from umadvise.records import fault_profile as profile
from umadvise.records.enums import Advice, Phase, Role
from umadvise.torch_seam import runtime
from umadvise.training.watch.observer import Observer

ctypes.CDLL(sys.argv[1])  # as torch has loaded one
parameters = Placement(Memory.MANAGED, Role.PARAMETER, Advice.NONE)
intermediates = Placement(Memory.MANAGED, Role.INTERMEDIATE, Advice.NONE)
device = _native.Device.open_cuda(0)
observer = Observer(runtime.Runtime(device, emulated=False, ordinal=0, budget_bytes=None), sample_every=4)
observer.attach()
weight = device.allocate({BYTES}, parameters)
_native.label(weight, Role.PARAMETER, "weight")
for step in range(5):
    _native.prefetch(weight, {BYTES}, to_host=True)
    observer.clock.begin_step()
    made = device.allocate({BYTES}, intermediates)
    accesses = [(weight, {BYTES}, False), (made, {BYTES}, True)]
    device.op_begin("aten::add", Phase.FORWARD, "layer", accesses)
    ctypes.memmove(made, weight, {BYTES})
    device.op_end([made])
    _native.free(made)
    observer.clock.end_step()
sys.stdout.buffer.write(profile.encode(observer.profile()))
observer.detach()
"""


def profile_of(cuda: int = 12, **variables: str) -> FaultProfile:
    """The program's profile, with a CUDA version's CUPTI."""
    folder = str(stand_ins.libcuda_folder())
    environment = {**os.environ, "LD_LIBRARY_PATH": folder, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    command = [sys.executable, "-c", PROGRAM, str(stand_ins.cupti(cuda))]
    ended = subprocess.run(command, capture_output=True, env=environment, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr.decode()
    return decode(ended.stdout)


@pytest.mark.parametrize("cuda", [12, 13])
def test_a_program_on_cuda_reads_its_faults(cuda: int) -> None:
    profile = profile_of(cuda)
    assert profile.environment.provider == "cuda"
    assert profile.sampling is not None
    assert profile.sampling.reason is None
    assert (profile.step_count, profile.sampling.steps, profile.sampling.failed_steps) == (5, 4, 0)
    # The parameter comes back in each step; the intermediate is made in the first, and its memory is used again.
    steps = [step.counters for step in profile.steps]
    assert [counters.fault_groups for counters in steps] == [2 * BLOCKS, BLOCKS, BLOCKS, BLOCKS, None]
    assert [counters.op_count for counters in steps] == [1] * 5
    came = [counters.bytes_h2d.coherence if counters.bytes_h2d else None for counters in steps]
    assert came == [BYTES, BYTES, BYTES, BYTES, None]  # a prefetch makes what was never touched, too
    assert profile.counters.fault_groups == 5 * BLOCKS
    assert profile.counters.op_count == 5
    assert profile.counters.remote_accesses is None
    assert 0 < (profile.counters.fault_service_ns or 0) <= profile.sampling.duration_ns


def test_the_tables_name_tensor_op_and_module() -> None:
    profile = profile_of()
    assert profile.tables is not None
    rows = {row.name: row for row in profile.tables.tensor.rows}
    assert (rows["weight"].role, rows["weight"].fault_groups, rows["weight"].faulted_steps) == ("parameter", 16, 4)
    assert rows["weight"].bytes_h2d.coherence == 4 * BYTES
    assert rows[None].fault_groups == BLOCKS  # the intermediate: freed before its records were read
    assert (rows[None].role, rows[None].bytes) == ("intermediate", BYTES)
    assert [(row.op, row.phase) for row in profile.tables.op.rows] == [("aten::add", "forward")]
    assert [row.module for row in profile.tables.module.rows] == ["layer"]
    assert "Counted in 4 of 5 steps" in text.render(profile)


@pytest.mark.parametrize(
    ("fail", "words"),
    [
        ("cuptiSubscribe:39", "another profiler is active"),
        ("cuptiActivityEnable:35", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("cuptiActivityFlushAll:999", "cuptiActivityFlushAll failed"),
    ],
)
def test_what_cannot_be_counted_is_null_with_the_reason(fail: str, words: str) -> None:
    profile = profile_of(FAKE_CUPTI_FAIL=fail)
    assert profile.sampling is not None
    assert (profile.sampling.steps, profile.sampling.failed_steps) == (0, 4)
    assert words in (profile.sampling.reason or "")
    counters: Any = json.loads(encode(profile))["counters"]
    known = {field: value for field, value in counters.items() if value is not None}
    assert known == {"op_count": 5, "oversized_ops": 0}
    assert profile.tables is None
    assert words.split(" ", maxsplit=1)[0] in text.render(profile)
