"""Where the report says that time went."""

from typing import Any

from umadvise.records.fault_profile import FaultProfile, MeasuredStep
from umadvise.reports.reporters import seconds, text
from umadvise.reports.reporters.printing import printed

MS = 10**6


def measured(make: Any, *steps: tuple[int, dict[str, int]]) -> FaultProfile:
    """Steps by their durations and what of it was measured, in milliseconds."""
    times = [make.times(**{field: ms * MS for field, ms in spent.items()}) for _, spent in steps]
    total = times[0]
    for each in times[1:]:
        total = total.plus(each)
    profile: FaultProfile = make.profile(
        step_count=len(steps),
        duration_ns=sum(duration_ms for duration_ms, _ in steps) * MS,
        steps=tuple(
            MeasuredStep(
                index=index,
                duration_ns=duration_ms * MS,
                counters=make.counters(),
                resident_peak_bytes=None,
                times=spent,
            )
            for index, ((duration_ms, _), spent) in enumerate(zip(steps, times, strict=True), start=1)
        ),
        times=total,
    )
    return profile


def test_each_kind_has_a_line_and_so_has_what_nobody_measured(make: Any) -> None:
    usual = {"compute_ns": 60, "migration_ns": 20, "guard_ns": 10, "script_ns": 9}
    first = {**usual, "planning_ns": 100, "compute_ns": 65}
    profile = measured(make, (210, first), (100, usual), (100, usual), (100, usual))
    assert printed(seconds.section(profile), 100) == (
        "Where a step's time goes\n"
        "what                  median     least       most  of all steps\n"
        "ops                 60.00 ms  60.00 ms   65.00 ms         48.0%\n"
        "faults: bytes come  20.00 ms  20.00 ms   20.00 ms         15.7%\n"
        "guard               10.00 ms  10.00 ms   10.00 ms          7.8%\n"
        "script               9.00 ms   9.00 ms    9.00 ms          7.1%\n"
        "planning                0 ns      0 ns  100.00 ms         19.6%\n"
        "unexplained          1.00 ms   1.00 ms    6.00 ms          1.8%\n"
        "Step 1 took 210.00 ms, not 100.00 ms: 100.00 ms more of it is planning\n"
    )


def test_every_kind_has_words(make: Any) -> None:
    assert set(seconds.WORDS) == set(make.times().__struct_fields__)


def test_of_many_odd_steps_the_longest_are_named(make: Any) -> None:
    long = [(100 + 50 * index, {"compute_ns": 100, "script_ns": 50 * index}) for index in range(1, 7)]
    lines = list(seconds.odd_steps(seconds.steps_of(measured(make, *long, *[(100, {"compute_ns": 100})] * 9))))
    assert [line.split(":")[0] for line in lines] == [
        "Step 3 took 250.00 ms, not 100.00 ms",
        "Step 4 took 300.00 ms, not 100.00 ms",
        "Step 5 took 350.00 ms, not 100.00 ms",
        "Step 6 took 400.00 ms, not 100.00 ms",
        "... and 2 more steps took longer than 1.25 times the median",
    ]


def test_where_nobody_can_tell_there_is_no_such_table(make: Any) -> None:
    assert list(seconds.section(make.profile(steps=make.steps(make.counters())))) == []
    assert "time goes" not in text.render(make.profile(steps=make.steps(make.counters())))
