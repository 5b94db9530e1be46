"""Residency by role: what lies on the device, and the most that ever did, against sizes that are known beforehand.

Tensors here are whole pages of 2 MiB, so that bytes of tensors and bytes of pages are the same.
"""

import pytest
import torch
from torch import nn

import umadvise
from umadvise.records.counters import ROLES, BytesByRole, MemoryStats
from umadvise.records.fault_profile import FaultProfile, Tables
from umadvise.records.units import format_bytes
from umadvise.reports.reporters import text

MIB = 1 << 20
ARENA_ROLES = ROLES[:3]
"""Those that choose where memory comes from: what the device counts by itself."""


def total(by_role: BytesByRole | None) -> int:
    assert by_role is not None
    assert not any(getattr(by_role, role) for role in set(ROLES) - set(ARENA_ROLES))
    return sum(getattr(by_role, role) for role in ARENA_ROLES)


def tables_of(profile: FaultProfile) -> Tables:
    assert profile.tables is not None
    return profile.tables


def train(capacity: str) -> tuple[int, list[MemoryStats], FaultProfile]:
    """Two steps with a reading after every layer, forward and backward; the parameters' bytes come first."""
    torch.manual_seed(2)
    model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(3)))  # 4 MiB each
    batch = torch.ones(512, 1024)  # 2 MiB; ordinary memory, as there is no session yet
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    readings: list[MemoryStats] = []
    with umadvise.session(model, optimizer, device="emulated", capacity=capacity, policy="advise") as um:

        def read(*_: object) -> None:
            readings.append(um.memory_stats())

        for layer in model.children():
            layer.register_forward_hook(read)
        for layer in list(model.children())[1:]:  # the first one's input wants no gradient
            layer.register_full_backward_hook(read)
        for _ in range(2):
            with um.step():
                model(um.to_device(batch)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                read()
        return sum(parameter.nbytes for parameter in model.parameters()), readings, um.profile()


def test_where_everything_fits_the_peaks_are_the_bytes_of_the_tensors() -> None:
    parameter_bytes, readings, profile = train("256MiB")
    assert parameter_bytes == 12 * MIB
    assert all(total(reading.resident_by_role) == reading.resident_bytes for reading in readings)
    tables = tables_of(profile)
    peaks = {row.role: row.resident_peak_bytes for row in tables.role.rows}
    assert peaks["parameter"] == peaks["gradient"] == peaks["optimizer_state"] == parameter_bytes
    assert peaks["input"] == 2 * MIB
    named = {row.name: (row.role, row.bytes, row.resident_peak_bytes) for row in tables.tensor.rows if row.name}
    for layer in range(3):
        assert named[f"{layer}.weight"] == ("parameter", 4 * MIB, 4 * MIB)
        assert named[f"{layer}.weight.grad"] == ("gradient", 4 * MIB, 4 * MIB)
        assert named[f"{layer}.weight.momentum_buffer"] == ("optimizer_state", 4 * MIB, 4 * MIB)
    # What a layer makes is born in its module: in the first two one at a time, the result or a gradient.
    results = [row for row in tables.tensor.rows if row.birth_op == "aten::mm" and row.bytes == 2 * MIB]
    born = {row.birth_module: row.resident_peak_bytes for row in results}
    assert born["0"] == born["1"] == 2 * MIB


def test_where_little_fits_all_roles_together_stay_within_the_capacity() -> None:
    parameter_bytes, readings, profile = train("16MiB")
    assert profile.counters.evictions
    for reading in readings:
        assert total(reading.resident_by_role) == reading.resident_bytes
        assert total(reading.resident_by_role) <= 16 * MIB
    highest = {role: max(getattr(reading.resident_by_role, role) for reading in readings) for role in ARENA_ROLES}
    assert profile.memory is not None
    peaks = profile.memory.resident_peak_by_role
    assert peaks is not None
    for role, seen_bytes in highest.items():
        assert seen_bytes <= getattr(peaks, role) <= 16 * MIB
    assert peaks.parameter <= parameter_bytes
    assert profile.memory.resident_peak_bytes == 16 * MIB  # of a step that needs more it is full
    rows = text.render(profile).split("By role, per step")[1].split("\n\n")[0].splitlines()
    shown = {row.split("  ")[0]: row for row in rows[3:]}
    for table_row in tables_of(profile).role.rows:
        if table_row.role is not None:
            assert format_bytes(table_row.resident_peak_bytes) in shown[table_row.role.replace("_", " ")]


@pytest.mark.parametrize("capacity", ["256MiB", "16MiB"])
def test_the_tables_agree_with_what_the_device_counts_by_itself(capacity: str) -> None:
    """It counts by arena: those of parameters and inputs hold nothing but whole pages of these."""
    _, readings, profile = train(capacity)
    tables = tables_of(profile)
    assert profile.memory is not None
    peaks = profile.memory.resident_peak_by_role
    assert peaks is not None
    by_role = {row.role: row.resident_peak_bytes or 0 for row in tables.role.rows}
    assert by_role["parameter"] == peaks.parameter
    assert by_role["input"] == peaks.input
    assert max(by_role["gradient"], by_role["optimizer_state"]) <= peaks.intermediate
    # Whenever most was there, some op ran or it was outside of ops: a row too.
    for table in (tables.phase, tables.module, tables.op):
        assert max(row.resident_peak_bytes or 0 for row in table.rows) == profile.memory.resident_peak_bytes
    # The readings follow the layers: forward 0, 1, 2, backward 2, 1, and one after the optimizer, in each step.
    by_module = {row.module: row.resident_peak_bytes or 0 for row in tables.module.rows}
    for step in (readings[:6], readings[6:]):
        for layer, reading in enumerate(step[:3]):
            assert by_module[str(layer)] >= (reading.resident_bytes or 0)
