"""What is said of a step that has just ended, and of a run in one line."""

from typing import Any

import msgspec
import pytest

from umadvise.records.fault_profile import Finding, MeasuredStep
from umadvise.reports.reporters.printing import printed
from umadvise.reports.reporters.running import in_one_line, view

MIB, MS = 1 << 20, 10**6


def step(make: Any, **fields: Any) -> MeasuredStep:
    plain = {"index": 7, "duration_ns": 30 * MS, "counters": make.counters(), "resident_peak_bytes": None}
    return MeasuredStep(**{**plain, **fields})


def test_a_step_says_what_it_waited_for_and_what_moved(make: Any) -> None:
    times = make.times(compute_ns=9 * MS, guard_ns=MS, on_demand_ns=5 * MS, room_ns=15 * MS)
    counters = make.counters(bytes_h2d=make.by_cause(coherence=MIB), bytes_d2h=make.by_cause())
    swaps = make.swaps(swap_in_bytes=3 * MIB, swap_out_bytes=2 * MIB)
    memory = make.memory(resident_bytes=64 * MIB, requested_by_role=make.by_role(parameter=40 * MIB, gradient=8 * MIB))
    grid = view(step(make, times=times, counters=counters, swaps=swaps), memory, "swap")
    assert printed([grid], 100) == (
        "Step 7 on swap\n"
        "time           30.00 ms, 3.00 times as long as without waits for memory\n"
        "waits for      room for swap-ins 15.00 ms, swap-ins on demand 5.00 ms\n"
        "on the device  64.00 MiB of what lives: parameter 40.00 MiB, gradient 8.00 MiB\n"
        "moved          4.00 MiB to the device, 2.00 MiB to the host\n"
    )


def test_where_time_is_not_counted_it_says_how_long_the_step_was(make: Any) -> None:
    text = printed([view(step(make), make.memory(), None)], 100)
    assert text.startswith("Step 7\ntime           30.00 ms\n")
    assert "waits" not in text


def test_a_run_in_one_line(make: Any) -> None:
    finding = Finding(id="swap-stall", severity="warning", subject="step", message="m", advice="Do that.", evidence={})
    slow, usual = make.times(compute_ns=10 * MS, room_ns=90 * MS), make.times(compute_ns=10 * MS, room_ns=20 * MS)
    steps = tuple(
        step(make, index=index, duration_ns=times.sum_ns, times=times)
        for index, times in enumerate([slow, usual, usual])
    )
    profile = make.profile(steps=steps, step_count=3)
    assert in_one_line(profile) == "a step takes 30.00 ms, 66.7% of it waiting for memory."
    assert in_one_line(msgspec.structs.replace(profile, findings=(finding,))) == (
        "a step takes 30.00 ms, 66.7% of it waiting for memory. To change first (swap-stall): Do that."
    )
    assert in_one_line(make.profile(steps=(), step_count=0)) == "no step was completed"


@pytest.mark.parametrize(
    ("said", "more"),
    [
        ("Up to 3 GiB are live: --budget 4GiB has room: 1.50 ms to 2.50 ms.", " --policy swap: 3 ms. Or less."),
        ("Up to 3 GiB are live at once, 1 GiB may be. --policy swap: 2.50 ms a step.", " Or less."),
        ("A larger budget has room for more, budget=... or --budget. Whether swap is faster says FILE.", " More."),
    ],
)
def test_the_line_names_one_change(make: Any, said: str, more: str) -> None:
    finding = Finding(id="a", severity="warning", subject="step", message="m", advice=said + more, evidence={})
    line = in_one_line(make.profile(steps=(step(make),), step_count=1, findings=(finding,)))
    assert line.endswith(f" To change first (a): {said}")
