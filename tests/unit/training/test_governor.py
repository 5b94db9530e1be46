"""The governor: which rung, and when it changes; random histories keep its promises."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umadvise.devices.rungs import RUNGS
from umadvise.errors import UsageError
from umadvise.training.policy.governor import (
    HYSTERESIS,
    MOST_ODD,
    MOST_SAMPLES,
    MOST_SETTLING,
    MOST_STRUCTURES,
    SAMPLES,
    WARM_UP,
    Governor,
    StepRecord,
    Switch,
)

MS = 1_000_000
ENOUGH = WARM_UP + SAMPLES
MOST_SWITCHES = 4 * len(RUNGS) * (MOST_STRUCTURES + 1)
"""That can ever be made, however steps go and structures change."""


def record(
    number: int,
    stall: float = 0.0,
    groups: int | None = 0,
    *,
    typical: bool = True,
    settling: bool = False,
    duration: float = 100,
) -> StepRecord:
    return StepRecord(number, round(duration * MS), round(stall * duration * MS), groups, typical, settling)


def steps(governor: Governor, count: int, stall: float = 0.0, duration: float = 100, first: int = 1) -> Switch | None:
    """As many steps that are alike; what the last one made of them."""
    for number in range(first, first + count - 1):
        assert governor.observe(record(number, stall, duration=duration)) is None
    return governor.observe(record(first + count - 1, stall, duration=duration))


def test_stalls_above_the_threshold_go_one_rung_up_when_the_rung_is_measured() -> None:
    governor = Governor("advise", "a guess")
    switch = steps(governor, ENOUGH, 0.07)
    assert switch is not None
    assert (switch.step, switch.before, switch.rung) == (ENOUGH + 1, "advise", "window")
    assert switch.reason == f"stalls took 7.0% of the step, more than 5.0%, {ENOUGH} steps in a row"
    assert governor.rung == "window"
    assert governor.measured_ns == {"advise": 100 * MS}
    assert [each.rung for each in governor.history] == ["advise", "window"]


def test_one_good_step_in_between_counts_anew() -> None:
    governor = Governor("advise", "a guess")
    for number in range(1, 21):
        assert governor.observe(record(number, 0.5 if number % 2 else 0.05)) is None


def test_steps_that_say_nothing_are_passed_over() -> None:
    governor = Governor("swap", "a guess")
    for number in range(1, 20):
        assert governor.observe(record(number, 0.9, typical=number % (MOST_ODD + 1) == 0)) is None
    switch = governor.observe(record(20, 0.9))
    assert switch is not None
    assert switch.rung == "swap+recompute"
    assert switch.reason.endswith("4 steps in a row")


def test_a_rung_whose_steps_are_never_as_it_means_them_is_measured_all_the_same() -> None:
    governor = Governor("advise", "a guess")
    governor.choose(1, {"advise": 60 * MS, "swap": 50 * MS})
    assert governor.rung == "swap"
    for number in range(1, MOST_ODD + ENOUGH):
        assert governor.observe(record(number, typical=False, duration=4000)) is None
    switch = governor.observe(record(MOST_ODD + ENOUGH, typical=False, duration=4000))
    assert switch is not None
    assert switch.rung == "advise"
    assert switch.reason == "a step takes 4000.0 ms on swap, advise is predicted 60.0 ms"


def test_steps_whose_chunks_have_no_places_yet_are_not_what_a_rung_gives() -> None:
    """On an H100 GPT-2's steps took 337 to 545 ms until then, and 90 from then on; 98 were predicted."""
    governor = Governor("advise", "a guess")
    governor.choose(1, {"advise": 700 * MS, "window": 490 * MS, "swap": 98 * MS})
    for number in range(1, 7):
        assert governor.observe(record(number, settling=True, duration=500)) is None
    assert steps(governor, ENOUGH, duration=90, first=7) is None
    assert governor.measured_ns == {"swap": 90 * MS}


def test_a_rung_whose_chunks_never_find_their_places_is_measured_all_the_same() -> None:
    governor = Governor("swap", "a guess")
    for number in range(MOST_SETTLING + ENOUGH):
        governor.observe(record(number + 1, settling=True, duration=500))
    assert governor.measured_ns == {"swap": 500 * MS}


def test_nothing_is_above_the_last_rung() -> None:
    governor = Governor("swap+recompute", "a guess")
    assert [governor.observe(record(number, 0.9)) for number in range(1, 10)] == [None] * 9


def test_a_whole_number_is_fault_groups() -> None:
    governor = Governor("advise", "a guess", threshold=10)
    for number in range(1, 9):
        assert governor.observe(record(number, 0.9, 10)) is None
    assert governor.observe(record(9, 0.9, None)) is None
    assert governor.observe(record(10, 0.0, 11)) is None
    switch = governor.observe(record(11, 0.0, 12))
    assert switch is not None
    assert "12 fault groups a step, more than 10" in switch.reason


def test_steps_whose_stalls_nobody_counted_do_not_end_a_row() -> None:
    governor = Governor("advise", "a guess")
    rows = [0.5, None, None, None, 0.5]  # as on CUDA, where some steps are sampled
    found = [
        governor.observe(StepRecord(number, 100 * MS, None if stall is None else round(stall * 100 * MS), None))
        for number, stall in enumerate(rows, 1)
    ]
    assert [switch is None for switch in found] == [True] * 4 + [False]


@pytest.mark.parametrize("threshold", [True, -1, -0.1, 1.1, "5%", None])
def test_other_thresholds_are_refused(threshold: object) -> None:
    with pytest.raises(UsageError, match="fault_threshold"):
        Governor("advise", "", threshold=threshold)  # type: ignore[arg-type]


def test_the_shortest_predicted_step_is_chosen_and_the_lower_rung_where_it_hardly_matters() -> None:
    governor = Governor("advise", "a guess")
    stay = governor.choose(3, {"advise": 100 * MS, "window": 99 * MS, "swap": 99 * MS})
    assert stay is not None
    assert (stay.before, stay.rung) == ("advise", "advise")
    switch = governor.choose(3, {"advise": 200 * MS, "window": 101 * MS, "swap": 100 * MS})
    assert switch is not None
    assert switch.rung == "window"
    assert switch.reason == "predicted steps: advise 200.0 ms, window 101.0 ms, swap 100.0 ms"
    assert governor.choose(4, {}) is None


def test_a_rung_that_turns_out_slower_than_one_before_is_left_again() -> None:
    governor = Governor("advise", "a guess")
    assert steps(governor, ENOUGH, 0.2, duration=100) is not None
    assert governor.rung == "window"
    back = steps(governor, ENOUGH, 0.0, duration=106)
    assert back is not None
    assert (back.before, back.rung) == ("window", "advise")
    assert back.reason == "a step takes 106.0 ms on window, and took 100.0 ms on advise"
    again = steps(governor, WARM_UP + 2 * SAMPLES, 0.2, duration=100)
    assert again is not None
    assert again.rung == "swap"  # and `window` no second time


def test_a_little_slower_is_not_worth_a_change() -> None:
    governor = Governor("advise", "a guess")
    steps(governor, ENOUGH, 0.2, duration=100)
    assert steps(governor, 10, duration=105) is None
    assert governor.rung == "window"


def test_the_first_step_on_a_rung_and_a_single_slow_one_count_for_nothing() -> None:
    governor = Governor("advise", "a guess")
    for number, duration in enumerate([900, 100, 800, 100, 100], 1):
        governor.observe(record(number, duration=duration))
    assert governor.measured_ns == {"advise": 100 * MS}


def test_what_was_measured_beats_what_was_predicted() -> None:
    governor = Governor("advise", "a guess")
    governor.choose(3, {"advise": 50 * MS, "window": 45 * MS, "swap": 40 * MS})
    assert governor.rung == "swap"
    assert steps(governor, ENOUGH, duration=90).rung == "window"  # type: ignore[union-attr]
    assert steps(governor, ENOUGH, duration=70).rung == "advise"  # type: ignore[union-attr]
    assert steps(governor, ENOUGH, duration=80).rung == "window"  # type: ignore[union-attr]
    assert steps(governor, 30, duration=70) is None
    governor.choose(60, {"advise": MS, "window": 60 * MS, "swap": MS})
    assert governor.rung == "window"
    assert governor.history[-1].reason == (
        "predicted steps: advise 80.0 ms as measured, window 70.0 ms as measured, swap 90.0 ms as measured"
    )


def test_a_better_plan_has_its_rung_measured_again() -> None:
    governor = Governor("window", "asked for")
    governor.choose(1, {"window": 100 * MS, "swap": 90 * MS})
    assert governor.rung == "swap"
    steps(governor, 4, duration=120)
    assert governor.measured_ns == {"swap": 120 * MS}
    assert governor.rung == "window"
    assert steps(governor, 4, duration=100, first=5) is None
    assert governor.rung == "window"  # swap was measured to be slower
    governor.renew("swap")
    assert steps(governor, 1, duration=100, first=9) is not None
    assert governor.rung == "swap"  # and may be faster now
    steps(governor, 2, duration=120, first=10)
    governor.renew("swap")  # in force: what was measured until now does not count
    steps(governor, 4, duration=60, first=12)
    assert governor.measured_ns["swap"] == 60 * MS
    assert governor.rung == "swap"


def test_a_step_that_changes_is_measured_anew() -> None:
    governor = Governor("advise", "a guess")
    steps(governor, ENOUGH, 0.9)
    assert governor.rung == "window"
    assert governor.go(3, "advise", "it fits") is None
    governor.restructure()
    assert governor.measured_ns == {}
    switch = governor.choose(4, {"advise": MS, "window": 100 * MS})
    assert switch is not None
    assert switch.rung == "advise"


def test_a_rung_that_the_step_does_not_run_on_is_passed_over_until_the_step_changes() -> None:
    governor = Governor("advise", "a guess")
    governor.exclude(["window", "swap"])
    switch = steps(governor, ENOUGH, 0.9)
    assert switch is not None
    assert switch.rung == "swap+recompute"
    back = governor.take_back(switch, "no memory for it")
    assert (back.rung, governor.rung) == ("advise", "advise")
    assert [governor.observe(record(number, 0.9)) for number in range(3, 13)] == [None] * 10
    assert governor.go(6, "swap", "why not") is None
    governor.restructure()
    switch = steps(governor, ENOUGH, 0.9)
    assert switch is not None
    assert switch.rung == "window"


def test_rungs_that_are_not_there() -> None:
    governor = Governor("advise", "a guess", rungs=("resident", "advise", "swap"))
    switch = steps(governor, ENOUGH, 0.9)
    assert switch is not None
    assert switch.rung == "swap"
    assert not governor.has("window")
    assert governor.go(3, "window", "no") is None
    with pytest.raises(UsageError, match="no rung 'window'"):
        Governor("window", "", rungs=("advise",))


times = st.integers(1, 10**6)
by_rung = st.dictionaries(st.sampled_from(RUNGS), times)


@given(
    st.fixed_dictionaries(dict.fromkeys(RUNGS, times)),
    st.fixed_dictionaries(dict.fromkeys(RUNGS, st.floats(0, 1))),
    by_rung,
    st.sets(st.sampled_from(RUNGS)),
    st.sampled_from(RUNGS),
)
def test_it_ends_on_the_fastest_rung_that_it_tried(
    times: dict[str, int], stalls: dict[str, float], predicted: dict[str, int], odd: set[str], first: str
) -> None:
    """Whatever the rungs' steps take, stall and were predicted to take, and where steps are never typical."""
    governor = Governor(first, "a guess")
    governor.choose(1, predicted)
    steps_of_a_trial = WARM_UP + MOST_SAMPLES + MOST_ODD
    most_steps = 3 * len(RUNGS) * steps_of_a_trial

    def step(number: int) -> Switch | None:
        rung = governor.rung
        return governor.observe(record(number, stalls[rung], typical=rung not in odd, duration=times[rung]))

    for number in range(1, most_steps):
        step(number)
    tried = {each.rung for each in governor.history} - ({first} - set(governor.measured_ns))
    assert times[governor.rung] <= (1 + HYSTERESIS) * min(times[rung] for rung in tried)
    assert all(
        times[governor.rung] * MS <= (1 + HYSTERESIS) * predicted_ns
        for rung, predicted_ns in predicted.items()
        if rung not in tried
    )
    assert [step(number) for number in range(most_steps, most_steps + 50)] == [None] * 50
    assert sum(one.rung != other.rung for one, other in pairwise(governor.history)) <= 2 * len(RUNGS)


@given(st.lists(st.tuples(times, st.floats(0, 1), st.booleans(), st.booleans(), by_rung), max_size=300))
def test_changes_come_to_an_end_whatever_steps_do(
    rows: list[tuple[int, float, bool, bool, dict[str, int]]],
) -> None:
    governor = Governor("advise", "a guess")
    for number, (duration, stall, typical, changes, predicted) in enumerate(rows, 1):
        governor.observe(record(number, stall, typical=typical, duration=duration))
        if changes:
            governor.restructure()
            governor.choose(number + 1, predicted)
    assert all(one.rung == other.before for one, other in pairwise(governor.history))
    assert sum(one.rung != other.rung for one, other in pairwise(governor.history)) <= MOST_SWITCHES


def test_steps_that_are_never_alike_change_no_rungs_for_ever() -> None:
    governor = Governor("advise", "a guess")
    for number in range(1, 2000):
        fast, slow = ("advise", "swap") if number % 2 else ("swap", "advise")
        governor.restructure()
        governor.choose(number, {fast: MS, slow: 2 * MS})
        governor.observe(record(number, 0.9))
    changes = [each for each in governor.history if each.rung != each.before]
    assert len(changes) <= MOST_SWITCHES
    assert changes[-1].step <= MOST_SWITCHES * (MOST_STRUCTURES + 1)


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_not_followed(seed: int) -> None:
    """Steps of two rungs that are alike but for a fifth of their length, at random: few changes, and then none."""
    drawn = random.Random(seed)
    governor = Governor("advise", "a guess", rungs=("advise", "swap"))
    for number in range(1, 400):
        governor.observe(record(number, 0.5, duration=drawn.uniform(100, 120)))
    changes = [each for each in governor.history if each.rung != each.before]
    assert len(changes) <= 4
    assert changes[-1].step < 200
