"""What profiles and reports say of a run, against the device's own counters and what the script did."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import umadvise
from umadvise.records.counters import Swaps
from umadvise.records.fault_profile import FaultProfile, Tables
from umadvise.records.step_picture import SPAN_KINDS
from umadvise.reports.reporters import text
from umadvise.training.session import Session

MIB = 1 << 20
SUMS = {  # of a table's row, and what they are called in the counters
    "swap_ins": "swap_ins",
    "swap_outs": "swap_outs",
    "swap_in_bytes": "swap_in_bytes",
    "swap_out_bytes": "swap_out_bytes",
    "on_demand_swap_ins": "on_demand_swap_ins",
    "swap_evictions": "evictions",
    "clean_drops": "clean_drops",
    "wait_copy_ns": "wait_copy_ns",
    "wait_room_ns": "wait_room_ns",
}


def perceptron(layers: int = 8) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(layers)))


def train(um: Session, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        with um.step():
            model(um.to_device(torch.ones(32, 1024))).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


@pytest.fixture(scope="module")
def swapped() -> Iterator[tuple[FaultProfile, Swaps]]:
    """Adam on 32 MiB of weights in 48 MiB, by swaps; and what the device counted."""
    model = perceptron()
    optimizer = torch.optim.Adam(model.parameters())
    with umadvise.session(model, optimizer, device="emulated", capacity="48MiB", policy="swap") as um:
        train(um, model, optimizer, 5)
        counted = um.swap_counters()
        profile = um.profile()
    yield profile, Swaps(**{field: getattr(counted, field) for field in Swaps.__struct_fields__})


def added_up(tables: Tables, side: str) -> dict[str, int]:
    table = getattr(tables, side)
    rows = [*table.rows, *([table.rest] if table.rest else [])]
    return {name: sum(getattr(row, field) for row in rows) for field, name in SUMS.items()}


def test_waits_and_bytes_of_swaps_add_up_to_the_counters(swapped: tuple[FaultProfile, Swaps]) -> None:
    profile, counted = swapped
    assert profile.swaps is not None
    assert profile.outside_swaps is not None
    assert profile.tables is not None
    assert profile.events_dropped == 0
    assert min(counted.swap_ins, counted.swap_outs, counted.on_demand_swap_ins, counted.wait_copy_ns) > 0
    assert profile.swaps.plus(profile.outside_swaps) == counted
    steps = [step.swaps for step in profile.steps if step.swaps is not None]
    assert len(steps) == profile.step_count == 5
    total = steps[0]
    for step in steps[1:]:
        total = total.plus(step)
    assert total == profile.swaps
    expected = {name: getattr(profile.swaps, name) for name in SUMS.values()}
    for side in Tables.__struct_fields__:
        assert added_up(profile.tables, side) == expected, side
    assert profile.planned is not None
    undriven = sum(each.last - each.first + 1 for each in profile.planned.undriven)
    assert profile.planned.driven + undriven == 5
    assert profile.planned.driven >= 1


def test_what_gets_its_name_late_is_listed_under_it(swapped: tuple[FaultProfile, Swaps]) -> None:
    """Adam's state is made by the first step, and a gradient is one when it is accumulated."""
    profile, _ = swapped
    assert profile.tables is not None
    rows = profile.tables.tensor.rows
    weights = {(row.role, row.name) for row in rows if row.bytes == 4 * MIB and row.role != "intermediate"}
    for index in range(8):
        assert ("optimizer_state", f"{index}.weight.exp_avg") in weights
        assert ("gradient", f"{index}.weight.grad") in weights
    assert [row for row in rows if row.birth_op is not None and "zeros_like" in row.birth_op] == []


def test_a_swapping_rung_has_no_columns_of_faults(swapped: tuple[FaultProfile, Swaps]) -> None:
    report = text.render(swapped[0])
    assert "\nChunks: parameters, " in report
    assert "\ncopy waits " in report
    assert "\nPlans drove " in report
    for word in ("fault groups", "evictions", "remote", "aten::zeros_like (intermediate"):
        assert word not in report


@pytest.mark.parametrize("advice", ["none", "read_mostly"])
def test_the_header_says_what_was_applied(advice: str) -> None:
    """Not what the session would have given: tensors that were placed before, and `set_unified`, have their own."""
    umadvise.patch(device=umadvise.EmulatedDevice(capacity="64MiB"))
    try:
        word = {"none": "noadvise", "read_mostly": "readmostly"}[advice]
        model = perceptron(2).to(f"cuda:{word}")
        optimizer = torch.optim.Adam(model.parameters())
        with umadvise.session(model, optimizer, policy="advise") as um:
            torch.cuda.set_unified(word)  # type: ignore[attr-defined]  # patch() added it
            for _ in range(2):
                with um.step():
                    model(torch.ones(8, 1024).to(f"cuda:{word}")).sum().backward()
                    optimizer.step()
            profile = um.profile()
    finally:
        umadvise.unpatch()
    assert {each.advice for each in profile.placed if each.bytes > MIB} == {advice}
    words = "no advice" if advice == "none" else advice
    report = text.render(profile)
    assert f"\nUnified memory, {words}: parameters, " in report
    assert "optimizer state\n" in report[: report.index("Per step")]
    assert "preferred_location" not in report


def test_the_policy_is_the_users() -> None:
    model = perceptron(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with umadvise.session(model, optimizer, device="emulated", capacity="256MiB", policy="auto") as um:
        train(um, model, optimizer, 1)
        assert um.profile().environment.policy == "auto"


def test_a_tensor_that_shares_its_block_says_so() -> None:
    """Biases of 4 KiB lie beside others in blocks of 2 MiB, whose traffic is theirs too."""
    model = perceptron(12)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with umadvise.session(model, optimizer, device="emulated", capacity="40MiB", policy="advise") as um:
        train(um, model, optimizer, 3)
        profile, predictions = um.profile(), um._open_loop().predictions()
    assert profile.tables is not None
    small = [row for row in profile.tables.tensor.rows if row.bytes == 4096 and row.role == "parameter"]
    assert max(row.neighbours for row in small) >= 1
    large = [row for row in profile.tables.tensor.rows if row.bytes == 4 * MIB and row.fault_groups]
    assert large
    assert {each.rung for each in predictions} >= {"advise", "swap"}


def test_the_picture_of_a_swapped_step_agrees_with_its_counters(swapped: tuple[FaultProfile, Swaps]) -> None:
    profile, _ = swapped
    picture, step = profile.picture, profile.steps[-1]
    assert picture is not None
    assert step.swaps is not None
    assert (picture.step, picture.duration_ns) == (step.index, step.duration_ns)
    of_kind = {kind: [span for span in picture.spans if span.kind == kind] for kind in SPAN_KINDS}
    swaps = step.swaps
    assert sum(span.count for span in of_kind["swap_in"]) == swaps.swap_ins > 0
    assert sum(span.bytes for span in of_kind["swap_in"]) == swaps.swap_in_bytes
    assert sum(span.bytes for span in of_kind["swap_out"]) == swaps.swap_out_bytes
    assert sum(span.duration_ns for span in of_kind["wait_copy"]) == swaps.wait_copy_ns
    assert sum(span.duration_ns for span in of_kind["wait_room"]) == swaps.wait_room_ns
    in_time = [span for span in of_kind["swap_in"] if span.used_ns is not None and span.used_ns >= span.start_ns]
    assert len(in_time) >= len(of_kind["swap_in"]) / 2  # others are for the next step, or late
    assert sum(op.duration_ns for op in picture.ops) <= picture.duration_ns
    assert profile.memory is not None
    totals = [sum(column) for column in zip(*picture.live_bytes.values(), strict=True)]
    assert 0.95 * profile.memory.requested_peak_bytes <= max(totals) <= profile.memory.requested_peak_bytes


def test_what_is_swapped_in_is_what_the_op_uses() -> None:
    """Forward goes through the layers in order: a weight that comes for forward is used before the next one's."""
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters())
    with umadvise.session(model, optimizer, device="emulated", capacity="24MiB", policy="swap") as um:
        train(um, model, optimizer, 5)
        picture = um.profile().picture
    assert picture is not None
    weights = [f"{index}.weight" for index in range(8)]
    used = {span.used_ns: picture.names[span.subject] for span in picture.spans if span.used_ns is not None}
    ops = {op.start_ns: op for op in picture.ops}
    forward = [
        (at_ns, name) for at_ns, name in sorted(used.items()) if ops[at_ns].phase == "forward" and name in weights
    ]
    assert len(forward) > 1
    assert [name for _, name in forward] == sorted(name for _, name in forward)
    for at_ns, name in forward:
        op = ops[at_ns]
        assert (picture.names[op.name], picture.names[op.module]) == ("aten::addmm", name.removesuffix(".weight"))


def test_the_picture_of_a_paged_step_agrees_with_its_counters() -> None:
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters())
    with umadvise.session(model, optimizer, device="emulated", capacity="24MiB", policy="advise") as um:
        train(um, model, optimizer, 4)
        profile = um.profile()
    picture, counted = profile.picture, profile.steps[-1].counters
    assert picture is not None
    assert counted.bytes_h2d is not None
    faults = [span for span in picture.spans if span.kind == "fault_group"]
    assert sum(span.count for span in faults) == counted.fault_groups
    assert sum(span.duration_ns for span in faults) == pytest.approx(counted.fault_service_ns, rel=1e-3)
    assert sum(span.bytes for span in picture.spans if span.kind == "transfer_h2d") == counted.bytes_h2d.total
    assert picture.ops  # a steady step is recorded on every rung
