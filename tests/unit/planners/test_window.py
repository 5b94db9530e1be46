"""The window planner: cases worked by hand from the paper's section 3, and random steps that the simulator executes."""

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from traces import traces

from umadvise import planners
from umadvise.devices.catalogue import load_device
from umadvise.errors import BudgetError, UsageError
from umadvise.recording.builder import TraceBuilder
from umadvise.records.enums import Role
from umadvise.records.plan import Plan
from umadvise.records.trace import Access, Trace
from umadvise.simulator.swap import simulate_swap

V100 = load_device("v100-16gb")
MIB = 1 << 20
MADE = Access.WRITE | Access.WHOLE


def step(*ops: str, freed: str = "", there: str = "", bytes_: int = 10 * MIB) -> Trace:
    """Each op is the storages that it uses, one letter each; a capital makes it. Storage 0 is a, 1 is b, ...

    `there` exists before the step; those in `freed` die after the last op, all other new ones after their last use.
    """
    builder, index = TraceBuilder(), {}
    for letter in there:
        index[letter] = builder.allocate(bytes_, Role.PARAMETER)
    last = {letter.lower(): op for op, letters in enumerate(ops) for letter in letters}
    for op, letters in enumerate(ops):
        builder.begin_op("aten::relu", duration_ns=10**6)
        for letter in letters:
            if letter.isupper():
                index[letter.lower()] = builder.allocate(bytes_, Role.INTERMEDIATE)
            builder.access(index[letter.lower()], MADE if letter.isupper() else Access.READ)
        builder.end_op()
        for letter in sorted(set(letters.lower()) - set(freed) - set(there)):
            if last[letter] == op:
                builder.free(index[letter])
    for letter in freed:
        builder.free(index[letter])
    return builder.finish(target="cuda", source="synthetic")


def moves(plan: Plan) -> list[str]:
    """ "swap_out>1b" is after op 1, "wait<2a" before op 2."""
    return [f"{a.kind.name.lower()}{'>' if a.after else '<'}{a.op}{chr(97 + a.storage)}" for a in plan]


def plan(trace: Trace, budget: int, window: int, *, refined: bool = False) -> list[str]:
    """In units of one storage."""
    options: dict[str, Any] = {"schedule_window": window * 10 * MIB, "refined": refined}
    made = planners.run("window", trace, V100, budget * 10 * MIB, **options)
    result = simulate_swap(trace, V100, made, spans=False).result
    assert result.on_demand_swap_ins == 0
    return moves(made)


FORWARD_BACKWARD = step("A", "B", "C", "D", "d", "c", "b", "a")


def test_the_papers_window_by_hand() -> None:
    """v = A B C D d c b a, a window of two entries, room for two.

    Before 0 it holds A B, before 1 B C: c has no room until a, swapped out after 0, has left; likewise d and b. Before
    3 it holds D d, so d stays when op 3 has made it (2d). Before 4 it holds d c: c, still on its way out, is waited
    for and brought back. The others follow one op ahead, into the room of what was freed.
    """
    assert plan(FORWARD_BACKWARD, budget=2, window=2) == [
        "swap_out>0a",
        "wait<1a",
        "swap_out>1b",
        "wait<2b",
        "swap_out>2c",
        "wait<4c",
        "swap_in<4c",
        "swap_in<5b",
        "swap_in<6a",
    ]


def test_a_window_of_one_function_brings_nothing_early() -> None:
    assert plan(FORWARD_BACKWARD, budget=2, window=0) == [
        "swap_out>0a",
        "swap_out>1b",
        "wait<2a",
        "swap_out>2c",
        "wait<3b",
        "swap_out>3d",
        "wait<4c",  # the oldest first: it is not known which copies have ended
        "wait<4d",
        "swap_in<4d",
        "swap_in<5c",
        "swap_in<6b",
        "swap_in<7a",
    ]


def test_reuse_in_the_window_cancels_the_swap_out_as_released() -> None:
    """v = A B a, a window of one, room for both: a comes back before its swap-out had to be waited for."""
    trace = step("A", "B", "a")
    assert plan(trace, budget=2, window=1) == ["swap_out>0a", "wait<2a", "swap_in<2a"]
    assert plan(trace, budget=2, window=1, refined=True) == []


def test_what_is_freed_later_leaves_early_without_a_copy_as_released() -> None:
    trace = step("A", "B", "C", freed="a")
    assert plan(trace, budget=2, window=1, refined=True) == ["drop>0a"]
    with pytest.raises(BudgetError, match=r"op 2 \(aten::relu\) needs 30.00 MiB"):  # by the paper it stays
        plan(step("A", "B", "C", freed="ab"), budget=2, window=1)


def test_outputs_take_room_late_and_what_came_too_early_is_put_off_as_released() -> None:
    """v = A, B C, D, b c, a; room for three.

    The window takes everything in at once, so a stays after op 0. Then d, which op 2 makes, finds no room: planning
    goes back to where a's next use came in, and takes it in after op 2 instead. With room for four nothing moves.
    """
    trace = step("A", "BC", "D", "bc", "a")
    assert plan(trace, budget=4, window=9, refined=True) == []
    assert plan(trace, budget=3, window=9, refined=True) == ["swap_out>0a", "wait<2a", "swap_in<3a"]


def test_a_weight_is_on_the_host_when_a_step_begins_and_when_it_ends() -> None:
    trace = step("a", "B", "a", there="a")
    assert plan(trace, budget=2, window=9) == ["swap_in<0a", "swap_out>2a"]
    assert plan(trace, budget=2, window=9, refined=True) == ["swap_in<0a", "swap_out>2a", "wait>2a"]


def test_the_default_window_is_one_and_a_half_budgets() -> None:
    made = planners.run("window", FORWARD_BACKWARD, V100, 20 * MIB)
    assert dict(made.options) == {"schedule_window": 30 * MIB, "refined": False}


def test_a_window_below_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="schedule_window"):
        planners.run("window", FORWARD_BACKWARD, V100, 20 * MIB, schedule_window=-1)


@pytest.mark.parametrize("refined", [False, True])
@given(trace=traces(), data=st.data())
@settings(max_examples=150, deadline=None)
def test_the_simulator_executes_every_plan(refined: bool, trace: Trace, data: st.DataObject) -> None:
    assume(len(trace.ops))
    most = max(int(trace.peak_bytes), 1)
    budget_bytes = data.draw(st.integers(0, 2 * most))
    schedule_window = data.draw(st.none() | st.integers(0, 4 * most))
    try:
        made = planners.run("window", trace, V100, budget_bytes, schedule_window=schedule_window, refined=refined)
    except BudgetError:
        return
    result = simulate_swap(trace, V100, made, spans=False).result
    assert result.peak_live_bytes <= budget_bytes
    assert result.on_demand_swap_ins == result.evictions == 0
