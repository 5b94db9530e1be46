"""The fault profile: one JSON document that says which tensors faulted in a run, where, and at what cost.

It is the contract between what observes a run and what reports it. Reading refuses a bad file whole; writing leaves
either the old file or the new one. No string of a profile is ever used as a path, and none may hold a control
character, because reports print them to terminals.
"""

import os
from itertools import pairwise
from typing import Annotated, Generic, Literal, TypeVar

import msgspec

from umadvise.errors import FormatError
from umadvise.records.counters import (
    BytesByCause,
    Chunks,
    Count,
    Counters,
    MemoryStats,
    PhaseWord,
    Placed,
    Record,
    RoleWord,
    Sampling,
    SpentTime,
    Swaps,
)
from umadvise.records.files import read_whole, require_schema, write_atomically
from umadvise.records.names import Name, Sentence
from umadvise.records.step_picture import StepPicture

SCHEMA = "umadvise.fault-profile/5"
BIN_COUNT = 96
"""Equal parts of a step in the pattern of faults; divides by 2, 3 and 4, so that narrow terminals can join bins."""
MOST_ROWS = 4096
"""Rows kept in a table; what does not fit is summed into the table's `rest`."""
MOST_STEPS = 64
MOST_FINDINGS = 64
MOST_RUNGS = 64
MOST_UNDRIVEN = 64
MOST_PLACES = 128
"""Roles, kinds of memory and words of advice, all combinations."""
MOST_EXPORTED = 64
MOST_FILE_BYTES = 64 << 20
"""A full profile (every table at MOST_ROWS) is under a tenth of this."""


class RunEnvironment(Record, frozen=True):
    """What the run was made with. `policy` and `script` are as the user typed them."""

    device_name: Name
    provider: Literal["emulated", "cuda"]
    counting: Literal["ordered", "raw"]
    capacity_bytes: Count
    budget_bytes: Count | None
    policy: Name | None
    umadvise_version: Name
    torch_version: Name | None
    script: Name | None


class MeasuredStep(Record, frozen=True):
    """One training step; `times` says what its duration went into, and is None where nobody can tell."""

    index: Count
    duration_ns: Count
    counters: Counters
    resident_peak_bytes: Count | None
    swaps: Swaps | None = None
    times: SpentTime | None = None


class Tally(Record, frozen=True):
    """What happened to the subject of one table row, over all steps.

    `service_ns` is the time that fault services took, on a GPU also what a budget had leave. `faulted_steps` counts the
    steps with at least one fault group. None is what nobody could observe. From `swap_ins` on it is about explicit
    swaps, in the words of `Swaps`; `on_demand_bytes` and `on_demand_wait_ns` are the parts of `swap_in_bytes` and
    `wait_copy_ns` that no plan had asked for in time. `compute_ns` is the time that ops ran, without what they stood
    still for; 0 in rows about tensors.
    """

    fault_groups: Count
    unordered_faults: Count
    first_touches: Count | None
    bytes_h2d: BytesByCause
    bytes_d2h: BytesByCause
    evictions: Count
    evictions_dropped: Count | None
    collapses: Count | None
    remote_maps: Count
    service_ns: Count
    faulted_steps: Count
    swap_ins: Count
    swap_outs: Count
    swap_in_bytes: Count
    swap_out_bytes: Count
    on_demand_swap_ins: Count
    on_demand_bytes: Count
    swap_evictions: Count
    clean_drops: Count
    wait_copy_ns: Count
    on_demand_wait_ns: Count
    wait_room_ns: Count
    compute_ns: Count


class ResidentTally(Tally, frozen=True):
    """A tally with the most bytes that were on the device at once during a step; None when unknown.

    Of a row about tensors they are its tensors' bytes, of a row about ops all bytes that were there while these ran.
    """

    resident_peak_bytes: Count | None


class RoleRow(ResidentTally, frozen=True):
    """Tensors of one role."""

    role: RoleWord | None


class PhaseRow(ResidentTally, frozen=True):
    """Ops of one phase."""

    phase: PhaseWord | None


class RolePhaseRow(Tally, frozen=True):
    """Tensors of one role while ops of one phase ran."""

    role: RoleWord | None
    phase: PhaseWord | None


class ModuleRow(ResidentTally, frozen=True):
    """Ops that ran inside one module."""

    module: Name | None


class OpRow(ResidentTally, frozen=True):
    """One operator in one phase."""

    op: Name | None
    phase: PhaseWord | None


class TensorRow(ResidentTally, frozen=True):
    """One tensor: by name, or by birthplace and size when it has none; `bytes` is the size of one.

    The driver moves blocks of 2 MiB: a smaller tensor's numbers are those of its block. `neighbours` are the other
    tensors in it, the most that were seen at once; 255 stands for more, too.
    """

    role: RoleWord | None
    name: Name | None
    birth_module: Name | None
    birth_op: Name | None
    bytes: Count
    neighbours: Count


Row = TypeVar("Row", bound=Tally)


class Table(Record, Generic[Row], frozen=True):
    """Rows, costliest first. `rest` sums the subjects for which there was no room."""

    rows: Annotated[tuple[Row, ...], msgspec.Meta(max_length=MOST_ROWS)]
    rest: Tally | None


class Tables(Record, frozen=True):
    """The same events from six sides: each table's rows and rest add up to the same sums.

    What was on the device and had no event has a row too.
    """

    role: Table[RoleRow]
    phase: Table[PhaseRow]
    role_phase: Table[RolePhaseRow]
    module: Table[ModuleRow]
    tensor: Table[TensorRow]
    op: Table[OpRow]


_Bins = msgspec.Meta(min_length=BIN_COUNT, max_length=BIN_COUNT)


class Pattern(Record, frozen=True):
    """Faults over one step, the latest that had any, in BIN_COUNT equal parts of its time.

    `service_ns[i]` of a part's `duration_ns / BIN_COUNT` went into fault service: the quantity of figures 10 and 11 in
    Choi and Lee (2021), section 5.2. `phases[i]` is the phase of the ops that faulted there, or None when unknown.
    """

    step: Count
    duration_ns: Count
    fault_groups: Annotated[tuple[Count, ...], _Bins]
    service_ns: Annotated[tuple[Count, ...], _Bins]
    phases: Annotated[tuple[PhaseWord | None, ...], _Bins]

    def stall_share(self, phase: PhaseWord) -> float | None:
        """Part of a phase's time that went into fault service, 0 to 1; None when no bin is known to belong to it."""
        bins = [index for index, bin_phase in enumerate(self.phases) if bin_phase == phase]
        if not bins or self.duration_ns == 0:
            return None
        return sum(self.service_ns[index] for index in bins) * BIN_COUNT / (len(bins) * self.duration_ns)


class OversizedOp(Record, frozen=True):
    """An op whose working set, at most `bytes`, exceeded what may be on the device at once."""

    op: Name | None
    module: Name | None
    phase: PhaseWord | None
    bytes: Count
    count: Count


class Finding(Record, frozen=True):
    """One conclusion: what happened, where and why (`message`), and which call would help (`advice`)."""

    id: Name
    severity: Literal["warning", "info"]
    subject: Name
    message: Sentence
    advice: Sentence
    evidence: Annotated[dict[Name, Count], msgspec.Meta(max_length=32)]


class RungChange(Record, frozen=True):
    """The rung of the ladder that a run was on from `step` on; `reason` has the numbers that it follows from."""

    step: Count
    rung: Name
    reason: Sentence


class Undriven(Record, frozen=True):
    """Steps `first` to `last` that no plan drove to their ends, and why."""

    first: Count
    last: Count
    reason: Sentence


class PlannedSteps(Record, frozen=True):
    """How many steps followed plans to their ends, and the first and the latest that did not."""

    driven: Count
    undriven: Annotated[tuple[Undriven, ...], msgspec.Meta(max_length=MOST_UNDRIVEN)]


class RungPrediction(Record, frozen=True):
    """What the simulator says that a step of this run takes on a rung, when the rung's plan drives it.

    With `more_bytes` more of device memory than the run had, or after a `change` of the program: intermediates are
    freed once nothing uses them ("freed_sooner"), the optimizer keeps no state ("stateless"), or no address of a tensor
    is held outside of torch ("unpinned"). `about` is where most of what is freed sooner is made: op and module.
    """

    rung: Name
    step_ns: Count
    more_bytes: Count = 0
    change: Literal["freed_sooner", "stateless", "unpinned"] | None = None
    about: Name | None = None


class Exported(Record, frozen=True):
    """Tensors of one role and name whose addresses were held outside of torch when the profile was made."""

    role: RoleWord
    name: Name | None
    birth_op: Name | None
    bytes: Count


class FaultProfile(Record, frozen=True, tag_field="schema", tag=SCHEMA):
    """A run's faults. `counters` covers the steps, `outside` what happened before, between and after them.

    `steps` holds the first and the latest steps (at most MOST_STEPS). `tables` and `pattern` are None when nobody
    recorded events; `pattern` also when nothing faulted. `rungs` holds the first and the latest rungs of a session (at
    most MOST_RUNGS), none of a run without one. `sampling` is None where every step was counted; else `counters`
    (without op_count and oversized_ops, which are of all steps), `pattern`, and in `tables` all that is not about
    explicit swaps, are those of the sampled steps. `swaps` covers the steps, and `chunks` is as it was last: both are
    None where there were no chunks. `placed` says in what memory, and with what advice, tensors really lay. `planned`
    is None where steps follow no plans, `predictions` is empty where nobody asked the simulator. `steps_are_found`:
    nobody marked the steps, and they begin where ops come again. `times` is what the steps' duration went into.
    `picture` is one step in time; None where none ended. `exported` has the largest tensors that cannot leave the
    device, as somebody outside of torch holds their addresses.
    """

    environment: RunEnvironment
    step_count: Count
    duration_ns: Count
    counters: Counters
    outside: Counters | None
    events_dropped: Count
    memory: MemoryStats | None
    steps: Annotated[tuple[MeasuredStep, ...], msgspec.Meta(max_length=MOST_STEPS)]
    tables: Tables | None
    pattern: Pattern | None
    oversized_ops: Annotated[tuple[OversizedOp, ...], msgspec.Meta(max_length=MOST_ROWS)]
    findings: Annotated[tuple[Finding, ...], msgspec.Meta(max_length=MOST_FINDINGS)]
    rungs: Annotated[tuple[RungChange, ...], msgspec.Meta(max_length=MOST_RUNGS)] = ()
    sampling: Sampling | None = None
    swaps: Swaps | None = None
    outside_swaps: Swaps | None = None
    chunks: Chunks | None = None
    placed: Annotated[tuple[Placed, ...], msgspec.Meta(max_length=MOST_PLACES)] = ()
    planned: PlannedSteps | None = None
    predictions: Annotated[tuple[RungPrediction, ...], msgspec.Meta(max_length=16)] = ()
    steps_are_found: bool = False
    times: SpentTime | None = None
    picture: StepPicture | None = None
    exported: Annotated[tuple[Exported, ...], msgspec.Meta(max_length=MOST_EXPORTED)] = ()

    @property
    def pages(self) -> bool:
        """Whether tensors lay in unified memory, so that the driver may have paged them."""
        return not self.placed or any(each.memory == "managed" for each in self.placed)

    @property
    def counted_steps(self) -> int:
        """Number of steps that the counters are about."""
        return self.step_count if self.sampling is None else self.sampling.steps

    @property
    def counted_ns(self) -> int:
        """Duration of the steps that the counters are about, in nanoseconds."""
        return self.duration_ns if self.sampling is None else self.sampling.duration_ns

    def __post_init__(self) -> None:
        indices = [step.index for step in self.steps]
        if any(left >= right for left, right in pairwise(indices)):
            raise ValueError("the steps are not in order")
        if len(self.steps) > self.step_count:
            raise ValueError("step_count is less than the steps that are here")


_decoder = msgspec.json.Decoder(FaultProfile)


def encode(profile: FaultProfile) -> bytes:
    """The profile as the bytes of its file: indented JSON with a final newline."""
    return msgspec.json.format(msgspec.json.encode(profile), indent=1) + b"\n"


def decode(document: bytes) -> FaultProfile:
    """Reads a profile from the bytes of its file.

    Raises:
        FormatError: not such a document, of another version, or holding a value that no run produces.
    """
    try:
        require_schema(document, SCHEMA)
        return _decoder.decode(document)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise FormatError(f"is no fault profile: {error}. Expected the JSON that `umadvise run` writes") from None


def read(path: str | os.PathLike[str]) -> FaultProfile:
    """Reads a fault profile.

    Raises:
        FormatError: truncated, of another schema version, larger than MOST_FILE_BYTES, or holding impossible values.
        UmadviseError: there is no such file, or it cannot be read.
    """
    return read_whole(path, MOST_FILE_BYTES, "fault profile", decode)


def write(profile: FaultProfile, path: str | os.PathLike[str]) -> None:
    """Writes a fault profile atomically: a reader sees the old file or the new one, also after a crash.

    Raises:
        UmadviseError: the place cannot be written, or holds something that is no regular file.
    """
    write_atomically(path, encode(profile))
