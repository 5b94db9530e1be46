import io
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from bert_row import Row
from demo_table import (
    DemoCard,
    DemoResult,
    DemoRun,
    conclusion,
    draw,
    factor,
    losses_differ,
    notes,
    table,
    unlimited_ns,
)
from msgspec import structs
from rich.console import Console

from umadvise.records.counters import BytesByCause
from umadvise.records.fault_profile import RungChange

PLAIN = DemoRun("plain", ("--no-unified",), 2, limited=False)
RUNS_OUT = DemoRun("a third", ("--no-unified",), 1, runs_out=True)
NAIVE = DemoRun("without advice", (), 2, naive=True)
SWAP = DemoRun("swap", ("--policy=swap",), 3)
LOG = Path("output/demo/run.log")
CARD = DemoCard("a-100", "Card 100")
MS = 1_000_000


def moved(user: int, eviction: int) -> BytesByCause:
    return BytesByCause(user=user, coherence=0, speculative=0, eviction=eviction, access_counter=0)


def finished(run: DemoRun, *losses: float, report: str | None = None) -> DemoResult:
    row = Row(
        options={},
        losses_hex=[loss.hex() for loss in losses],
        step_ns=[2_500_000_000, *(1_250_000_000 for _ in losses[1:])],
        error=None,
        peak_bytes=6 << 30,
        counters=None,
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


def timed(make: Any, result: DemoResult, *steps_ms: int, computes_ms: int = 50) -> DemoResult:
    """Steps of so many milliseconds, whose rest is waiting; the last one moved 3 GiB in and 2 GiB out."""
    counters = make.counters(fault_groups=5313, bytes_h2d=moved(2 << 30, 0), bytes_d2h=moved(0, 1 << 30))
    swaps = make.swaps(swap_in_bytes=1 << 30, swap_out_bytes=1 << 30)
    steps = tuple(
        structs.replace(
            step,
            duration_ns=step_ms * MS,
            times=make.times(compute_ns=computes_ms * MS, migration_ns=(step_ms - computes_ms) * MS),
            swaps=swaps,
        )
        for step_ms, step in zip(steps_ms, make.steps(*(counters for _ in steps_ms)), strict=True)
    )
    return DemoResult(result.run, result.row, result.log, make.profile(steps=steps, step_count=len(steps)))


def text(results: list[DemoResult], card: DemoCard | None = CARD) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(table("BERT", results, card))
    return console.file.getvalue()  # type: ignore[attr-defined]


def demo(make: Any, naive_ms: int = 1000, swap_ms: int = 200) -> list[DemoResult]:
    return [
        finished(PLAIN, 10.5, 9.25),
        ran_out(RUNS_OUT),
        timed(make, finished(NAIVE, 10.5, 9.25, report="output/a.json"), 2 * naive_ms, naive_ms),
        timed(make, finished(SWAP, 10.5, 9.25, 8.0), 500, 400, swap_ms),
    ]


def test_the_whole_table(make: Any) -> None:
    results = demo(make)
    assert [line.rstrip() for line in text(results).splitlines()] == EXPECTED
    assert list(notes(results)) == [
        "a third: needs 6 GiB, has 2 GiB",
        "without advice: umadvise report output/a.json",
        "All losses are equal to the last bit.",
    ]
    assert not losses_differ(results)


def test_the_sentence_is_made_of_the_figures(make: Any) -> None:
    said = conclusion(demo(make), 50 * MS)
    assert said == (
        "In 2.00 GiB of the 6.00 GiB that it needs, plain PyTorch runs out of memory, and swap trains on with the same "
        "losses to the last bit: a step takes 4.0 times as long as in all the memory, 5.0 times as fast as without "
        "advice (20.0 times as long)."
    )
    slow = conclusion(demo(make, naive_ms=150), 50 * MS)
    assert slow is not None and "no faster than without advice (3.0 times as long)" in slow
    other = demo(make)
    other[3] = timed(make, finished(SWAP, 10.5, 9.5), 500, 200)
    wrong = conclusion(other, 50 * MS)
    assert wrong is not None and "with other losses" in wrong
    fitted = demo(make)
    fitted[1] = finished(RUNS_OUT, 10.5)
    assert conclusion(fitted, 50 * MS) is None


def test_the_factor_is_that_of_the_fastest_step_here_to_what_the_ops_take_on_the_card(make: Any) -> None:
    results = demo(make)
    assert unlimited_ns(results, CARD) == 50 * MS
    said = factor(results, CARD)
    assert said is not None
    assert "takes 50.00 ms by these rates and 1.25 s here: this machine computes it 25 times slower" in said
    assert "`umadvise devices a-100`" in said and "Card 100" in said


def test_on_a_gpu_plain_pytorch_is_measured(make: Any) -> None:
    assert unlimited_ns(demo(make), None) == 1_250_000_000
    (plain,) = (line for line in text(demo(make), None).splitlines() if line.split()[:1] == ["plain"])
    assert plain.split()[3:7] == ["-", "1.25", "s", "1.00"]


def test_the_picture_has_a_line_for_each_run_that_trained_in_a_third(make: Any) -> None:
    drawing = ElementTree.fromstring(draw("Steps", demo(make), 50 * MS))
    words = ["".join(each.itertext()) for each in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert {"without advice", "swap", "plain PyTorch", "Steps"} <= set(words)
    assert drawing.findtext("{http://www.w3.org/2000/svg}desc") == conclusion(demo(make), 50 * MS)
    heights = [float(mark.attrib["cy"]) for mark in drawing.iter("{http://www.w3.org/2000/svg}circle")]
    assert len(heights) == 2 + 3
    # 40, 20, and 10, 8, 4 times plain PyTorch's step: equal steps downwards, from the axis' zero.
    zero = heights[1] + (heights[1] - heights[0])
    assert [round((zero - height) / (heights[1] - heights[0]) * 20) for height in heights] == [40, 20, 10, 8, 4]


def test_a_choice_has_its_reason() -> None:
    rungs = (
        RungChange(step=1, rung="advise", reason="it may fit"),
        RungChange(step=3, rung="swap", reason="stalls took 9.0% of the step"),
    )
    row = finished(SWAP, 10.5).row
    assert row is not None
    chosen = DemoResult(DemoRun("auto", ("--policy=auto",), 6), structs.replace(row, rungs=rungs), LOG)
    fixed = DemoResult(SWAP, structs.replace(row, rungs=rungs[:1]), LOG)
    assert list(notes([fixed, chosen])) == [
        "auto ended on swap, from step 3 on: stalls took 9.0% of the step",
        "All losses are equal to the last bit.",
    ]


def test_one_bit_of_difference_shows() -> None:
    results = [finished(PLAIN, 10.5), finished(NAIVE, 10.500000000000002, 9.0)]
    assert losses_differ(results)
    assert "NO" in text(results)
    assert list(notes(results)) == ["Losses differ: they should be equal to the last bit."]


def test_runs_that_end_otherwise_than_meant_are_named() -> None:
    died = DemoResult(NAIVE, None, LOG)
    fitted = finished(RUNS_OUT, 10.5)
    assert "failed" in text([died])
    assert list(notes([died])) == ["without advice did not end as it should: see output/demo/run.log"]
    assert list(notes([fitted])) == ["a third did not end as it should: see output/demo/run.log"]
    assert ran_out(RUNS_OUT).as_meant
    assert not ran_out(NAIVE).as_meant


def test_file_names_hold_no_separators() -> None:
    assert DemoRun("vanilla PyTorch", (), 1).file_stem == "vanilla-pytorch"
    assert DemoRun("out of memory: ../a third", (), 1).file_stem == "out-of-memory-a-third"


EXPECTED = """\
                                                      BERT

  run             steps  last loss  equal?       step  x plain  waiting  faults  to device   to host      peak
 ──────────────────────────────────────────────────────────────────────────────────────────────────────────────
  plain               2     9.2500       -   50.00 ms     1.00        -       -          -         -  6.00 GiB
  a third             -    refused       -          -        -        -       -          -         -  2.00 GiB
  without advice      2     9.2500     yes     1.00 s    20.00    95.0%   5,313   3.00 GiB  2.00 GiB  6.00 GiB
  swap                3     8.0000     yes  200.00 ms     4.00    75.0%   5,313   3.00 GiB  2.00 GiB  6.00 GiB

""".splitlines()
