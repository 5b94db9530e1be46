"""What of the rungs that `auto` was on, and stayed on, stands in a report."""

from types import SimpleNamespace
from typing import cast

from umadvise.records.fault_profile import RungChange
from umadvise.training.loop.rung_choice import RungChoice
from umadvise.training.policy.governor import Switch


def test_a_rung_has_the_reason_why_it_came_and_the_last_one_why_it_stays() -> None:
    observer = SimpleNamespace(rungs=[RungChange(step=1, rung="advise", reason="unknown")])
    choice = cast(RungChoice, SimpleNamespace(_observer=observer))
    before = "advise"
    for step, rung in (
        (3, "advise"),
        (5, "advise"),
        (7, "swap"),
        (9, "swap"),
        (11, "swap"),
        (13, "window"),
        (15, "swap"),
    ):
        RungChoice._note(choice, Switch(step, before, rung, f"step {step}"))
        before = rung
    found = [(each.step, each.rung) for each in observer.rungs]
    assert found == [(1, "advise"), (5, "advise"), (7, "swap"), (11, "swap"), (13, "window"), (15, "swap")]
