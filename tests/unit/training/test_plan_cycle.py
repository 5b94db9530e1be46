"""Record, plan, drive: the state machine, with a device and a recorder that only take notes."""

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
from umadvise.records.trace import Access, Trace
from umadvise.training.loop import plan_cycle
from umadvise.training.loop.plan_cycle import PlanCycle
from umadvise.training.loop.rhythm import Rhythm
from umadvise.training.loop.step_program import StepProgram

MIB = 1 << 20
MADE = Access.WRITE | Access.WHOLE


@pytest.fixture(autouse=True)
def interned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cycle._native, "intern", lambda text: len(text))


def trace_of(kind: str) -> Trace:
    """A step whose only op has that name; "first" makes state that stays."""
    builder = TraceBuilder()
    weight = builder.allocate(MIB, Role.PARAMETER, "w")
    builder.begin_op(f"aten::{kind}")
    builder.access(weight, Access.READ)
    if kind == "first":
        builder.access(builder.allocate(MIB, Role.OPTIMIZER_STATE), MADE)
    builder.end_op()
    return builder.finish(target="cpu", source="live")


@dataclass
class Notes:
    """A device, its recorder and its planner: a program follows steps of its own kind."""

    kind: str = ""
    follows: int = 0  # number of the program that the last step was like
    programs: dict[int, str] = field(default_factory=dict)
    unknown_ops: int = 0
    made_bytes: int = 0
    recording: bool = False
    recorded: str = ""
    refuses: bool = False
    unreadable: bool = False
    added: int = 0
    planned: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def swap_counters(self) -> SwapCounters:
        numbers: dict[str, Any] = dict.fromkeys(SwapCounters.__struct_fields__, 0)
        told = {"program": ProgramStatus.WAITING if self.programs else ProgramStatus.NONE, "step_ops": 1}
        told |= {"program_number": self.follows, "unknown_ops": self.unknown_ops}
        told |= {"made_bytes": self.made_bytes, "program_made_bytes": 100 * MIB}
        return SwapCounters(**numbers | told | {"diverged_expected": "", "diverged_found": ""})

    def allocations(self) -> list[Allocation]:
        return []

    def add_program(
        self,
        trace: Trace,
        actions: object,
        names: Any,
        serials: Any,
        states: Any,
        *,
        h2d_bytes_per_s: int,
        is_last: bool,
    ) -> int:
        assert actions is None
        assert len(names) == len(trace.ops)
        assert len(serials) == len(states) == len(trace.storages)
        assert (h2d_bytes_per_s, is_last) == (0, True)
        if self.refuses:
            raise NativeError(1, "no")
        self.added += 1
        self.programs[self.added] = trace.strings[trace.ops.name[0]]
        return self.added

    def drop_program(self, number: int) -> None:
        for each in [number] if number else list(self.programs):
            del self.programs[each]

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


def run(notes: Notes, kind: str, made: int = 100 * MIB) -> None:
    """What a device counts of a step that it follows a program of its kind in, if it has one."""
    found = [number for number, name in notes.programs.items() if name == f"aten::{kind}"]
    notes.follows = found[0] if found else 0
    notes.unknown_ops, notes.made_bytes = int(not found), made


def drive(cycle: PlanCycle, notes: Notes, kinds: str | list[str], first: int = 1) -> list[str]:
    """Runs steps; for each what was on: r(ecorded), d(riven to its end), x (is like no program), - (neither)."""
    log = []
    for number, kind in enumerate(kinds, first):
        cycle.take_recording()
        cycle.before_step(number)
        word = "r" if notes.recording else ""
        notes.recorded = kind if notes.recording else notes.recorded
        run(notes, kind)
        if notes.programs:
            word += "x" if notes.unknown_ops else "d"
        cycle.after_step(number)
        assert not notes.recording
        assert cycle.followed == cycle.known == word.endswith("d")
        log.append(word or "-")
    return log


def cycle_of(notes: Notes) -> PlanCycle:
    return PlanCycle(notes, notes, notes.plan)  # type: ignore[arg-type]


def test_the_first_step_is_recorded_and_the_next_ones_driven() -> None:
    notes = Notes()
    assert drive(cycle_of(notes), notes, "aaaaa") == ["r", "rd", "rd", "d", "d"]
    assert notes.planned == ["a"]


def test_a_step_that_makes_state_is_recorded_but_not_planned() -> None:
    notes = Notes()
    assert drive(cycle_of(notes), notes, ["first", "a", "a", "a", "a"]) == ["r", "r", "rd", "rd", "d"]
    assert notes.planned == ["a"]


def test_steps_that_never_become_steady_are_planned_all_the_same() -> None:
    notes = Notes()
    assert drive(cycle_of(notes), notes, ["first"] * 6) == ["r", "r", "r", "rd", "rd", "d"]
    assert notes.planned == ["first"]


def test_an_odd_step_is_known_once_it_has_been_recorded() -> None:
    notes = Notes()
    assert drive(cycle_of(notes), notes, "aabaabaa") == ["r", "rd", "rx", "rd", "rd", "d", "d", "d"]
    assert notes.planned == ["a", "b"]


def test_another_step_from_now_on_is_planned() -> None:
    notes = Notes()
    assert drive(cycle_of(notes), notes, "aaaabbbbb") == ["r", "rd", "rd", "d", "x", "rx", "rd", "rd", "d"]
    assert notes.planned == ["a", "b"]


def test_steps_that_are_never_alike_are_recorded_ever_more_rarely() -> None:
    notes = Notes()
    log = drive(cycle_of(notes), notes, [str(number) for number in range(80)])
    assert log[:9] == ["r"] + ["rx"] * 7 + ["x"]
    recorded = [number for number, word in enumerate(log) if "r" in word]
    gaps = np.diff(recorded).tolist()
    assert gaps == sorted(gaps)
    assert gaps[-1] >= 8
    assert sum("r" in word for word in log) < 15


def test_the_pause_ends_when_steps_are_alike_again() -> None:
    notes = Notes()
    cycle = cycle_of(notes)
    drive(cycle, notes, [str(number) for number in range(6)])
    log = drive(cycle, notes, "a" * 12, first=7)
    assert log[-3:] == ["d", "d", "d"]
    assert drive(cycle, notes, "ab", first=19) == ["d", "x"]


def test_a_step_that_fails_says_nothing() -> None:
    notes = Notes()
    cycle = cycle_of(notes)
    drive(cycle, notes, "aa")
    cycle.take_recording()
    cycle.before_step(3)
    run(notes, "a")
    cycle.after_step(3, whole=False)
    assert drive(cycle, notes, "aa", first=4) == ["rd", "d"]
    assert notes.planned == ["a"]


def test_a_step_that_fails_while_it_is_recorded_is_recorded_again() -> None:
    notes = Notes()
    cycle = cycle_of(notes)
    cycle.take_recording()
    cycle.before_step(1)
    cycle.after_step(1, whole=False)
    assert drive(cycle, notes, "aaaa", first=2) == ["r", "rd", "rd", "d"]


def test_a_recording_with_gaps_is_made_again() -> None:
    notes = Notes(unreadable=True)
    cycle = cycle_of(notes)
    assert drive(cycle, notes, "aa") == ["r", "r"]
    notes.unreadable = False
    assert drive(cycle, notes, "aaa", first=3) == ["rd", "rd", "d"]


def test_a_device_that_takes_no_program_runs_without() -> None:
    notes = Notes(refuses=True)
    assert drive(cycle_of(notes), notes, "a" * 11) == ["r"] * 8 + ["-", "-", "r"]


def test_without_a_planner_steps_are_only_looked_at() -> None:
    notes = Notes()
    cycle = PlanCycle(notes, notes, None)  # type: ignore[arg-type]
    assert drive(cycle, notes, ["first"] + ["a"] * 10) == ["r"] * 9 + ["-"] * 2
    assert cycle.step is not None
    cycle.change(notes.plan)
    assert drive(cycle, notes, "aaa", first=12) == ["rd", "rd", "d"]


def test_nothing_is_left_at_the_end() -> None:
    notes = Notes()
    cycle = cycle_of(notes)
    drive(cycle, notes, "aa")
    cycle.take_recording()
    cycle.close()
    assert (notes.programs, cycle.program, notes.recording) == ({}, None, False)


def allocation(serial: int, size: int, role: Role, name: str = "") -> Allocation:
    numbers: dict[str, Any] = {each.name: 0 for each in fields(Allocation)}
    words = {"birth_op": "", "birth_module": "", "seen": True}
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
    program = StepProgram(trace, None, np.array([1, 2, 3, 4, 5, 6, 0], np.uint64))
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
    for _ in range(64):
        rhythm.known()
    assert rhythm.planned() is None
