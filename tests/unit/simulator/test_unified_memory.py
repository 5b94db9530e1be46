"""The page-accurate model from Python: published counters, a slow reference of one block, and what is refused."""

import os
import subprocess
import sys
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umadvise.errors import InvalidAdviceError, InvalidSizeError, PolicyError, StateError, UmadviseError, UsageError
from umadvise.simulator import Block, PageRecord, UnifiedMemory

MIB = 1 << 20
BLOCK = 2 * MIB
PAGE = 4096


@pytest.fixture
def um() -> UnifiedMemory:
    return UnifiedMemory("v100-pcie-16gb", memory_bytes="1GiB")


def sizes_kib(um: UnifiedMemory, direction: str = "h2d") -> list[int]:
    return [record.bytes // 1024 for record in um.records() if record.direction == direction]


# ---- published counters --------------------------------------------------------------------------------------------


def test_serial_sweep_of_384_mib_gives_the_published_records() -> None:
    um = UnifiedMemory("v100-pcie-16gb")
    block = um.allocate("384MiB")
    um.touch(block, 0, block.bytes, processor="cpu", write=True)
    um.touch(block, 0, block.bytes, processor="gpu")
    records = sizes_kib(um)
    assert (len(records), sum(records), min(records), max(records)) == (2304, 393_216, 4, 1020)
    assert records[:12] == [4, 60, 4, 60, 4, 124, 4, 252, 4, 508, 4, 1020]


@pytest.mark.parametrize("window_pages", [None, 1, 8, 16])
def test_first_touch_of_128_mib_in_narrow_windows_gives_384_groups(window_pages: int | None) -> None:
    um = UnifiedMemory("gtx-1080-ti")
    block = um.allocate(128 * MIB)
    um.touch(block, 0, block.bytes, write=True, window_pages=window_pages)
    assert um.counters().fault_groups == 384
    assert sum(record.kind == "fault_group" for record in um.records()) == 384
    assert sum(record.bytes for record in um.records()) == 0


def test_host_faults_of_a_vector_addition() -> None:
    # NVIDIA's "Unified Memory for CUDA Beginners": two vectors of 4 MB written by the host, one of them read back:
    # 36 CPU page faults; 24 records of 170.67 KB on average to the host, 4.0 KB to 0.9961 MB, 4 MB in all.
    um = UnifiedMemory("p100-pcie-16gb")
    x, y = um.allocate(4 * MIB), um.allocate(4 * MIB)
    for vector in (x, y):
        um.touch(vector, 0, vector.bytes, processor="cpu", write=True)
    um.touch(x, 0, x.bytes, order="parallel")
    um.touch(y, 0, y.bytes, write=True, order="parallel")
    um.touch(y, 0, y.bytes, processor="cpu")
    assert um.counters().host_fault_groups == 36
    back = sizes_kib(um, "d2h")
    assert (len(back), sum(back), min(back), max(back)) == (24, 4096, 4, 1020)


def test_cyclic_sweeps_of_more_than_the_memory_miss_every_block(um: UnifiedMemory) -> None:
    block = um.allocate(um.memory_bytes // 4 * 5)
    um.touch(block, 0, block.bytes, processor="cpu", write=True)
    um.touch(block, 0, block.bytes, stride=PAGE)
    before = um.counters()
    um.touch(block, 0, block.bytes, stride=PAGE)
    after = um.counters()
    assert after.bytes_h2d.total - before.bytes_h2d.total == block.bytes
    assert after.bytes_d2h.total - before.bytes_d2h.total == block.bytes
    assert {record.bytes for record in um.records() if record.cause == "eviction"} == {BLOCK}


def test_the_hosts_memory_advised_is_read_over_the_link(um: UnifiedMemory) -> None:
    block = um.allocate("2GiB")
    um.touch(block, 0, block.bytes, processor="cpu", write=True)
    um.advise(block, "preferred_location", "cpu")
    um.advise(block, "accessed_by", "gpu")
    start_ns = um.time_ns
    um.touch(block, 0, block.bytes)
    counters = um.counters()
    assert (counters.fault_groups, counters.bytes_h2d.total, counters.bytes_d2h.total) == (0, 0, 0)
    assert counters.remote_bytes == block.bytes
    # LutzCle/unified-memory-debugging, README: a V100 on PCIe3.
    assert 10.7 <= block.bytes / 2**30 / ((um.time_ns - start_ns) * 1e-9) <= 11.5


@pytest.mark.parametrize(("order", "window", "services", "transfers"), [
    ("serial", 1, 6, 12), ("backward", 1, 6, 12), ("reverse", 1, 6, 12),
    ("serial", 16, 6, 10), ("serial", 32, 5, 8), ("serial", 64, 4, 6), ("serial", 128, 3, 4), ("serial", 256, 2, 2),
])  # fmt: skip
def test_services_and_transfers_of_windows(
    um: UnifiedMemory, order: Any, window: int, services: int, transfers: int
) -> None:
    block = um.allocate(10 * BLOCK)
    um.prefetch(block, "cpu")
    um.touch(block, 0, block.bytes, order=order, window_pages=window)
    assert um.counters().fault_groups == 10 * services
    assert len(sizes_kib(um)) == 10 * transfers


# ---- a slow reference for one block without advice -----------------------------------------------------------------

Side = Literal["gpu", "cpu"]


class OneBlock:
    """The rules of one block in sets and lists, written from the facts about the driver and from nothing in csrc."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.on: dict[Side, set[int]] = {"gpu": set(), "cpu": set()}
        self.transfers: list[tuple[str, str, int, int]] = []
        self.services: dict[Side, int] = {"gpu": 0, "cpu": 0}

    def touch(self, side: Side, first: int, count: int, window: int) -> None:
        if side == "cpu":
            window = 1
        page = first
        while page < first + count:
            if page in self.on[side]:
                page += 1
                continue
            seen = range(page, min(page + window, first + count))
            missing = [each for each in seen if each not in self.on[side]]
            self.service(side, missing[:256])

    def service(self, side: Side, faults: list[int]) -> None:
        self.services[side] += 1
        other: Side = "cpu" if side == "gpu" else "gpu"
        counted = self.on[side] | set(faults)
        for fault in faults:
            big = fault - fault % 16
            counted |= set(range(big, min(big + 16, self.pages)))
        brought: set[int] = set()
        for fault in faults:
            region = self.region(counted, fault)
            brought |= set(region)
            if region[-1] == self.pages - 1:
                break
        brought -= set(faults) | self.on[side]
        moving = set(faults) | brought
        direction = "h2d" if side == "gpu" else "d2h"
        run: list[int] = []
        last_cause = ""
        for page in [*sorted(moving & self.on[other]), -1]:
            cause = "speculative" if page in brought else "coherence"
            if run and (page != run[-1] + 1 or cause != last_cause):
                self.transfers.append((direction, last_cause, run[0] * PAGE, len(run) * PAGE))
                run = []
            run.append(page)
            last_cause = cause
        self.on[side] |= moving
        self.on[other] -= moving

    def region(self, counted: set[int], page: int) -> range:
        best = range(page, page + 1)
        size = 1
        while size < self.pages:
            size *= 2
            first = page // size * size
            region = range(first, min(first + size, self.pages))
            if sum(each in counted for each in region) * 100 > len(region) * 51:
                best = region
        return best


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_touches_of_one_block_agree_with_the_reference(data: st.DataObject) -> None:
    pages = data.draw(st.integers(1, 512))
    um, reference = UnifiedMemory("v100-pcie-16gb"), OneBlock(pages)
    block = um.allocate(pages * PAGE)
    for _ in range(data.draw(st.integers(1, 12))):
        side: Side = data.draw(st.sampled_from(["gpu", "cpu"]))
        first = data.draw(st.integers(0, pages - 1))
        count = data.draw(st.integers(1, pages - first))
        window = data.draw(st.sampled_from([1, 2, 7, 16, 33, 100, 300, 512]))
        # Slow enough that nothing thrashes: every transfer below is the prefetcher's or the fault's own.
        other = um.allocate(64 * BLOCK)
        um.touch(other, 0, other.bytes, processor="cpu")
        um.touch(block, first * PAGE, count * PAGE, processor=side, window_pages=window)
        reference.touch(side, first, count, window)
    mine = [record for record in um.records() if record.address < block.address + BLOCK]
    assert [
        (record.direction, record.cause, record.address - block.address, record.bytes)
        for record in mine
        if record.kind == "transfer"
    ] == reference.transfers
    assert sum(record.kind == "fault_group" for record in mine) == reference.services["gpu"]
    assert um.counters().thrashing_pages == 0


# ---- advice --------------------------------------------------------------------------------------------------------


def test_read_mostly_copies_and_unset_takes_it_back(um: UnifiedMemory) -> None:
    block = um.allocate(BLOCK)
    um.touch(block, 0, BLOCK, processor="cpu", write=True)
    um.advise(block, "readmostly")  # the paper's word
    um.touch(block, 0, BLOCK)
    faults = um.counters().host_fault_groups
    um.touch(block, 0, BLOCK, processor="cpu")
    assert um.counters().host_fault_groups == faults
    um.advise(block, "unset_read_mostly")
    um.touch(block, 0, BLOCK)
    assert um.counters().bytes_h2d.total == 2 * BLOCK


def test_none_takes_all_advice_back(um: UnifiedMemory) -> None:
    block = um.allocate(BLOCK)
    um.touch(block, 0, BLOCK, processor="cpu", write=True)
    um.advise(block, "preferred_location", "cpu")
    um.advise(block, "none")
    um.touch(block, 0, BLOCK)
    assert um.counters().bytes_h2d.total == BLOCK


def test_prefetched_and_discarded_memory(um: UnifiedMemory) -> None:
    block = um.allocate(3 * BLOCK)
    um.touch(block, 0, block.bytes, processor="cpu", write=True)
    um.prefetch(block)
    assert [(r.bytes, r.cause) for r in um.records() if r.direction == "h2d"] == [(BLOCK, "user")] * 3
    um.touch(block, 0, block.bytes, write=True)
    assert um.counters().fault_groups == 0
    um.discard(block)
    um.touch(block, 0, block.bytes, processor="cpu")
    assert um.counters().bytes_d2h.total == 0


def test_coherent_machines_count_accesses_and_have_large_pages() -> None:
    um = UnifiedMemory("gh200-96gb", memory_bytes="64MiB")
    block = um.allocate(BLOCK)
    um.touch(block, 0, BLOCK, processor="cpu", write=True)
    um.advise(block, "accessed_by", "gpu")
    um.touch(block, 0, BLOCK)
    assert um.counters().bytes_h2d.access_counter > 0


def test_random_touches_are_the_same_in_every_run() -> None:
    def run() -> list[PageRecord]:
        um = UnifiedMemory("v100-pcie-16gb", memory_bytes="8MiB")
        block = um.allocate(8 * BLOCK)
        um.touch(block, 0, block.bytes, order="random", write=True)
        um.touch(block, 0, block.bytes, order="parallel")
        return um.records()

    assert run() == run()


# ---- records and memory --------------------------------------------------------------------------------------------


def test_blocks_start_on_2_mib_and_records_lie_in_them(um: UnifiedMemory) -> None:
    blocks = [um.allocate(size) for size in (1, 5000, BLOCK, BLOCK + 1)]
    for block in blocks:
        assert block.address % BLOCK == 0
        um.touch(block, 0, block.bytes, processor="cpu")
        um.touch(block, 0, block.bytes)
    assert [b.address - blocks[0].address for b in blocks] == [0, BLOCK, 2 * BLOCK, 3 * BLOCK]
    records = um.records()
    assert sum(r.bytes for r in records) == PAGE + 2 * PAGE + BLOCK + BLOCK + PAGE == um.counters().bytes_h2d.total
    assert all(r.start_ns < r.end_ns <= um.time_ns for r in records)
    assert all((r.direction is None) == (r.kind == "fault_group") == (r.cause is None) for r in records)
    assert um.records() == records


def test_freed_memory_makes_room(um: UnifiedMemory) -> None:
    for _ in range(5):
        block = um.allocate(um.memory_bytes)
        um.touch(block, 0, block.bytes, write=True)
        um.free(block)
    assert um.counters().evictions == 0


# ---- what is refused -----------------------------------------------------------------------------------------------


def test_a_device_without_page_faults_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"K40.*page faults"):
        UnifiedMemory("k40")


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(UmadviseError, match="v100"):
        UnifiedMemory("v1000")
    with pytest.raises(UsageError, match="target"):
        UnifiedMemory(16)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "many", None, 1 << 62])
def test_impossible_sizes_are_refused(um: UnifiedMemory, size: Any) -> None:
    with pytest.raises(InvalidSizeError):
        um.allocate(size)
    if size != 0:
        block = um.allocate(BLOCK)
        with pytest.raises(InvalidSizeError):
            um.touch(block, 0, size)


def test_integers_of_numpy_are_numbers_too() -> None:
    um = UnifiedMemory("v100-pcie-16gb", memory_bytes=np.int64(1 << 30))
    block = um.allocate(np.uint32(BLOCK))
    um.touch(block, np.int64(0), np.int64(BLOCK), "cpu", write=True)
    um.touch(block, 0, BLOCK, window_pages=np.int32(256), stride=np.int64(PAGE))
    assert um.counters().fault_groups == 2


@pytest.mark.parametrize("memory", [0, 1 << 20, 1 << 60, "much"])
def test_impossible_memories_are_refused(memory: Any) -> None:
    with pytest.raises(InvalidSizeError):
        UnifiedMemory("v100-pcie-16gb", memory_bytes=memory)


def test_ranges_outside_the_block_are_refused(um: UnifiedMemory) -> None:
    block = um.allocate(5000)
    um.touch(block, 4999, 1)
    um.touch(block, 5000, 0)
    for offset, size in ((0, 5001), (5000, 1), (-1, 1)):
        with pytest.raises(InvalidSizeError):
            um.touch(block, offset, size)


@pytest.mark.parametrize(
    "wrong",
    [
        {"processor": "tpu"},
        {"processor": None},
        {"order": "upwards"},
        {"window_pages": 0},
        {"window_pages": 1.0},
        {"window_pages": "16"},
        {"run_pages": True},
        {"faults_per_service": 1 << 40},
        {"stride": 0},
    ],
)
def test_impossible_touches_are_refused(um: UnifiedMemory, wrong: dict[str, Any]) -> None:
    block = um.allocate(BLOCK)
    with pytest.raises(UsageError):
        um.touch(block, 0, BLOCK, **wrong)
    assert um.counters().faults == 0


@pytest.mark.parametrize("word", ["readmostly!", "unset_", "unset_none", "unset_prefetch", "", None, 3])
def test_unknown_advice_is_refused(um: UnifiedMemory, word: Any) -> None:
    with pytest.raises(InvalidAdviceError, match="accessed_by"):
        um.advise(um.allocate(1), word)


def test_freed_and_foreign_blocks_are_refused(um: UnifiedMemory) -> None:
    block = um.allocate(BLOCK)
    um.free(block)
    for use in (um.free, um.prefetch, um.discard, lambda b: um.touch(b, 0, 1), lambda b: um.advise(b, "none")):
        with pytest.raises(StateError, match="freed"):
            use(block)
    mine, other = um.allocate(BLOCK), UnifiedMemory("l4")
    other.free(other.allocate(1))
    theirs = other.allocate(BLOCK)
    assert theirs.id == mine.id
    with pytest.raises(UsageError, match="another UnifiedMemory"):
        um.touch(theirs, 0, 1)
    for stranger in (mine.id, mine.address, None, "block"):
        with pytest.raises(UsageError, match="allocate"):
            um.prefetch(stranger)  # type: ignore[arg-type]
    assert isinstance(mine, Block)


def test_importing_umadvise_loads_no_simulator() -> None:
    code = "import sys, umadvise; assert not any(m.startswith('umadvise.simulator') for m in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ))


def test_a_device_with_large_pages_has_the_same_kernels() -> None:
    """Windows and runs of a device's file are in pages of 4 KiB: the same bytes where a page of the host is 64 KiB."""

    def groups(**touch: Any) -> tuple[int, int]:
        um = UnifiedMemory("v100-sxm2-power9-16gb", memory_bytes="1GiB")
        assert um.device.system_page_bytes == 16 * PAGE
        block = um.allocate("64MiB")
        um.touch(block, 0, block.bytes, processor="cpu", write=True)
        um.touch(block, 0, block.bytes, order="parallel", **touch)
        return um.counters().fault_groups, len(um.records())

    costs = UnifiedMemory("v100-sxm2-power9-16gb").device.unified_memory.costs
    in_large_pages = {
        "window_pages": max(1, costs.window_pages.value // 16),
        "run_pages": max(1, costs.run_pages.value // 16),
    }
    assert groups() == groups(**in_large_pages)
    wrong = {"window_pages": costs.window_pages.value, "run_pages": costs.run_pages.value}
    assert groups() != groups(**wrong)
