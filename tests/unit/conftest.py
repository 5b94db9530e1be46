"""Hand-made profiles: every field has a plain value, a test names what it is about."""

from typing import Any

import pytest
from hypothesis import settings

from umadvise.records.counters import (
    CAUSES,
    ROLES,
    BytesByCause,
    BytesByRole,
    Counters,
    Event,
    MemoryStats,
    Placed,
    ResidencyPeak,
    SpentTime,
    Swaps,
)
from umadvise.records.fault_profile import (
    BIN_COUNT,
    FaultProfile,
    MeasuredStep,
    ModuleRow,
    OpRow,
    Pattern,
    PhaseRow,
    RolePhaseRow,
    RoleRow,
    RunEnvironment,
    Table,
    Tables,
    Tally,
    TensorRow,
)

settings.register_profile("any machine", deadline=None)  # the default is a time, which a busy machine exceeds
settings.load_profile("any machine")

MIB = 1 << 20


class Make:
    """Makes records with plain values: nothing happened, and everything is known."""

    def by_cause(self, **bytes_: int) -> BytesByCause:
        return BytesByCause(**{**dict.fromkeys(CAUSES, 0), **bytes_})

    def by_role(self, **bytes_: int) -> BytesByRole:
        return BytesByRole(**{**dict.fromkeys(ROLES, 0), **bytes_})

    def counters(self, **fields: Any) -> Counters:
        plain = {field: 0 for field in Counters.__struct_fields__ if field != "remote_accesses"}
        return Counters(**{**plain, "bytes_h2d": self.by_cause(), "bytes_d2h": self.by_cause(), **fields})

    def memory(self, **fields: Any) -> MemoryStats:
        by_role = {field: self.by_role() for field in MemoryStats.__struct_fields__ if "by_role" in field}
        return MemoryStats(**{**dict.fromkeys(MemoryStats.__struct_fields__, 0), **by_role, **fields})

    def environment(self, **fields: Any) -> RunEnvironment:
        plain = {
            "device_name": "emulated device",
            "provider": "emulated",
            "counting": "ordered",
            "capacity_bytes": 1024 * MIB,
            "budget_bytes": None,
            "policy": "advise",
            "umadvise_version": "0.1.0",
            "torch_version": "2.13.0",
            "script": "train.py",
        }
        return RunEnvironment(**{**plain, **fields})

    def placed(self, memory: str = "managed", **advice: str) -> tuple[Placed, ...]:
        words = {"parameter": "none", "input": "none", "intermediate": "none", **advice}
        return tuple(Placed(role=role, memory=memory, advice=word, bytes=MIB) for role, word in words.items())

    def swaps(self, **fields: int) -> Swaps:
        return Swaps(**{**dict.fromkeys(Swaps.__struct_fields__, 0), **fields})

    def event(self, kind: str, **fields: Any) -> Event:
        plain: dict[str, Any] = dict.fromkeys(Event.__struct_fields__, 0)
        nameless = dict.fromkeys(("op", "module", "phase", "role", "name", "birth_op", "birth_module"))
        flags = dict.fromkeys(("write", "unordered", "first_touch"), False)
        return Event(**{**plain, **nameless, **flags, "kind": kind, "cause": "user", "step": 1, **fields})

    def peak(self, subject: str, peak_bytes: int | None, **fields: Any) -> ResidencyPeak:
        plain: dict[str, Any] = dict.fromkeys(ResidencyPeak.__struct_fields__)
        shown = {"bytes": 0, "compute_ns": 0, "subject": subject, "peak_bytes": peak_bytes}
        return ResidencyPeak(**{**plain, **shown, **fields})

    def times(self, **fields: int) -> SpentTime:
        return SpentTime(**{**dict.fromkeys(SpentTime.__struct_fields__, 0), **fields})

    def tally(self, row_type: type[Tally] = Tally, **fields: Any) -> Any:
        plain = dict.fromkeys(Tally.__struct_fields__, 0)
        subject = {field: None for field in row_type.__struct_fields__ if field not in plain}
        if row_type is TensorRow:
            subject |= {"bytes": 4 * MIB, "neighbours": 0}
        return row_type(**{**plain, **subject, "bytes_h2d": self.by_cause(), "bytes_d2h": self.by_cause(), **fields})

    def role(self, **fields: Any) -> RoleRow:
        return self.tally(RoleRow, **fields)

    def phase(self, **fields: Any) -> PhaseRow:
        return self.tally(PhaseRow, **fields)

    def role_phase(self, **fields: Any) -> RolePhaseRow:
        return self.tally(RolePhaseRow, **fields)

    def module(self, **fields: Any) -> ModuleRow:
        return self.tally(ModuleRow, **fields)

    def op(self, **fields: Any) -> OpRow:
        return self.tally(OpRow, **fields)

    def tensor(self, **fields: Any) -> TensorRow:
        return self.tally(TensorRow, **fields)

    def tables(self, **rows: tuple[Tally, ...]) -> Tables:
        return Tables(**{name: Table(rows=rows.get(name, ()), rest=None) for name in Tables.__struct_fields__})

    def pattern(self, **fields: Any) -> Pattern:
        zeros = (0,) * BIN_COUNT
        plain = {
            "step": 1,
            "duration_ns": 960_000,
            "fault_groups": zeros,
            "service_ns": zeros,
            "phases": (None,) * BIN_COUNT,
        }
        return Pattern(**{**plain, **fields})

    def steps(self, *counters: Counters, duration_ns: int = 1_000_000_000) -> tuple[MeasuredStep, ...]:
        return tuple(
            MeasuredStep(index=index, duration_ns=duration_ns, counters=counted, resident_peak_bytes=None)
            for index, counted in enumerate(counters, 1)
        )

    def profile(self, **fields: Any) -> FaultProfile:
        plain = {
            "environment": self.environment(),
            "step_count": 2,
            "duration_ns": 2_000_000_000,
            "counters": self.counters(),
            "outside": None,
            "events_dropped": 0,
            "memory": self.memory(),
            "steps": (),
            "tables": self.tables(),
            "pattern": None,
            "oversized_ops": (),
            "findings": (),
        }
        return FaultProfile(**{**plain, **fields})


@pytest.fixture(scope="session")
def make() -> Make:
    return Make()
