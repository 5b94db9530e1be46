"""What an installed umadvise does where nothing else is installed: plans, predictions and reports."""

import ctypes
import importlib.metadata
import importlib.util
import subprocess
import sys
from pathlib import Path

import umadvise
from umadvise._native.library import library_path
from umadvise.recording.builder import TraceBuilder
from umadvise.records import fault_profile, trace_file
from umadvise.records.counters import CAUSES, ROLES, BytesByCause, BytesByRole, Counters, MemoryStats
from umadvise.records.enums import Role
from umadvise.records.fault_profile import FaultProfile, RunEnvironment, Table, Tables
from umadvise.records.trace import Access, Trace

MIB = 1 << 20
COMMAND = Path(sys.executable).with_name("umadvise")


def said(*words: str, status: int = 0) -> str:
    """What the command prints.

    Args:
        words: its arguments.
        status: the exit code that it must have.
    """
    finished = subprocess.run([COMMAND, *words], capture_output=True, text=True, check=False)
    assert finished.returncode == status, f"umadvise {' '.join(words)}: {finished}"
    return finished.stdout + finished.stderr


def step() -> Trace:
    """Forward makes sixteen maps of 64 MiB, backward reads them in the opposite order: 1 GiB at its peak."""
    builder, maps = TraceBuilder(), []
    for _ in range(16):
        builder.begin_op("aten::relu", duration_ns=10**7)
        maps.append(builder.allocate(64 * MIB, Role.INTERMEDIATE))
        builder.access(maps[-1], Access.WRITE | Access.WHOLE)
        builder.end_op()
    for each in reversed(maps):
        builder.begin_op("aten::threshold_backward", duration_ns=10**7)
        builder.access(each, Access.READ)
        builder.end_op()
        builder.free(each)
    return builder.finish(target="cuda", source="synthetic", workload="maps")


def quiet_run() -> FaultProfile:
    """The profile of a run in which nothing happened."""
    by_cause, by_role = BytesByCause(**dict.fromkeys(CAUSES, 0)), BytesByRole(**dict.fromkeys(ROLES, 0))
    numbers = {name: 0 for name in Counters.__struct_fields__ if name != "remote_accesses"}
    sizes = {name: by_role if "by_role" in name else 0 for name in MemoryStats.__struct_fields__}
    environment = RunEnvironment(
        device_name="emulated device",
        provider="emulated",
        counting="ordered",
        capacity_bytes=1024 * MIB,
        budget_bytes=None,
        policy="advise",
        umadvise_version=umadvise.__version__,
        torch_version="none",
        script="train.py",
    )
    return FaultProfile(
        environment=environment,
        step_count=2,
        duration_ns=2_000_000_000,
        counters=Counters(**numbers | {"bytes_h2d": by_cause, "bytes_d2h": by_cause}),
        outside=None,
        events_dropped=0,
        memory=MemoryStats(**sizes),
        steps=(),
        tables=Tables(**{name: Table(rows=(), rest=None) for name in Tables.__struct_fields__}),
        pattern=None,
        oversized_ops=(),
        findings=(),
    )


def main() -> None:
    """Runs the commands that do without torch, and one that does not."""
    assert importlib.util.find_spec("torch") is None
    assert Path(umadvise.__file__).is_relative_to(sys.prefix), umadvise.__file__
    assert not hasattr(ctypes.CDLL(str(library_path())), "_ZSt9terminatev"), "others could find the core's libstdc++"
    assert said("--version").split() == ["umadvise", importlib.metadata.version("umadvise")]
    assert "torch" in said("doctor")
    assert "rtx-4090" in said("devices")

    trace_file.write(step(), "step.trace")
    there = ("step.trace", "--target", "rtx-4090")
    assert "plan in step.plan" in said("plan", *there, "--planner", "best", "--budget", "50%", "-o", "step.plan")
    assert "your plan" in said("simulate", *there, "--plan", "step.plan")
    assert "lru" in said("compare", *there, "--planner", "lru", "--budget", "50%")

    fault_profile.write(quiet_run(), "quiet.json")
    assert "emulated device" in said("report", "quiet.json")
    said("report", "quiet.json", "--html", "quiet.html")
    assert "<html" in Path("quiet.html").read_text()

    Path("train.py").write_text("print('never')\n")
    told = said("run", "--device", "emulated", "--capacity", "1GiB", "train.py", status=1)
    assert "install torch" in told and "Traceback" not in told, told
    packages = sorted(f"{each.name} {each.version}" for each in importlib.metadata.distributions())
    print(f"without torch: all commands work, with {', '.join(packages)}")


if __name__ == "__main__":
    main()
