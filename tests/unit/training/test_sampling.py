"""Counters of sampled steps: which steps they are about, what stays unknown, and how the report says so."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import torch
from msgspec.structs import replace

from umadvise.errors import FormatError, UsageError
from umadvise.records.counters import Chunks, Counters, RemoteMapsByCause, Sampling, SpentTime, with_sample
from umadvise.records.fault_profile import FaultProfile, decode, encode
from umadvise.records.sampled_step import SampledStep
from umadvise.reports.counters.builder import ProfileBuilder
from umadvise.reports.findings.facts import Facts
from umadvise.reports.reporters import text
from umadvise.reports.reporters.tables import scales_of
from umadvise.training.watch.sampling import Sampler, check_every

MIB = 1 << 20


def reading_of(**values: Any) -> Sampling:
    """A reading before the first step, with other values where given."""
    maps = RemoteMapsByCause(**dict.fromkeys(RemoteMapsByCause.__struct_fields__, 0))
    plain: dict[str, Any] = dict.fromkeys(Sampling.__struct_fields__, 0)
    return Sampling(**{**plain, "remote_maps": maps, "reason": None, **values})


class Device:
    """What a CUDA device says of its samples: every step that it is asked for is sampled."""

    def __init__(self) -> None:
        self.said = reading_of()
        self.last = Counters()

    def set_sampling(self, every: int) -> None:
        self.said = replace(self.said, every=every)

    def sampling(self) -> Sampling:
        return self.said

    def last_sample(self) -> SampledStep:
        return SampledStep(self.last, 77, None)

    def step(self, fault_groups: int = 3) -> None:
        if self.said.every:
            self.last = replace(self.last, fault_groups=fault_groups)
            self.said = replace(self.said, steps=self.said.steps + 1, page_faults=5)


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def sampler(device: Device) -> Sampler:
    return Sampler(device, 4)  # type: ignore[arg-type]


# ---- the sampler -----------------------------------------------------------------------------------------------------


def test_a_sampled_step_gives_its_counters_and_its_end(device: Device, sampler: Sampler) -> None:
    sampler.before_step()
    device.step(fault_groups=9)
    sampled = sampler.after_step()
    assert sampled is not None
    assert sampled.counters.fault_groups == 9
    assert sampled.counters.collapses is None
    assert sampled.end_ns == 77
    assert sampler.works()


def test_a_step_that_was_not_sampled_gives_nothing(sampler: Sampler) -> None:
    sampler.before_step()
    assert sampler.after_step() is None
    assert not sampler.works()


def test_while_torch_profiles_nothing_is_sampled(device: Device, sampler: Sampler) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        sampler.before_step()
        device.step()
    assert sampler.after_step() is None
    assert "torch.profiler was active" in (sampler.reading().reason or "")
    assert sampler.reading().every == 4
    sampler.before_step()
    device.step()
    assert sampler.after_step() is not None
    assert sampler.reading().reason is None


def test_a_profiler_that_begins_within_a_step_takes_it(device: Device, sampler: Sampler) -> None:
    sampler.before_step()
    device.step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert sampler.after_step() is None


def test_a_reading_begins_with_the_sampler(device: Device) -> None:
    maps = RemoteMapsByCause(unknown=1, coherence=2, thrashing=3, policy=4, out_of_memory=5, eviction=6)
    device.said = reading_of(steps=7, page_faults=100, remote_maps=maps, reason="no")
    sampler = Sampler(device, 1)  # type: ignore[arg-type]
    device.said = replace(device.said, steps=9, page_faults=150, remote_maps=replace(maps, eviction=9))
    reading = sampler.reading()
    assert (reading.steps, reading.page_faults, reading.remote_maps.eviction, reading.remote_maps.policy) == (
        2,
        50,
        3,
        0,
    )
    assert reading.reason == "no"
    sampler.close()
    assert device.said.every == 0


@pytest.mark.parametrize("every", [-1, 1.5, True, "10", 2**32])
def test_how_often_is_a_whole_number(every: Any) -> None:
    with pytest.raises(UsageError, match="expected a whole number"):
        check_every(every)
    assert check_every(0) == 0


# ---- the profile -----------------------------------------------------------------------------------------------------


TIME_NS = 10_000_000
"""Of each kind that a sampled step's time went into."""


def sampled_profile(make: Any, failed: bool = False, **sampling: Any) -> FaultProfile:
    """Six steps of 100 ms, of which those with an even index are sampled, at 150 ms and with as many faults each."""
    unknown = with_sample(make.counters(), None)
    builder = ProfileBuilder(make.environment(provider="cuda", counting="raw"), unknown, sampled=True)
    start_ns = 0
    for index in range(1, 7):
        done = with_sample(make.counters(op_count=10 * index), None)
        builder.begin_step(index, start_ns, with_sample(make.counters(op_count=10 * (index - 1)), None))
        sample = None
        if index % 2 == 0 and not failed:
            event = {"step": index, "start_ns": start_ns, "duration_ns": 30_000_000, "role": "parameter", "name": "w"}
            builder.add_events([make.event("fault_group", **event)] * index)
            sample = make.counters(fault_groups=index, fault_service_ns=30_000_000 * index, op_count=None)
            sample = msgspec.structs.replace(sample, collapses=None, first_touches=None, evictions_dropped=None)
        duration_ns = 100_000_000 if sample is None else 150_000_000
        ended_ns = start_ns + duration_ns
        sampled = (
            None if sample is None else SampledStep(sample, ended_ns, SpentTime(*[TIME_NS] * 8, 0, *[TIME_NS] * 3))
        )
        builder.end_step(ended_ns, done, make.memory(), (), sampled)
        start_ns += duration_ns
    reading = reading_of(every=2, **sampling).minus(reading_of())
    return builder.build(with_sample(make.counters(op_count=61), None), 0, (), reading)


def test_counters_are_of_the_sampled_steps_and_ops_of_all(make: Any) -> None:
    profile = sampled_profile(make)
    assert profile.sampling is not None
    assert (profile.step_count, profile.counted_steps) == (6, 3)
    assert (profile.duration_ns, profile.counted_ns) == (750_000_000, 450_000_000)
    assert profile.counters.fault_groups == 2 + 4 + 6
    assert profile.counters.op_count == 60
    assert profile.counters.collapses is None
    assert [step.counters.fault_groups for step in profile.steps] == [None, 2, None, 4, None, 6]
    assert profile.outside is not None
    assert (profile.outside.op_count, profile.outside.fault_groups) == (1, None)
    assert Facts(profile).waits.paging_share == pytest.approx((4 + 6) * 30 / 300)  # of steps 4 and 6, the steady ones
    assert [step.times is None for step in profile.steps] == [True, False] * 3
    assert profile.times is not None
    assert profile.times.sum_ns == 3 * 11 * TIME_NS
    assert decode(encode(profile)) == profile


def test_tables_say_what_no_record_tells(make: Any) -> None:
    profile = sampled_profile(make)
    assert profile.tables is not None
    row = profile.tables.tensor.rows[0]
    assert (row.name, row.fault_groups, row.faulted_steps) == ("w", 12, 3)
    assert (row.collapses, row.first_touches, row.evictions_dropped) == (None, None, None)
    assert profile.pattern is not None
    assert profile.pattern.step == 6


def test_waits_count_for_their_ops_and_none_is_lost_between_two_steps(make: Any) -> None:
    """A GPU may come to what an op waits for when the host is in the next step, or between two."""
    unknown = with_sample(make.counters(), None)
    builder = ProfileBuilder(make.environment(provider="cuda", counting="raw"), unknown, sampled=True)
    label = {"allocation": 7, "role": "gradient", "name": "w"}
    wait = {"allocation": 7, "role": "intermediate", "birth_op": "aten::mm", "op": "aten::add", "phase": "backward"}
    room = {"op": "aten::mm", "phase": "forward", "duration_ns": 5_000, "cause": "for_room"}
    builder.begin_step(1, 0, unknown, make.swaps(wait_copy_ns=100))
    builder.add_events(
        [
            make.event("label", **label),
            make.event("wait_copy", **wait, duration_ns=20_000, cause="on_demand"),
            make.event("wait_room", **room, step=0),  # of an op before the step that the device came to now
        ]
    )
    builder.end_step(1_000_000, unknown, make.memory(), (), None, make.swaps(wait_copy_ns=20_100, wait_room_ns=5_000))
    builder.add_events([make.event("wait_copy", **wait, duration_ns=3_000), make.event("wait_room", **room, step=0)])
    builder.begin_step(2, 1_000_000, unknown, make.swaps(wait_copy_ns=23_100, wait_room_ns=10_000))
    builder.end_step(2_000_000, unknown, make.memory(), (), None, make.swaps(wait_copy_ns=23_100, wait_room_ns=10_000))
    done = make.swaps(wait_copy_ns=23_100, wait_room_ns=10_000)
    profile = builder.build(
        unknown,
        0,
        swaps=done,
        chunks=Chunks(chunk_bytes=2 * MIB, budget_bytes=MIB, used_peak_bytes=0, host_peak_bytes=0),
    )
    assert profile.swaps == make.swaps(wait_copy_ns=23_000, wait_room_ns=5_000)
    assert [step.swaps and step.swaps.wait_copy_ns for step in profile.steps] == [20_000, 3_000]
    tables = profile.tables
    assert tables is not None
    for table in (tables.role, tables.phase, tables.module, tables.tensor, tables.op):
        assert sum(row.wait_copy_ns for row in table.rows) == 23_000
        assert sum(row.wait_room_ns for row in table.rows) == 5_000
    waited = {
        (row.op, row.phase): (row.wait_copy_ns, row.on_demand_wait_ns, row.wait_room_ns) for row in tables.op.rows
    }
    assert waited == {("aten::add", "backward"): (23_000, 20_000, 0), ("aten::mm", "forward"): (0, 0, 5_000)}
    assert ("gradient", "w") in {(row.role, row.name) for row in tables.tensor.rows}  # what it was called last


def test_ops_ran_so_long_in_the_steps_that_were_sampled(make: Any) -> None:
    unknown = with_sample(make.counters(), None)
    builder = ProfileBuilder(make.environment(provider="cuda", counting="raw"), unknown, sampled=True)
    ran = make.peak("op", None, op="aten::mm", phase="forward", compute_ns=400)
    builder.begin_step(1, 0, unknown)
    builder.end_step(1_000, unknown, make.memory(), [ran], SampledStep(unknown, 1_000, make.times(compute_ns=400)))
    builder.begin_step(2, 1_000, unknown)
    builder.end_step(1_500, unknown, make.memory())
    profile = builder.build(unknown, 0, sampling=reading_of(every=2, steps=1).minus(reading_of()))
    assert profile.tables is not None
    (row,) = profile.tables.op.rows
    assert (row.op, row.compute_ns, row.resident_peak_bytes) == ("aten::mm", 400, None)
    scales = scales_of(profile)
    assert (scales["ops"].steps, scales["ops"].duration_ns) == (1, 1_000)


def test_the_report_speaks_of_one_sampled_step(make: Any) -> None:
    report = text.render(sampled_profile(make))
    assert "Counted in 3 of 6 steps (the first three, then one in 2), which took 150.00 ms each" in report
    assert "step time      125.00 ms" in report
    assert "fault groups   4" in report
    assert "fault service  120.00 ms" in report
    assert "collapses      -" in report
    parameters = next(line for line in report.splitlines() if line.startswith("parameter "))
    assert parameters.split()[2:3] == ["4"]
    assert "steps    " in report
    unexplained = next(line for line in report.splitlines() if line.startswith("unexplained"))
    assert unexplained.split()[-1] == "26.7%"
    assert "40.0% of step 2 to 120.0% of 6" in report


def test_the_report_says_why_not(make: Any) -> None:
    why = "another profiler is active in this process (39)"
    report = text.render(sampled_profile(make, failed=True, failed_steps=3, reason=why))
    assert f"Faults could not be counted: {why}" in report
    assert "fault groups   -" in report
    report = text.render(sampled_profile(make, failed_steps=1, reason=why))
    assert f"1 more should have been counted and were not: {why}" in report
    off = sampled_profile(make, failed=True)
    assert off.sampling is not None
    off = msgspec.structs.replace(off, sampling=msgspec.structs.replace(off.sampling, every=0))
    assert "Faults were not counted: sample_every=0." in text.render(off)


def test_all_findings_bear_what_is_unknown(make: Any) -> None:
    profile = sampled_profile(make)
    assert {finding.id for finding in profile.findings} >= {"fits-without-unified"}
    assert not {finding.id for finding in profile.findings} & {"read-mostly-collapses", "first-touches-dominate"}


def test_a_reason_with_control_characters_is_no_profile(make: Any) -> None:
    document = encode(sampled_profile(make, reason="plain"))
    with pytest.raises(FormatError):
        decode(document.replace(b"plain", b"pl\\u001bain"))


def test_a_sample_never_hides_what_the_core_counts(make: Any) -> None:
    both = with_sample(make.counters(op_count=3, oversized_ops=1), Counters(fault_groups=2, op_count=99))
    assert (both.fault_groups, both.op_count, both.oversized_ops) == (2, 3, 1)


@pytest.fixture(autouse=True)
def _no_profiler_is_left() -> Iterator[None]:
    yield
    assert not torch._C._autograd._profiler_enabled()
