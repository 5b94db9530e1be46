"""What runs on a card: exact text, and the drawing."""

import xml.etree.ElementTree

from umadvise.records.fit_report import BatchFit, FitReport, LargestFit, RungFit
from umadvise.reports.reporters import fit as reporter

GIB = 1 << 30
MS = 10**6


def batch_of(batch: int, peak_gib: int, unlimited_ms: int, swap_ms: int | None, resident: str | None) -> BatchFit:
    def on(rung: str, step_ms: int | None, problem: str | None) -> RungFit:
        if problem is not None or step_ms is None:
            return RungFit(rung=rung, problem=problem or "no room for op 7")
        step_ns = step_ms * MS
        return RungFit(
            rung=rung,
            step_ns=step_ns,
            times_unlimited=step_ms / unlimited_ms,
            samples_per_s=batch * 1e9 / step_ns,
        )

    rungs = (on("resident", unlimited_ms, resident), on("swap", swap_ms, None))
    return BatchFit(batch=batch, peak_bytes=peak_gib * GIB, unlimited_ns=unlimited_ms * MS, rungs=rungs)


REPORT = FitReport(
    workload="net",
    device="rtx-4090",
    emulated=False,
    budget_bytes=20 * GIB,
    umadvise_version="0.1.0",
    largest=(
        LargestFit(rung="resident", batch=8, more=False),
        LargestFit(rung="swap", batch=24, more=False),
    ),
    batches=(
        batch_of(8, 16, 10, 10, None),
        batch_of(16, 32, 20, 25, "does not fit"),
        batch_of(24, 48, 30, 400, "does not fit either"),
        batch_of(32, 64, 40, None, "does not fit at all"),
    ),
)

EXPECTED = """\
net in 20.00 GiB of rtx-4090, predicted
Largest batch: 8 on resident, 24 on swap
Fastest: 800 samples a second, batch 8 on resident
x: by how many times a step is as long as with everything on the device, however much that is.

A step
batch    tensors        resident              swap
8      16.00 GiB  10.00 ms x1.00    10.00 ms x1.00
16     32.00 GiB               x    25.00 ms x1.25
24     48.00 GiB               x  400.00 ms x13.33
32     64.00 GiB               x                 x

Samples a second
batch  resident  swap
8           800   800
16            x   640
24            x    60
32            x     x

Batch 16 on resident: does not fit
Batch 32 on swap: no room for op 7
"""


def test_the_text() -> None:
    assert reporter.render(REPORT) == EXPECTED


def test_what_was_not_looked_at_may_run_too() -> None:
    rungs = (LargestFit(rung="resident", batch=None, more=False), LargestFit(rung="swap", batch=8, more=True))
    only = FitReport(
        workload="",
        device="rtx-4090",
        emulated=True,
        budget_bytes=GIB,
        umadvise_version="0.1.0",
        largest=rungs,
        batches=(batch_of(8, 16, 10, 10, "does not fit"),),
    )
    lines = reporter.render(only).splitlines()
    assert lines[0] == "the step in 1.00 GiB of the emulated device in the times of rtx-4090, predicted"
    assert lines[1] == "Largest batch: none on resident, 8 or more on swap"


def test_the_drawing_has_a_line_for_each_rung_that_runs() -> None:
    drawn = xml.etree.ElementTree.fromstring(reporter.draw(REPORT))
    words = [each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert words.count("resident") == words.count("swap") == 2
    assert words.count("memory") == 1
    marks = list(drawn.iter("{http://www.w3.org/2000/svg}circle"))
    assert len(marks) == 2 * (1 + 3) + 4
