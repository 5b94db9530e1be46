"""Two runs or two plans side by side: exact text, and conditions."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from umadvise.errors import UmadviseError, UsageError
from umadvise.records.counters import SpentTime
from umadvise.records.fault_profile import FaultProfile, MeasuredStep, PlannedSteps, RungChange
from umadvise.reports.differences import conditions, plans, profiles
from umadvise.reports.differences.quantities import Quantity
from umadvise.reports.reporters import difference as reporter

MIB = 1 << 20
MS = 10**6


def swapping(make: Any, step_ms: tuple[int, ...], moved: int, **environment: Any) -> FaultProfile:
    """A run of swaps whose steps each wait a tenth of `moved` ms and swap in so many MiB, all of it for one module."""
    steps = len(step_ms)
    swaps = make.swaps(
        swap_ins=steps, swap_in_bytes=steps * moved * MIB, wait_copy_ns=steps * moved * MS // 10, on_demand_swap_ins=1
    )
    row = {"swap_in_bytes": steps * moved * MIB, "wait_copy_ns": steps * moved * MS // 10}
    measured = tuple(
        msgspec.structs.replace(step, duration_ns=each * MS)
        for step, each in zip(make.steps(*[make.counters()] * steps), step_ms, strict=True)
    )
    made: FaultProfile = make.profile(
        environment=make.environment(policy="swap", **environment),
        placed=make.placed("chunked"),
        step_count=steps,
        duration_ns=sum(step_ms) * MS,
        steps=measured,
        swaps=swaps,
        planned=PlannedSteps(driven=steps, undriven=()),
        rungs=(RungChange(step=1, rung="swap", reason="chosen by the user"),),
        tables=make.tables(
            role=(make.role(role="parameter", **row),),
            module=(make.module(module="encoder.0", **row), make.module(module="head")),
            tensor=(make.tensor(name="encoder.0.weight", role="parameter", **row),),
        ),
    )
    return made


EXPECTED = """\
Two runs:
  here   before.json
  there  after.json
Device: emulated device here, v100 there.
torch: 2.13.0 here, 2.12.1 there.
Budget: 512.00 MiB here, 256.00 MiB there.

Of a step, what is not the same
                                    here      there   change  name
a step, the median             100.00 ms  150.00 ms   +50.0%  step_ns
steps                                  4          3   -25.0%  steps
waits of all causes, the mean    1.00 ms    2.00 ms  +100.0%  waits_ns
waits for copies                 1.00 ms    2.00 ms  +100.0%  wait_copy_ns
swapped in                     10.00 MiB  20.00 MiB  +100.0%  swap_in_bytes
of these, on demand                  0.2        0.3   +33.2%  on_demand_swap_ins

Modules that changed most
module     moved here      there  waits here    there
encoder.0   10.00 MiB  20.00 MiB     1.00 ms  2.00 ms

Tensors that changed most
tensor                                  moved here      there  waits here    there
encoder.0.weight (parameter, 4.00 MiB)   10.00 MiB  20.00 MiB     1.00 ms  2.00 ms

failed: --fail-if "step_ns > +5%"
"""


def test_two_runs(make: Any) -> None:
    here = swapping(make, (900, 100, 100, 100), 10, budget_bytes=512 * MIB)
    there = swapping(make, (150, 150, 90), 20, budget_bytes=256 * MIB, device_name="v100", torch_version="2.12.1")
    found = profiles.difference(here, there, ("before.json", "after.json"))
    asked = conditions.parse_condition("step_ns > +5%", profiles.KINDS)
    found = msgspec.structs.replace(found, conditions=conditions.checked([asked], found.quantities))
    assert reporter.render(found) == EXPECTED


def test_a_run_beside_itself(make: Any) -> None:
    run = swapping(make, (100, 100), 10)
    found = profiles.difference(run, run, ("a", "b"))
    assert reporter.render(found) == "Two runs:\n  here   a\n  there  b\n\nAll numbers are the same.\n"
    assert found.circumstances == found.subjects == ()


def test_what_neither_run_had_is_no_difference(make: Any) -> None:
    """One had unified memory and no faults, the other had none: a line of 0 and "-" tells nobody anything."""
    paged = make.profile(counters=make.counters(fault_groups=0, evictions=0))
    swapped = swapping(make, (100, 100), 10)
    shown = reporter.render(profiles.difference(paged, swapped, ("a", "b")))
    assert "groups of page faults" not in shown
    assert "blocks evicted" not in shown
    assert "swapped in" in shown


def test_what_leaves_the_tables_counts_as_nothing(make: Any) -> None:
    here = make.profile(tables=make.tables(module=(make.module(module="a", service_ns=2 * MS),)))
    there = make.profile(tables=make.tables(module=(make.module(module="b", service_ns=4 * MS),)))
    found = {each.name: each for each in profiles.difference(here, there, ("", "")).subjects}
    assert (found["a"].here_ns, found["a"].there_ns) == (MS, 0)
    assert (found["b"].here_ns, found["b"].there_ns) == (0, 2 * MS)


def test_names_are_told_apart() -> None:
    for kinds in (profiles.KINDS, plans.KINDS):
        names = [each.name for each in kinds]
        assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("text", "here", "there", "holds"),
    [
        ("step_ns > +5%", 100, 106, True),
        ("step_ns > +5%", 100, 105, False),
        ("step_ns >= 5%", 100, 105, True),
        ("step_ns < -5%", 100, 94, True),
        ("step_ns < -5%", 100, 95, False),
        ("step_ns > +0%", 0, 1, True),
        ("step_ns > +0%", 0, 0, False),
        ("step_ns>2ms", None, 2_000_001, True),
        ("step_ns > 0.1 s", None, 10**8, False),
        ("step_ns > +1us", 10, 1011, True),
        ("faults > 100", None, 101, True),
        ("faults > +100", 50, 150, False),
        ("faults <= 1.5", None, 1.5, True),
        ("swap_in_bytes > 2GiB", None, (2 << 30) + 1, True),
        ("swap_in_bytes < -1 MiB", 4 * MIB, 3 * MIB - 1, True),
    ],
)
def test_conditions(text: str, here: int | None, there: int, holds: bool) -> None:
    condition = conditions.parse_condition(text, profiles.KINDS)
    quantity = Quantity(name=condition.name, unit="count", words="", here=here, there=there)
    assert condition.holds(quantity) is holds


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("step_n > 5", "no quantity 'step_n'; the nearest are step_ns, "),
        ("zzz > 5", "the nearest are bytes_d2h, "),
        ("step_ns = 5", "expected a quantity, < or >, and a number"),
        ("step_ns > ", "expected a quantity, < or >, and a number"),
        ("step_ns > 5MiB", "5MiB is no such number: expected ns, us, ms or s"),
        ("faults > 5ms", "5ms is no such number: expected no unit, or %"),
        ("swap_in_bytes > 5 s", "5s is no such number: expected a unit of bytes"),
        ("faults > 1.2.3", "1.2.3 is no such number"),
    ],
)
def test_what_is_no_condition(text: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        conditions.parse_condition(text, profiles.KINDS)
    assert says in str(refused.value)


def test_what_no_file_says_cannot_be_checked() -> None:
    condition = conditions.parse_condition("faults > +5%", profiles.KINDS)
    with pytest.raises(UmadviseError, match="the first file does not say faults"):
        conditions.checked([condition], [Quantity(name="faults", unit="count", words="", here=None, there=3)])
    with pytest.raises(UmadviseError, match="the second file does not say faults"):
        conditions.checked([condition], [])


def test_what_a_step_goes_into_is_a_median(make: Any) -> None:
    def step(index: int, compute_ms: int) -> MeasuredStep:
        nothing = dict.fromkeys(SpentTime.__struct_fields__, 0)
        times = SpentTime(**{**nothing, "compute_ns": compute_ms * MS, "room_ns": 3 * MS})
        return MeasuredStep(
            index=index, duration_ns=50 * MS, counters=make.counters(), resident_peak_bytes=None, times=times
        )

    profile = make.profile(step_count=3, steps=tuple(step(index, ms) for index, ms in enumerate((40, 10, 20), 1)))
    values = {each.name: each.of(profile) for each in profiles.KINDS}
    assert (values["compute_ns"], values["room_ns"], values["script_ns"]) == (20 * MS, 3 * MS, 0)
    assert values["unexplained_ns"] == 27 * MS


def test_causes_are_read_each_from_its_own_field(make: Any) -> None:
    """Of the counters that a profile has, by name."""
    counters = make.counters(bytes_h2d=make.by_cause(user=2, coherence=40), bytes_d2h=make.by_cause(eviction=6))
    values = {each.name: each.of(make.profile(counters=counters)) for each in profiles.KINDS}
    found = SimpleNamespace(**values)
    assert (found.bytes_h2d, found.bytes_h2d_user, found.bytes_h2d_coherence) == (21, 1, 20)
    assert (found.bytes_d2h, found.bytes_d2h_eviction, found.bytes_d2h_user) == (3, 3, 0)
    assert found.swap_in_bytes is None


def test_the_documentation_names_every_quantity() -> None:
    named = set(re.findall(r"`(\w+)`", (Path(__file__).parents[3] / "docs" / "diff.md").read_text()))
    assert {each.name for each in profiles.KINDS} <= named
    plain = {each.name for each in plans.KINDS if not each.name.endswith("_bytes")}
    assert plain | {"budget_bytes"} <= named
