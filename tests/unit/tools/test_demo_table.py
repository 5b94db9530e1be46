import io
from pathlib import Path

from bert_row import Row, Swaps
from demo_table import DemoResult, DemoRun, losses_differ, notes, table
from msgspec import structs
from rich.console import Console

from umadvise.records.counters import BytesByCause, Counters
from umadvise.records.fault_profile import RungChange

VANILLA = DemoRun("vanilla", ("--no-unified",), limited=False)
RUNS_OUT = DemoRun("a third", ("--no-unified",), runs_out=True)
UNIFIED = DemoRun("unified", ())
LOG = Path("output/demo/run.log")


def moved(user: int, eviction: int) -> BytesByCause:
    return BytesByCause(user=user, coherence=0, speculative=0, eviction=eviction, access_counter=0)


def finished(run: DemoRun, *losses: float, counters: Counters | None = None, report: str | None = None) -> DemoResult:
    row = Row(
        options={},
        losses_hex=[loss.hex() for loss in losses],
        step_ns=[1_250_000_000 for _ in losses],
        error=None,
        peak_bytes=6 << 30,
        counters=counters,
        report=report,
    )
    return DemoResult(run, row, LOG)


def ran_out(run: DemoRun) -> DemoResult:
    row = Row(
        options={},
        losses_hex=[],
        step_ns=[],
        error="needs 6 GiB, has 2 GiB",
        peak_bytes=2 << 30,
        counters=None,
        report=None,
    )
    return DemoResult(run, row, LOG)


COUNTERS = Counters(fault_groups=5313, bytes_h2d=moved(3 << 30, 0), bytes_d2h=moved(0, 1 << 30), evictions=512)


def text(results: list[DemoResult]) -> str:
    console = Console(file=io.StringIO(), width=140)
    console.print(table("BERT", results))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_whole_table() -> None:
    results = [
        finished(VANILLA, 10.5, 9.25),
        ran_out(RUNS_OUT),
        finished(UNIFIED, 10.5, 9.25, counters=COUNTERS, report="output/a.json"),
    ]
    assert [line.rstrip() for line in text(results).splitlines()] == EXPECTED
    assert list(notes(results)) == [
        "a third: needs 6 GiB, has 2 GiB",
        "unified: umadvise report output/a.json",
        "All losses are equal to the last bit.",
    ]
    assert not losses_differ(results)


def test_swaps_count_with_what_is_paged_and_a_choice_has_its_reason() -> None:
    swaps = Swaps(bytes_h2d=1 << 30, bytes_d2h=2 << 30, evictions=8)
    rungs = (
        RungChange(step=1, rung="advise", reason="it may fit"),
        RungChange(step=3, rung="swap", reason="stalls took 9.0% of the step"),
    )
    row = finished(UNIFIED, 10.5, counters=COUNTERS).row
    assert row is not None
    chosen = DemoResult(DemoRun("auto", ("--policy=auto",)), structs.replace(row, swaps=swaps, rungs=rungs), LOG)
    fixed = DemoResult(DemoRun("swap", ("--policy=swap",)), structs.replace(row, swaps=swaps, rungs=rungs[:1]), LOG)
    assert "5,313 │  4.00 GiB │ 3.00 GiB │       520" in text([chosen])
    assert list(notes([fixed, chosen])) == [
        "auto ended on swap, from step 3 on: stalls took 9.0% of the step",
        "All losses are equal to the last bit.",
    ]


def test_one_bit_of_difference_shows() -> None:
    results = [finished(VANILLA, 10.5), finished(UNIFIED, 10.500000000000002)]
    assert losses_differ(results)
    assert "10.5000 │     NO │" in text(results)
    assert list(notes(results)) == ["Losses differ: they should be equal to the last bit."]


def test_runs_that_end_otherwise_than_meant_are_named() -> None:
    died = DemoResult(UNIFIED, None, LOG)
    fitted = finished(RUNS_OUT, 10.5)
    assert "│ unified │ failed │" in text([died])
    assert list(notes([died])) == ["unified did not end as it should: see output/demo/run.log"]
    assert list(notes([fitted])) == ["a third did not end as it should: see output/demo/run.log"]
    assert ran_out(RUNS_OUT).as_meant
    assert not ran_out(UNIFIED).as_meant


def test_file_names_hold_no_separators() -> None:
    assert DemoRun("vanilla PyTorch", ()).file_stem == "vanilla-pytorch"
    assert DemoRun("out of memory: ../a third", ()).file_stem == "out-of-memory-a-third"


EXPECTED = """\
                                                         BERT
┏━━━━━━━━━┳━━━━━━━━━━━━━━━━┳━━━━━━━━┳━━━━━━━━━━━━━━━━┳━━━━━━━━┳━━━━━━━━━━━┳━━━━━━━━━━┳━━━━━━━━━━━┳━━━━━━━━━━┳━━━━━━━━┓
┃ run     ┃         losses ┃ equal? ┃ step times (s) ┃ faults ┃ to device ┃  to host ┃ evictions ┃     peak ┃ report ┃
┡━━━━━━━━━╇━━━━━━━━━━━━━━━━╇━━━━━━━━╇━━━━━━━━━━━━━━━━╇━━━━━━━━╇━━━━━━━━━━━╇━━━━━━━━━━╇━━━━━━━━━━━╇━━━━━━━━━━╇━━━━━━━━┩
│ vanilla │ 10.5000 9.2500 │      - │        1.2 1.2 │      - │         - │        - │         - │ 6.00 GiB │ -      │
│ a third │  out of memory │      - │              - │      - │         - │        - │         - │ 2.00 GiB │ -      │
│ unified │ 10.5000 9.2500 │    yes │        1.2 1.2 │  5,313 │  3.00 GiB │ 1.00 GiB │       512 │ 6.00 GiB │ a.json │
└─────────┴────────────────┴────────┴────────────────┴────────┴───────────┴──────────┴───────────┴──────────┴────────┘
""".splitlines()
