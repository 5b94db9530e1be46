"""`make demo`: trains BERT-Large in several kinds of memory, each run in its own process, and compares the runs.

Progress goes to stderr, the table to stdout. Exit codes: 0 every run ended as it should and all losses are equal to the
last bit, 1 a run did not end as it should, 3 losses differ.
"""

import sys
from pathlib import Path

from harness import available_bytes  # isort: split

import bert_row
from demo_table import DemoResult, DemoRun, losses_differ, notes, table
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

OUTPUT = Path("output", "demo")
STEPS = 5
"""The first makes the optimizer's state, and the second is recorded: plans drive from the third on."""

# The first run says how much memory training takes; the others get a third of it. Best: Choi and Lee 2021, table 1.
BEST = ("--parameter-advice=preferredlocation", "--input-advice=readmostly", "--intermediate-advice=prefetch")
RUNS = (
    DemoRun("vanilla PyTorch", ("--no-unified",), limited=False),
    DemoRun("a third of that, resident", ("--no-unified",), runs_out=True),
    DemoRun("unified, no advice", ("--unified",)),
    DemoRun("unified, best advice", ("--unified", *BEST)),
    DemoRun("policy window", ("--policy=window",)),
    DemoRun("policy swap", ("--policy=swap",)),
    DemoRun("policy auto", ("--policy=auto",)),
)

# BERT-Large, 2 x 128 with AdamW, peaks at 6.4 GB; under unified memory a page can be on the device and on the
# host at once, and the rest of the machine needs some too.
SIZES_BY_MEMORY = (("large", 10 * 10**9), ("base", 4 * 10**9), ("small", 0))


def options(run: DemoRun, size: str, gpu: bool, limit_bytes: int | None) -> list[str]:
    """What one run passes to bert_large.py."""
    without_gpu = "emulated" if run.limited else "cpu"
    words = [*run.options, "--device", "cuda" if gpu else without_gpu, "--size", size]
    words += ["--batch-size", "2", "--seq-length", "128", "--steps", str(STEPS)]
    if run.limited:
        # A GPU's memory is what it is: there the budget makes unified memory move.
        option = "--budget" if gpu and run.managed else "--capacity"
        words += [option, str(limit_bytes)]
    return words


def train(runs: tuple[DemoRun, ...], size: str, gpu: bool, console: Console) -> list[DemoResult]:
    """Runs one after the other. Without the first there is no limit for the others: then it stops."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    results: list[DemoResult] = []
    limit_bytes: int | None = None
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("starting", total=len(runs) * STEPS)
        for index, run in enumerate(runs):
            progress.update(task, description=f"{index + 1} of {len(runs)}: {run.name}", completed=index * STEPS)
            written, log = OUTPUT / f"{run.file_stem}.json", OUTPUT / f"{run.file_stem}.log"
            report = ["--report", str(OUTPUT / f"{run.file_stem}.profile.json")] if run.managed else []
            words = [*options(run, size, gpu, limit_bytes), *report]
            for line in bert_row.run(words, written, log):
                console.print(f"{run.name}: {line}", markup=False, highlight=False, soft_wrap=True)
                progress.advance(task, 1 if line.startswith("step ") else 0)
            row = bert_row.read(written)
            results.append(DemoResult(run, row, log))
            if limit_bytes is None:
                if row is None or row.peak_bytes is None:
                    break
                limit_bytes = row.peak_bytes // 3
        progress.update(task, completed=len(runs) * STEPS)
    return results


def main() -> int:
    """Runs the demo and returns its exit code."""
    import torch

    console = Console(stderr=True)
    gpu = torch.cuda.is_available()
    memory_bytes = available_bytes()
    size = next(size for size, needs_bytes in SIZES_BY_MEMORY if memory_bytes >= needs_bytes)
    console.print(f"device: {torch.cuda.get_device_name() if gpu else 'no GPU, so the CPU and the emulated device'}")
    if size != "large":
        console.print(f"BERT-{size.capitalize()} instead of BERT-Large: only {memory_bytes / 1e9:.1f} GB are available")
    OUTPUT.mkdir(parents=True, exist_ok=True)
    results = train(RUNS, size, gpu, console)

    output = Console(width=None if sys.stdout.isatty() else 180)
    output.print(table(f"BERT-{size.capitalize()}, batch 2 x 128, {STEPS} steps", results))
    for note in notes(results):
        output.print(note, markup=False, highlight=False)
    if not all(result.as_meant for result in results) or len(results) < len(RUNS):
        return 1
    return 3 if losses_differ(results) else 0


if __name__ == "__main__":
    sys.exit(main())
