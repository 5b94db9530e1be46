"""The report's exact text."""

import re
from typing import Any

import msgspec
import pytest

from umadvise.records import fault_profile
from umadvise.records.counters import Chunks, Placed
from umadvise.records.fault_profile import BIN_COUNT, FaultProfile, PlannedSteps, Table, Undriven
from umadvise.reports.findings import examine
from umadvise.reports.reporters import picture, text

MIB = 1 << 20
GIB = 1 << 30
MS = 10**6


@pytest.fixture(scope="module")
def profile(make: Any) -> FaultProfile:
    """Two steps of 960 ms: forward at half speed, backward waiting most of its time, the optimizer quick."""
    first = make.counters(fault_groups=120, first_touches=90, fault_service_ns=288 * MS)
    second = make.counters(fault_groups=80, first_touches=2, fault_service_ns=480 * MS)
    h2d = make.by_cause(coherence=320 * MIB)
    d2h = make.by_cause(eviction=256 * MIB, user=2 * MIB)
    total = make.counters(
        fault_groups=200,
        first_touches=92,
        fault_service_ns=768 * MS,
        bytes_h2d=h2d,
        bytes_d2h=d2h,
        evictions=128,
        evictions_dropped=3,
    )
    service = [5 * MS] * 32 + [9 * MS] * 48 + [MS] * 8 + [0] * 8
    made: FaultProfile = make.profile(
        environment=make.environment(capacity_bytes=2 * GIB, budget_bytes=GIB),
        placed=make.placed(parameter="preferred_location"),
        duration_ns=1920 * MS,
        counters=total,
        outside=make.counters(fault_groups=1200, bytes_h2d=make.by_cause(user=3 * GIB)),
        memory=make.memory(
            requested_peak_bytes=3 * GIB,
            resident_peak_bytes=GIB,
            requested_peak_by_role=make.by_role(parameter=GIB, intermediate=2 * GIB, optimizer_state=5),
        ),
        steps=make.steps(first, second, duration_ns=960 * MS),
        tables=make.tables(
            role=(
                make.role(
                    role="intermediate",
                    resident_peak_bytes=512 * MIB,
                    fault_groups=150,
                    bytes_h2d=make.by_cause(coherence=220 * MIB),
                    bytes_d2h=d2h,
                    evictions=128,
                    evictions_dropped=3,
                    service_ns=576 * MS,
                    faulted_steps=2,
                ),
                make.role(
                    role="parameter",
                    resident_peak_bytes=768 * MIB,
                    fault_groups=50,
                    bytes_h2d=make.by_cause(coherence=100 * MIB),
                    service_ns=192 * MS,
                    faulted_steps=2,
                ),
                make.role(role="optimizer_state", fault_groups=1),
            ),
            phase=(
                make.phase(phase="backward", fault_groups=133, service_ns=500 * MS, resident_peak_bytes=GIB),
                make.phase(fault_groups=1, resident_peak_bytes=0),
            ),
            module=(
                make.module(module="encoder.layer.0", fault_groups=9, resident_peak_bytes=900 * MIB),
                make.module(fault_groups=1),
            ),
            tensor=(
                make.tensor(
                    name="encoder.layer.0.attention.self.query.weight",
                    role="parameter",
                    fault_groups=4,
                    resident_peak_bytes=4 * MIB,
                ),
                make.tensor(birth_op="aten::addmm", birth_module="encoder.layer.0", role="intermediate", bytes=8 * MIB),
                *(make.tensor(name=f"t{index}", role="input") for index in range(12)),
            ),
            op=(make.op(op="aten::addmm", phase="backward", fault_groups=3, collapses=1, resident_peak_bytes=GIB),),
        ),
        pattern=make.pattern(
            step=2,
            duration_ns=960 * MS,
            fault_groups=(1,) * 32 + (2,) * 48 + (1,) * 8 + (0,) * 8,
            service_ns=tuple(service),
            phases=("forward",) * 32 + ("backward",) * 48 + ("optimizer",) * 8 + (None,) * 8,
        ),
    )
    return msgspec.structs.replace(made, findings=examine(made))


EXPECTED = """\
Memory traffic of train.py
emulated device (emulated, ordered counting), 2.00 GiB, budget 1.00 GiB, policy advise
Unified memory, preferred_location: parameters
Unified memory, no advice: inputs, intermediates
umadvise 0.1.0, torch 2.13.0

Per step
step time      960.00 ms   mean of 2
fault service  384.00 ms   40.0% of the step
fault groups   100         46 first touches, prefetches included
to device      160.00 MiB  coherence 160.00 MiB
to host        129.00 MiB  user 1.00 MiB, eviction 128.00 MiB
evictions      64          with a copy; 1.5 without
resident peak  1.00 GiB    of 1.00 GiB
live peak      3.00 GiB    all tensors, wherever they are; by role at most parameter 1.00 GiB, intermediate
                           2.00 GiB, optimizer state 5 B
Outside of the steps: 1,200 fault groups, 3.00 GiB to the device, 0 B to the host

Faults over step 2
phase    ├forward────────────────────────├backward───────────────────────────────────────├optimiz
service  ▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▁▁▁▁▁▁▁▁
faults   ▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄████████████████████████████████████████████████▄▄▄▄▄▄▄▄
         Time in fault service: forward 50.0%, backward 90.0%, optimizer 10.0%
         A column is 10.00 ms; a full block is all of that time, or 2 fault groups.
steps    ▂▄  30.0% of step 1 to 50.0% of 2

By role, per step
                   resident
role                   peak  faults   to device     to host  evictions  of step
intermediate     512.00 MiB      75  110.00 MiB  129.00 MiB         66    30.0%
parameter        768.00 MiB      25   50.00 MiB         0 B          0    10.0%
optimizer state           -     0.5         0 B         0 B          0     0.0%

By phase, per step
          resident
phase         peak  faults  to device  to host  of step
backward  1.00 GiB      66        0 B      0 B    26.0%
(none)         0 B     0.5        0 B      0 B     0.0%

By module, per step
                   resident
module                 peak  faults  to device  to host  of step
encoder.layer.0  900.00 MiB     4.5        0 B      0 B     0.0%
(none)                    -     0.5        0 B      0 B     0.0%

By tensor, per step
                                                                 resident
tensor                                                               peak  faults  to device  to host  of step
encoder.layer.0.attention.self.query.weight (parameter, 4.00     4.00 MiB       2        0 B      0 B     0.0%
MiB)
aten::addmm in encoder.layer.0 (intermediate, 8.00 MiB)                 -       0        0 B      0 B     0.0%
t0 (input, 4.00 MiB)                                                    -       0        0 B      0 B     0.0%
t1 (input, 4.00 MiB)                                                    -       0        0 B      0 B     0.0%
t2 (input, 4.00 MiB)                                                    -       0        0 B      0 B     0.0%
t3 (input, 4.00 MiB)                                                    -       0        0 B      0 B     0.0%
t4 (input, 4.00 MiB)                                                    -       0        0 B      0 B     0.0%
t5 (input, 4.00 MiB)                                                    -       0        0 B      0 B     0.0%
t6 (input, 4.00 MiB)                                                    -       0        0 B      0 B     0.0%
t7 (input, 4.00 MiB)                                                    -       0        0 B      0 B     0.0%
t8 (input, 4.00 MiB)                                                    -       0        0 B      0 B     0.0%
t9 (input, 4.00 MiB)                                                    -       0        0 B      0 B     0.0%
... and 2 more

By op, per step
                       resident
op           phase         peak  faults  to device  to host  collapses  of step
aten::addmm  backward  1.00 GiB     1.5        0 B      0 B        0.5     0.0%

Findings
warning  fault-stall (step)
         Faults and late prefetches take 50% of a steady step: 480.00 ms of 960.00 ms. In the whole run 75% of
         the time of faults was for intermediates.
         -> Up to 3.00 GiB are live at once, too much for a device of 2.00 GiB: keep parameters in bfloat16,
         take an optimizer with less state (Adafactor, SGD), or a device of at least 3.33 GiB. Parameters and
         state alone take 1.00 GiB, whatever the batch. Whether policy="window" or "swap" is faster say
         `umadvise run --record FILE` and `umadvise compare FILE`.
warning  parameters-fault-every-step (parameter)
         Parameters fault in every step, 50.00 MiB a step come to the device: each step evicts them again,
         because eviction takes what was serviced longest ago, not what is used least.
         -> What is said of fault-stall helps here too. They have preferred_location already: it says where
         they belong and protects nothing from eviction.
info     backward-stalls-more (backward)
         Faults take 90% of backward, and 50% of forward.
         -> Backward reads what forward saved. torch.utils.checkpoint.checkpoint(block, x) saves less and
         computes it again.
"""

EXPECTED_PICTURE_ON_80_COLUMNS = """\
Faults over step 2
phase    ├forward────────├backward───────────────├opt
service  ▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▁▁▁▁
faults   ▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄████████████████████████▄▄▄▄
         Time in fault service: forward 50.0%, backward 90.0%, optimizer 10.0%
         A column is 20.00 ms; a full block is all of that time, or 4 fault
         groups.
steps    ▂▄  30.0% of step 1 to 50.0% of 2

"""

EXPECTED_ROLES_ON_80_COLUMNS = """\
By role, per step
                   resident
role                   peak  faults   to device     to host  evictions  of step
intermediate     512.00 MiB      75  110.00 MiB  129.00 MiB         66    30.0%
parameter        768.00 MiB      25   50.00 MiB         0 B          0    10.0%
optimizer state           -     0.5         0 B         0 B          0     0.0%

"""

EXPECTED_TENSORS_ON_80_COLUMNS = """\
By tensor, per step
                                   resident
tensor                                 peak  faults  to device  to host  of step
encoder.layer.0.attention.self.qu  4.00 MiB       2        0 B      0 B     0.0%
ery.weight (parameter, 4.00 MiB)
aten::addmm in encoder.layer.0            -       0        0 B      0 B     0.0%
(intermediate, 8.00 MiB)
t0 (input, 4.00 MiB)                      -       0        0 B      0 B     0.0%
t1 (input, 4.00 MiB)                      -       0        0 B      0 B     0.0%
t2 (input, 4.00 MiB)                      -       0        0 B      0 B     0.0%
t3 (input, 4.00 MiB)                      -       0        0 B      0 B     0.0%
t4 (input, 4.00 MiB)                      -       0        0 B      0 B     0.0%
t5 (input, 4.00 MiB)                      -       0        0 B      0 B     0.0%
t6 (input, 4.00 MiB)                      -       0        0 B      0 B     0.0%
t7 (input, 4.00 MiB)                      -       0        0 B      0 B     0.0%
t8 (input, 4.00 MiB)                      -       0        0 B      0 B     0.0%
t9 (input, 4.00 MiB)                      -       0        0 B      0 B     0.0%
... and 2 more

"""


def test_the_whole_report(profile: FaultProfile) -> None:
    assert text.render(profile) == EXPECTED


def test_a_narrow_terminal_joins_bins_and_folds_names(profile: FaultProfile) -> None:
    narrow = text.render(profile, 80)
    assert EXPECTED_PICTURE_ON_80_COLUMNS in narrow
    assert EXPECTED_ROLES_ON_80_COLUMNS in narrow
    assert EXPECTED_TENSORS_ON_80_COLUMNS in narrow
    assert max(map(len, narrow.splitlines())) <= 80
    assert text.render(profile, 10) == narrow


def test_colours_change_nothing_but_colours(profile: FaultProfile, monkeypatch: pytest.MonkeyPatch) -> None:
    coloured = text.render(profile, color=True)
    assert "\x1b[32m▄" in coloured  # forward: half of the time, green in the paper's figure 11
    assert "\x1b[31m▇" in coloured  # backward: nine tenths
    assert _without_colours(coloured) == EXPECTED
    for variable, value in (("FORCE_COLOR", "1"), ("COLUMNS", "40"), ("NO_COLOR", "1"), ("TERM", "dumb")):
        monkeypatch.setenv(variable, value)
    assert text.render(profile) == EXPECTED
    assert text.render(profile, color=True) == coloured


def _without_colours(coloured: str) -> str:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    return "".join(f"{line.rstrip()}\n" for line in plain.splitlines())


def test_nothing_recorded(make: Any) -> None:
    unknown = make.profile(
        environment=make.environment(provider="cuda", counting="raw", torch_version=None, script=None),
        step_count=1,
        duration_ns=0,
        counters=make.counters(fault_groups=None, bytes_h2d=None, fault_service_ns=None, evictions=None),
        memory=None,
        tables=None,
    )
    rendered = text.render(unknown)
    assert rendered.startswith(
        "Memory traffic of this run\nemulated device (cuda, raw counting), 1.00 GiB, policy advise\n"
        "umadvise 0.1.0, torch -\n"
    )
    assert "fault service  -     - of the step\n" in rendered
    assert "to device      -\n" in rendered
    assert rendered.endswith(
        "Nobody recorded events: which tensors faulted, or were swapped, is unknown.\n\n"
        "Findings: nothing was counted that could be looked at\n"
    )


def test_without_a_step_the_report_says_what_to_do(make: Any) -> None:
    outside = make.counters(fault_groups=12, bytes_h2d=make.by_cause(coherence=3 * MIB))
    rendered = text.render(make.profile(step_count=0, duration_ns=0, outside=outside))
    assert rendered == (
        "Memory traffic of train.py\nemulated device (emulated, ordered counting), 1.00 GiB, policy advise\n"
        "umadvise 0.1.0, torch 2.13.0\n\n"
        "No step was completed, so nothing can be said of one: no optimizer stepped twice, and nothing was seen to "
        "come\nagain often enough. Mark the steps: open a session in the script, and put `with um.step():` around "
        "each of\nthem.\nOutside of the steps: 12 fault groups, 3.00 MiB to the device, 0 B to the host\n"
    )


def test_steps_that_nobody_marked_are_said_to_be_found(make: Any) -> None:
    rendered = text.render(make.profile(steps_are_found=True))
    assert "\nSteps: found by their repetition, as none were marked\n" in rendered
    assert "found by" not in text.render(make.profile())


def test_a_small_tensor_shares_its_block(make: Any) -> None:
    tables = make.tables(
        tensor=(
            make.tensor(name="bias", role="parameter", bytes=MIB, neighbours=1),
            make.tensor(name="norm", role="parameter", bytes=4096, neighbours=255),
            make.tensor(name="weight", role="parameter", bytes=4 * MIB, neighbours=9),
        )
    )
    rendered = text.render(make.profile(tables=tables))
    assert "\nbias (parameter, 1.00 MiB, shares its block with 1 other) " in rendered
    assert "\nnorm (parameter, 4.00 KiB, shares its block with 255+ others) " in rendered
    assert "\nweight (parameter, 4.00 MiB) " in rendered


def test_what_lies_in_two_places_is_told_apart(make: Any) -> None:
    placed = (
        Placed(role="parameter", memory="chunked", advice="none", bytes=3 * MIB),
        Placed(role="parameter", memory="managed", advice="none", bytes=MIB),
        Placed(role="gradient", memory="chunked", advice="none", bytes=MIB),
        Placed(role="input", memory="device", advice="none", bytes=MIB),
    )
    assert (
        "Unified memory, no advice: parameters (1.00 MiB of 4.00 MiB)\nPlain memory: inputs\n"
        "Chunks: parameters (3.00 MiB of 4.00 MiB), gradients\n"
    ) in text.render(make.profile(placed=placed))


def test_plain_memory_has_no_columns_of_zeros(make: Any) -> None:
    tables = make.tables(role=(make.role(role="parameter", resident_peak_bytes=MIB),))
    rendered = text.render(make.profile(placed=make.placed("device"), tables=tables))
    assert "All of it lay in plain memory: nothing faults there.\n" in rendered
    assert "\nBy role\n           resident\nrole           peak\nparameter  1.00 MiB\n" in rendered
    assert "fault groups" not in rendered


@pytest.fixture
def swapping(make: Any) -> FaultProfile:
    """Two steps of a second: the first was recorded, a plan drove the second."""
    first = make.swaps(
        swap_ins=30, swap_in_bytes=300 * MIB, on_demand_swap_ins=30, wait_copy_ns=400 * MS, wait_room_ns=100 * MS,
        swap_outs=25, swap_out_bytes=250 * MIB, evictions=28, clean_drops=3,
    )  # fmt: skip
    second = make.swaps(swap_ins=20, swap_in_bytes=200 * MIB, wait_copy_ns=20 * MS, swap_outs=20, swap_out_bytes=MIB)
    steps = [
        msgspec.structs.replace(step, swaps=swaps)
        for step, swaps in zip(make.steps(make.counters(), make.counters()), (first, second), strict=True)
    ]
    row = {
        "resident_peak_bytes": 90 * MIB,
        "swap_ins": 50,
        "swap_in_bytes": 500 * MIB,
        "on_demand_swap_ins": 30,
        "on_demand_bytes": 300 * MIB,
        "swap_outs": 45,
        "swap_out_bytes": 251 * MIB,
        "wait_copy_ns": 420 * MS,
        "on_demand_wait_ns": 400 * MS,
        "wait_room_ns": 100 * MS,
    }
    made: FaultProfile = make.profile(
        environment=make.environment(policy="swap"),
        placed=make.placed("chunked"),
        steps=tuple(steps),
        swaps=first.plus(second),
        outside_swaps=make.swaps(swap_in_bytes=5 * MIB),
        memory=make.memory(requested_peak_bytes=2 * GIB, resident_peak_bytes=GIB),
        chunks=Chunks(chunk_bytes=2 * MIB, budget_bytes=GIB, used_peak_bytes=GIB, host_peak_bytes=3 * GIB),
        planned=PlannedSteps(driven=1, undriven=(Undriven(first=1, last=1, reason="recorded, to be planned for"),)),
        tables=make.tables(
            role=(make.role(role="parameter", **row),),
            tensor=(make.tensor(name="weight", role="parameter", **row), make.tensor(birth_op="aten::mm")),
        ),
    )
    return msgspec.structs.replace(made, findings=examine(made))


EXPECTED_SWAPPING = """\
Memory traffic of train.py
emulated device (emulated, ordered counting), 1.00 GiB, policy swap
Chunks: parameters, inputs, intermediates
umadvise 0.1.0, torch 2.13.0

Per step
step time      1.00 s      mean of 2
copy waits     210.00 ms   21.0% of the step, for bytes on their way, 20.0% on demand
room waits     50.00 ms    5.0% of the step, until others had left
swapped in     250.00 MiB  25 copies, 15 on demand: 150.00 MiB
swapped out    125.50 MiB  22 copies, 1.5 left without one; 14 for room that no plan had made
chunks' peak   1.00 GiB    of 1.00 GiB, in chunks of 2.00 MiB, in the last step; 3.00 GiB of the host held
                           what was swapped out
resident peak  1.00 GiB    of 1.00 GiB
live peak      2.00 GiB    all tensors, wherever they are
Plans drove 1 of 2 steps. Not driven:
  step 1: recorded, to be planned for
Outside of the steps: 5.00 MiB swapped in, 0 B swapped out, 0 ns of waits

By step
              waits for  waits for    waits     swapped     swapped      on   for
step    time     copies       room  of step          in         out  demand  room  plan
   1  1.00 s  400.00 ms  100.00 ms    50.0%  300.00 MiB  250.00 MiB      30    28  no
   2  1.00 s   20.00 ms       0 ns     2.0%  200.00 MiB    1.00 MiB       0     0  drove it

By role, per step
            resident     swapped          on     swapped               waits
role            peak          in      demand         out      waits  of step
parameter  90.00 MiB  250.00 MiB  150.00 MiB  125.50 MiB  260.00 ms    26.0%

By tensor, per step
                               resident     swapped          on     swapped               waits
tensor                             peak          in      demand         out      waits  of step
weight (parameter, 4.00 MiB)  90.00 MiB  250.00 MiB  150.00 MiB  125.50 MiB  260.00 ms    26.0%
aten::mm ((none), 4.00 MiB)           -         0 B         0 B         0 B       0 ns     0.0%

Findings: none
"""


def test_a_rung_that_swaps_shows_swaps_and_no_faults(swapping: FaultProfile) -> None:
    assert text.render(swapping) == EXPECTED_SWAPPING


BY_PHASE_PAGING = """\
By phase, per step: paging
             resident       ops
phase            peak       run  faults  to device  to host  evictions  of step
optimizer  142.00 MiB  75.00 ms      21        0 B      0 B         15     0.0%

"""
BY_PHASE_SWAPS = """\
By phase, per step: swaps
             swapped         on     swapped              waits
phase             in     demand         out     waits  of step
optimizer  73.00 MiB  41.00 MiB  135.00 MiB  10.00 ms     1.0%

"""


def test_names_have_room_beside_paging_and_swaps(make: Any) -> None:
    row = make.phase(
        phase="optimizer",
        resident_peak_bytes=142 * MIB,
        compute_ns=150 * MS,
        fault_groups=42,
        evictions=30,
        swap_in_bytes=146 * MIB,
        on_demand_bytes=82 * MIB,
        swap_out_bytes=270 * MIB,
        wait_copy_ns=20 * MS,
    )
    tables = make.tables(phase=(row,))
    both = make.profile(step_count=2, duration_ns=2000 * MS, tables=tables, swaps=make.swaps(swap_ins=2))
    shown = text.render(both, 80)
    assert re.findall(r"^By phase.*?\n\n", shown, re.DOTALL | re.MULTILINE) == [BY_PHASE_PAGING, BY_PHASE_SWAPS]


def test_residency_that_nobody_knows_is_not_zero(make: Any) -> None:
    tables = make.tables(role=(make.role(role="parameter"), make.role(role=None)))
    rendered = text.render(make.profile(tables=tables))
    assert "\nparameter         -       0" in rendered
    assert "\n(none)            -       0" in rendered


def test_names_are_shown_as_they_are(make: Any) -> None:
    """No markup, no emoji codes: a module may be called anything."""
    row = make.module(module="[red]:smile: [/] 層", fault_groups=1)
    rendered = text.render(make.profile(tables=make.tables(module=(row,))))
    assert "\n[red]:smile: [/] 層         -     0.5" in rendered


def test_the_rest_of_a_table_is_mentioned(make: Any) -> None:
    rest = make.tally(fault_groups=5)
    tables = msgspec.structs.replace(make.tables(), op=Table(rows=(make.op(op="aten::mm"),), rest=rest))
    assert "\n... and 0 more, and a rest too small to keep\n" in text.render(make.profile(tables=tables))


def test_json_is_the_file(profile: FaultProfile) -> None:
    assert fault_profile.decode(fault_profile.encode(profile)) == profile


@pytest.mark.parametrize(("width", "columns"), [(200, 96), (96, 96), (95, 48), (47, 32), (31, 24), (1, 12)])
def test_bins_are_joined_to_fit(width: int, columns: int) -> None:
    assert picture.columns_for(width) == columns
    assert sum(picture.joined(range(BIN_COUNT), columns)) == sum(range(BIN_COUNT))
    assert len(picture.joined(range(BIN_COUNT), columns)) == columns


def test_a_block_shows_whatever_is_not_zero() -> None:
    assert picture.blocks([0, 0.001, 0.5, 0.99, 1, 7], heat=False).plain == " ▁▄███"


def test_the_ruler_names_each_run_of_a_phase() -> None:
    phases = ["forward"] * 10 + [None] * 2 + ["backward"] * 3 + ["optimizer"]
    assert picture.phase_ruler(phases) == "├forward──  ├ba├"  # type: ignore[arg-type]
    assert picture.joined_phases(phases, 8) == ["forward"] * 5 + [None, "backward", "backward"]  # type: ignore[arg-type]
