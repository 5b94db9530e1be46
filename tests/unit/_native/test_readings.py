"""The native core's records in this package's words. The expected words are those of csrc/include/umadvise.h."""

import re
import struct
from pathlib import Path
from typing import Any

import pytest

from umadvise._native.readings import events_from, residency_from
from umadvise._native.structures import make, read
from umadvise.records.counters import (
    CAUSES,
    EVENT_KINDS,
    PHASES,
    RESIDENCY_SUBJECTS,
    ROLES,
    SWAP_CAUSES,
    BytesByCause,
    BytesByRole,
    Counters,
    MemoryStats,
)

HEADER = Path(__file__).parents[3] / "csrc" / "include" / "umadvise.h"


@pytest.mark.parametrize(
    ("prefix", "words"),
    [
        ("UM_EVENT_", EVENT_KINDS),
        ("UM_CAUSE_", CAUSES),
        ("UM_SWAP_", SWAP_CAUSES),
        ("UM_ROLE_", ROLES),
        ("UM_PHASE_", ("none", *PHASES[1:])),
        ("UM_RESIDENCY_", RESIDENCY_SUBJECTS),
        ("UM_CAUSE_", BytesByCause.__struct_fields__),
        ("UM_ROLE_", BytesByRole.__struct_fields__),
    ],
)
def test_the_words_stand_in_the_order_of_the_header(prefix: str, words: tuple[str, ...]) -> None:
    numbers = dict(re.findall(rf"\b{prefix}(\w+) = (\d+)", HEADER.read_text()))
    numbers.pop("COUNT", None)
    assert {name.lower(): int(number) for name, number in numbers.items()} == {
        word: number for number, word in enumerate(words)
    }


def test_an_event_gets_words_and_none_for_what_has_no_name() -> None:
    names = {0: "", 1: "aten::add_", 2: "encoder", 3: "aten::zeros_like"}
    # um_event field by field: times, address, bytes, allocation, its bytes; step and names; kind, cause; flags
    layout = struct.Struct("=qqQQQQIIIIIIIIIHHBBBB4x")
    something = (5, 6, 4096, 2 << 20, 7, 64, 5, 9, 1, 2, 3, 4, 0, 3, 0, 2, 3, 1, 0, 1, 0)
    first, second = events_from(layout.pack(*[0] * 21) + layout.pack(*something), names.__getitem__)
    assert (first.role, first.phase, first.op, first.module, first.name) == (None,) * 5
    assert (first.kind, first.cause, first.write) == ("fault_group", "user", False)
    assert (second.start_ns, second.duration_ns, second.address, second.bytes) == (5, 6, 4096, 2 << 20)
    assert (second.allocation, second.allocation_bytes, second.step, second.op_index) == (7, 64, 5, 9)
    assert (second.op, second.module, second.phase) == ("aten::add_", "encoder", "optimizer")
    assert (second.role, second.name) == ("optimizer_state", None)
    assert (second.birth_op, second.birth_module) == ("aten::zeros_like", None)
    assert (second.kind, second.cause) == ("transfer_d2h", "eviction")
    assert (second.write, second.unordered, second.first_touch) == (True, False, True)


def test_a_residency_peak_has_what_its_subject_needs() -> None:
    names = {0: "", 1: "weight", 2: "aten::mm", 3: "encoder"}
    # um_residency field by field: peak, bytes of one; subject, role, name, birthplace; op, module, phase; nanoseconds
    layout = struct.Struct("=QQIIIIIIIIq")
    packed = (
        layout.pack(7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
        + layout.pack(8, 64, 1, 3, 1, 0, 0, 0, 0, 0, 0)
        + layout.pack(9, 64, 1, 2, 0, 2, 3, 0, 0, 0, 0)
        + layout.pack(2**40, 0, 2, 0, 0, 0, 0, 2, 3, 2, 77)
    )
    role, named, born, op = residency_from(packed, names.__getitem__)
    assert (role.subject, role.peak_bytes, role.role, role.name) == ("role", 7, "parameter", None)
    assert (named.subject, named.peak_bytes, named.bytes, named.role) == ("tensor", 8, 64, "gradient")
    assert (named.name, named.birth_op, named.birth_module) == ("weight", None, None)
    assert (born.name, born.birth_op, born.birth_module, born.role) == (None, "aten::mm", "encoder", "intermediate")
    assert (op.subject, op.peak_bytes, op.role) == ("op", 2**40, None)
    assert (op.op, op.module, op.phase) == ("aten::mm", "encoder", "backward")
    assert (op.compute_ns, born.compute_ns) == (77, 0)


def test_counters_keep_unknown_and_the_order_of_causes() -> None:
    fields: dict[str, Any] = dict.fromkeys(Counters.__struct_fields__, 0)
    fields |= {"first_touches": 2, "evictions": 5, "remote_accesses": -1}
    fields |= {"bytes_h2d": (10, 11, 12, 13, 14), "bytes_d2h": (20, 21, -1, 23, 24)}
    counters = read(Counters, make("um_counters", **fields))
    assert (counters.fault_groups, counters.first_touches, counters.evictions) == (0, 2, 5)
    assert counters.remote_accesses is None
    assert counters.bytes_h2d is not None
    assert counters.bytes_d2h is not None
    assert (counters.bytes_h2d.user, counters.bytes_h2d.access_counter, counters.bytes_h2d.total) == (10, 14, 60)
    assert (counters.bytes_d2h.speculative, counters.bytes_d2h.eviction, counters.bytes_d2h.total) == (None, 23, None)


def test_memory_is_split_by_role() -> None:
    plain = {name: number for number, name in enumerate(MemoryStats.__struct_fields__) if "by_role" not in name}
    by_role = {
        name: tuple(range(start, start + 6))
        for name, start in (
            ("requested_by_role", 20),
            ("requested_peak_by_role", 30),
            ("resident_by_role", 40),
            ("resident_peak_by_role", 50),
        )
    }
    memory = read(MemoryStats, make("um_memory_stats", **plain, **by_role))
    assert (memory.requested_bytes, memory.live_allocations) == (0, 11)
    assert memory.requested_by_role.parameter == 20
    assert memory.requested_peak_by_role.optimizer_state == 34
    assert memory.resident_by_role is not None
    assert memory.resident_by_role.workspace == 45
    assert memory.resident_peak_by_role is not None
    assert (memory.resident_peak_by_role.parameter, memory.resident_peak_by_role.intermediate) == (50, 52)
