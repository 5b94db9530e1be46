"""Residency by role: what lies on the device, and the most that ever did, against sizes that are known beforehand.

Tensors here are whole pages of 2 MiB, so that bytes of tensors and bytes of pages are the same.
"""

import torch
from torch import nn

import umadvise
from umadvise.counters.records import ARENA_ROLES, ROLES, BytesByRole, MemoryStats
from umadvise.profile import FaultProfile
from umadvise.reporters import text
from umadvise.units import format_bytes

MIB = 1 << 20


def total(by_role: BytesByRole | None) -> int:
    assert by_role is not None
    assert not any(getattr(by_role, role) for role in set(ROLES) - set(ARENA_ROLES))
    return sum(getattr(by_role, role) for role in ARENA_ROLES)


def train(capacity: str) -> tuple[int, list[MemoryStats], FaultProfile]:
    """Two steps with a reading after every layer, forward and backward; the parameters' bytes come first."""
    torch.manual_seed(2)
    model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(3)))  # 4 MiB each
    batch = torch.ones(512, 1024)  # 2 MiB; ordinary memory, as there is no session yet
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
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
    assert profile.memory is not None
    peaks = profile.memory.resident_peak_by_role
    assert peaks is not None
    assert peaks.parameter == parameter_bytes == 12 * MIB
    assert peaks.input == 2 * MIB
    # When the last gradient arrives the two before it are there.
    assert peaks.intermediate >= parameter_bytes
    assert all(total(reading.resident_by_role) == reading.resident_bytes for reading in readings)


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
    shown = {row.split("  ")[0]: row for row in rows[2:]}
    assert format_bytes(peaks.parameter) in shown["parameter"]
    assert format_bytes(peaks.intermediate) in shown["intermediate"]
