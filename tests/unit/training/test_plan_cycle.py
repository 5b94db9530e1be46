"""Record, plan, drive: the state machine, with a device and a recorder that only take notes."""

import logging
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pytest

from umadvise._native.abi import Allocation, ProgramStatus
from umadvise.errors import NativeError, StateError
from umadvise.recording.builder import TraceBuilder
from umadvise.recording.recorded_step import RecordedStep
from umadvise.records.counters import SwapCounters
from umadvise.records.enums import Role
from umadvise.records.plan import Plan
from umadvise.records.trace import Access, Trace
from umadvise.training.loop import plan_cycle, programs_known
from umadvise.training.loop.plan_cycle import PlanCycle, RecordAgain
from umadvise.training.loop.rhythm import Rhythm
from umadvise.training.plans.planned_step import PlannedStep

MIB = 1 << 20
MADE = Access.WRITE | Access.WHOLE


@pytest.fixture(autouse=True)
def interned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cycle._native, "intern", lambda text: len(text))


@pytest.fixture(autouse=True)
def notes_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Notes` says what the core would."""
    monkeypatch.setattr(plan_cycle, "swap_numbers", lambda notes: notes.swap_counters())
    monkeypatch.setattr(plan_cycle, "read", lambda _, counters: counters)


def trace_of(kind: str) -> Trace:
    """A step whose only op has that name; "first" makes state that stays, and "a+state" does in an op of its own."""
    builder = TraceBuilder()
    weight = builder.allocate(MIB, Role.PARAMETER, "w")
    builder.begin_op(f"aten::{kind.removesuffix('+state')}")
    builder.access(weight, Access.READ)
    if kind == "first":
        builder.access(builder.allocate(MIB, Role.OPTIMIZER_STATE), MADE)
    builder.end_op()
    if kind.endswith("+state"):
        builder.begin_op("aten::zeros")
        builder.access(builder.allocate(MIB, Role.OPTIMIZER_STATE), MADE)
        builder.end_op()
    return builder.finish(target="cpu", source="live")


@dataclass
class Notes:
    """A device, its recorder and its planner: a program follows steps of its own kind."""

    status: int = ProgramStatus.NONE
    programs: dict[int, str] = field(default_factory=dict)
    running: str = ""
    recording: bool = False
    recorded: str = ""
    refuses: bool = False
    unreadable: bool = False
    size: int = 100
    budget_bytes: int = 0
    planned: list[str] = field(default_factory=list)
    added: int = 0
    replaced: list[int] = field(default_factory=list)
    expected: list[int] = field(default_factory=list)
    named: list[Allocation] = field(default_factory=list)

    def run(self, kind: str) -> None:
        self.running = kind
        self.recorded = kind if self.recording else self.recorded

    @property
    def number(self) -> int:
        """The program that the last step was like: that of its kind, or else any."""
        own = [number for number, kind in self.programs.items() if kind == f"aten::{self.running}"]
        return own[0] if own else next(iter(self.programs), 0)

    def swap_counters(self) -> SwapCounters:
        numbers: dict[str, Any] = dict.fromkeys(SwapCounters.__struct_fields__, 0)
        is_known = self.programs.get(self.number) == f"aten::{self.running}"
        of_step = {
            "program": ProgramStatus.WAITING if is_known else ProgramStatus.DIVERGED,
            "program_number": self.number,
            "step_ops": 1,
            "unknown_ops": 0 if is_known else 1,
            "made_bytes": self.size << 20,
            "budget_bytes": self.budget_bytes,
            "program_made_bytes": 100 << 20,
        }
        return SwapCounters(**numbers | of_step | {"diverged_expected": "", "diverged_found": ""})

    def allocations(self) -> list[Allocation]:
        return self.named

    def add_program(self, trace: Trace, actions: object, names: Any, serials: Any, states: Any, **words: Any) -> int:
        assert actions is None or len(actions) == 0  # type: ignore[arg-type]
        assert len(names) == len(trace.ops)
        assert len(serials) == len(states) == len(trace.storages)
        assert words["h2d_bytes_per_s"] == 10
        if self.refuses:
            raise NativeError(1, "no")
        if words["replaces"]:
            self.replaced.append(words["replaces"])
            return int(words["replaces"])
        self.added += 1
        self.programs[self.added] = trace.strings[trace.ops.name[0]]
        return self.added

    def expect_program(self, number: int) -> None:
        self.expected.append(number)

    def drop_program(self, number: int) -> None:
        self.programs = {each: kind for each, kind in self.programs.items() if number not in (0, each)}

    def start_step(self) -> None:
        self.recording = True

    def stop_step(self) -> None:
        self.recording = False

    def step(self, number: int) -> RecordedStep:
        if self.unreadable:
            raise StateError(f"rows of step {number} were lost")
        trace = trace_of(self.recorded)
        return RecordedStep(trace, np.arange(1, 1 + len(trace.storages), dtype=np.uint64), "host")

    def plan(self, step: RecordedStep) -> None:
        self.planned.append(step.trace.strings[step.trace.ops.name[0]].removeprefix("aten::"))


def drive(cycle: PlanCycle, notes: Notes, kinds: str | list[str], first: int = 1) -> list[str]:
    """Runs steps; for each what was on: r(ecorded), d(riven to its end), x (by no plan), - (nothing known)."""
    log = []
    for number, kind in enumerate(kinds, first):
        cycle.take_recording()
        cycle.before_step(number)
        word = "r" if notes.recording else ""
        notes.run(kind)
        if notes.programs:
            word += "d" if f"aten::{kind}" in notes.programs.values() else "x"
        cycle.after_step(number)
        assert not notes.recording
        assert cycle.followed == word.endswith("d")
        log.append(word or "-")
    return log


def cycle_of(notes: Notes) -> PlanCycle:
    return PlanCycle(notes, notes, notes.plan, 10)  # type: ignore[arg-type]


def test_the_first_step_is_recorded_and_the_next_ones_driven() -> None:
    notes = Notes()
    assert drive(cycle_of(notes), notes, "aaaaa") == ["r", "rd", "rd", "d", "d"]
    assert notes.planned == ["a"]


def test_a_step_that_makes_state_is_recorded_but_not_planned() -> None:
    notes = Notes()
    assert drive(cycle_of(notes), notes, ["first", "a", "a", "a", "a"]) == ["r", "r", "rd", "rd", "d"]
    assert notes.planned == ["a"]


def test_the_second_step_is_told_from_one_that_makes_state() -> None:
    notes = Notes()
    cycle = cycle_of(notes)
    assert drive(cycle, notes, ["a+state", "a"]) == ["r", "rd"]
    assert [len(each.step.trace.ops) for each in cycle.kept] == [2, 1]
    assert drive(cycle, notes, "aaa", first=3) == ["rd", "rd", "d"]
    assert notes.planned == ["a", "a"]  # that it is so was recorded too


def test_each_of_several_steps_that_make_state_tells_what_follows() -> None:
    notes = Notes()
    assert drive(cycle_of(notes), notes, ["a+state", "b+state", "a", "b", "a", "b"]) == [
        "r",
        "rx",
        "rd",
        "rd",
        "rd",
        "rd",
    ]
    assert notes.planned == ["a", "b", "a", "b"]


def test_steps_that_never_become_steady_are_planned_all_the_same() -> None:
    notes = Notes()
    assert drive(cycle_of(notes), notes, ["first"] * 5) == ["r", "r", "r", "rd", "rd"]
    assert notes.planned == ["first"]


def test_steps_in_turns_are_all_driven() -> None:
    notes = Notes()
    assert drive(cycle_of(notes), notes, "abababab") == ["r", "rx", "rd", "rd", "d", "d", "d", "d"]
    assert notes.planned == ["a", "b"]


def test_an_odd_step_is_caught_when_it_comes_again() -> None:
    notes = Notes()
    log = drive(cycle_of(notes), notes, "aaaabaaaabaaab")
    assert log == ["r", "rd", "rd", "d", "x", "rd", "rd", "rd", "rd", "rx", "rd", "rd", "d", "d"]
    assert notes.planned == ["a", "b"]


@pytest.mark.parametrize(
    ("size", "known", "budget_gib"),
    [(100, True, 0), (95, True, 0), (90, False, 0), (103, False, 0), (103, True, 1), (125, False, 1)],
)
def test_a_step_that_is_larger_or_much_smaller_is_planned_anew(size: int, known: bool, budget_gib: int) -> None:
    notes = Notes(budget_bytes=budget_gib << 30)
    cycle = cycle_of(notes)
    drive(cycle, notes, "a")
    notes.size = size
    drive(cycle, notes, "aa", first=2)
    assert cycle.known == known
    assert notes.planned == (["a"] if known else ["a", "a"])


def test_steps_that_are_never_alike_are_recorded_ever_more_rarely(caplog: pytest.LogCaptureFixture) -> None:
    notes = Notes()
    with caplog.at_level(logging.INFO, logger="umadvise"):
        log = drive(cycle_of(notes), notes, [str(number) for number in range(60)])
    assert log[:4] == ["r", "rx", "rx", "rx"]
    recorded = [number for number, word in enumerate(log) if "r" in word]
    gaps = np.diff(recorded).tolist()
    assert gaps == sorted(gaps)
    assert gaps[-1] >= 16
    assert caplog.text.count("never alike") == 1


def test_programs_are_limited_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs_known, "MOST_PROGRAMS", 2)
    notes = Notes()
    assert drive(cycle_of(notes), notes, "abacac") == ["r", "rx", "rd", "rx", "rd", "rd"]
    assert sorted(notes.programs.values()) == ["aten::a", "aten::c"]  # that no step was like for the longest time went


def test_a_step_that_fails_says_nothing() -> None:
    notes = Notes()
    cycle = cycle_of(notes)
    drive(cycle, notes, "aaaa")
    cycle.take_recording()
    cycle.before_step(5)
    notes.run("b")  # it ended early
    cycle.after_step(5, whole=False)
    assert cycle.why_undriven == "ended by an exception"
    assert drive(cycle, notes, "aa", first=6) == ["d", "d"]
    assert notes.planned == ["a"]


def test_a_step_that_fails_while_it_is_recorded_is_recorded_again() -> None:
    notes = Notes()
    cycle = cycle_of(notes)
    cycle.take_recording()
    cycle.before_step(1)
    cycle.after_step(1, whole=False)
    assert drive(cycle, notes, "aa", first=2) == ["r", "rd"]


def test_a_recording_with_gaps_is_made_again() -> None:
    notes = Notes(unreadable=True)
    cycle = cycle_of(notes)
    assert drive(cycle, notes, "aa") == ["r", "r"]
    notes.unreadable = False
    assert drive(cycle, notes, "aaa", first=3) == ["rd", "rd", "d"]


def test_a_device_that_takes_no_program_runs_without() -> None:
    notes = Notes(refuses=True)
    assert drive(cycle_of(notes), notes, "aaaa") == ["r", "r", "-", "-"]
    assert notes.programs == {}


def test_without_a_planner_steps_are_only_looked_at() -> None:
    notes = Notes()
    cycle = PlanCycle(notes, notes, None, 10)  # type: ignore[arg-type]
    assert drive(cycle, notes, ["first", "a", "a"]) == ["r", "r", "-"]
    assert cycle.step is not None
    assert notes.programs == {}
    cycle.change(notes.plan)
    assert drive(cycle, notes, "aa", first=4) == ["rd", "rd"]


def test_nothing_is_left_at_the_end() -> None:
    notes = Notes()
    cycle = cycle_of(notes)
    drive(cycle, notes, "aa")
    cycle.take_recording()
    cycle.close()
    assert (notes.programs, cycle.program, notes.recording) == ({}, None, False)


def known(kind: str) -> PlannedStep:
    """A step of an earlier run: which allocation is which is not known."""
    trace = trace_of(kind)
    return PlannedStep(RecordedStep(trace, np.zeros(len(trace.storages), np.uint64), "host"))


def test_known_steps_drive_the_first_step_and_are_kept_again_if_they_come() -> None:
    notes = Notes(named=[allocation(1, MIB, Role.PARAMETER, "w")])
    cycle = cycle_of(notes)
    cycle.expect([known("b"), known("a")])
    assert drive(cycle, notes, "aaaa") == ["rd", "rd", "d", "d"]
    assert notes.planned == []
    assert [notes.programs[number] for number in notes.expected] == ["aten::a"]  # once: the device knows what follows
    assert [each.step.digest for each in cycle.kept] == [known("a").step.digest]


def test_known_steps_that_do_not_come_are_not_expected_again() -> None:
    notes = Notes(named=[allocation(1, MIB, Role.PARAMETER, "w")])
    cycle = cycle_of(notes)
    cycle.expect([known("b"), known("a")])
    assert drive(cycle, notes, ["first", "c", "c", "c"])[0] == "rx"
    assert notes.planned == ["c"]
    assert [notes.programs[number] for number in notes.expected] == ["aten::a", "aten::b"]
    kept = [each.step.digest for each in cycle.kept]
    assert kept == [known("first").step.digest, known("c").step.digest]


def test_a_better_plan_takes_the_place_of_the_one_in_force() -> None:
    notes = Notes()
    cycle = cycle_of(notes)
    drive(cycle, notes, "ab")
    assert cycle.step is not None
    drive(cycle, notes, "bb", first=3)
    step, programs = cycle.step, dict(notes.programs)
    plan = Plan.from_actions(step.trace, [], "best", 0)
    cycle.improve(step, plan)
    assert notes.replaced == [number for number, kind in programs.items() if kind == "aten::b"]
    assert notes.programs == programs
    assert cycle.program is not None
    assert cycle.program.plan is plan
    cycle.improve(known("b").step, plan)  # a step that was never recorded here
    assert len(notes.replaced) == 1
    cycle.improve(step, RecordAgain())
    assert drive(cycle, notes, "a", first=5) == ["r"]


def allocation(serial: int, size: int, role: Role, name: str = "") -> Allocation:
    numbers: dict[str, Any] = {each.name: 0 for each in fields(Allocation)}
    words = {"birth_op": "", "birth_module": "", "seen": True, "owned": True}
    return Allocation(**numbers | words | {"serial": serial, "bytes": size, "role": role, "name": name})


def test_a_program_begins_again_with_what_is_like_what_it_had() -> None:
    builder = TraceBuilder()
    storages = [
        builder.allocate(MIB, Role.PARAMETER, "w"),
        builder.allocate(MIB, Role.GRADIENT, "w.grad"),
        builder.allocate(MIB, Role.GRADIENT, "v.grad"),
        builder.allocate(2 * MIB, Role.INPUT),
        builder.allocate(2 * MIB, Role.INPUT),
        builder.allocate(3 * MIB, Role.INPUT),
    ]
    builder.begin_op("aten::relu")
    builder.access(builder.allocate(MIB, Role.GRADIENT), MADE)
    builder.end_op()
    trace = builder.finish(target="cpu", source="live")
    program = PlannedStep(
        RecordedStep(trace, np.zeros(7, np.uint64), "host"), bound=np.array([1, 2, 3, 4, 5, 6, 0], np.uint64)
    )
    alive = [
        allocation(1, MIB, Role.PARAMETER, "w"),
        allocation(21, MIB, Role.GRADIENT, "v.grad"),
        allocation(22, MIB, Role.GRADIENT, "w.grad"),
        allocation(31, 2 * MIB, Role.INPUT, "x"),
        allocation(30, 2 * MIB, Role.INPUT, "y"),
        allocation(40, 4 * MIB, Role.INPUT),
    ]
    again = program.again(alive)
    assert again.serials.tolist() == [1, 22, 21, 30, 31, 0, 0]
    assert len(storages) == 6
    assert program.serials.tolist() == [1, 2, 3, 4, 5, 6, 0]


def test_the_pauses_double_up_to_a_longest_one() -> None:
    rhythm = Rhythm()
    pauses = [rhythm.planned() for _ in range(16)]
    assert pauses == [None] * 7 + [2, 4, 8, 16, 32, 64, 64, 64, 64]
    for _ in range(16):
        rhythm.known()
    assert rhythm.planned() is None
