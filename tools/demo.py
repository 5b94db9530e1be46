"""`make demo`: trains BERT-Large in several kinds of memory, each run in its own process, and compares the runs.

Without a GPU, memory is the emulated device's, in the virtual time of a real card: ops, copies and page faults take
what they take there. Losses are computed here, and are compared to the last bit. Progress goes to stderr, the table to
stdout, the picture into output/demo. Exit codes: 0 every run ended as it should and all losses are equal to the last
bit, 1 a run did not end as it should, 3 losses differ.
"""

import sys
from pathlib import Path

from harness import available_bytes  # isort: split

import bert_row
from demo_table import (
    PART,
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
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from umadvise.devices.catalogue import load_device
from umadvise.records import fault_profile

OUTPUT = Path("output", "demo")
CARD = "rtx-4090"
"""The card of the catalogue whose time is kept where there is no GPU."""

# The first run says how much memory training takes; the others get a third of it. The first step makes the optimizer's
# state. Plans drive from the second or third on, those of `auto` when it has changed its rung. There is no run of
# swap+recompute: parameters and the optimizer's state fill the memory here, so its plan is that of swap. Best: Choi and
# Lee 2021, table 1.
BEST = ("--parameter-advice=preferredlocation", "--input-advice=readmostly", "--intermediate-advice=prefetch")
RUNS = (
    DemoRun("plain PyTorch", ("--no-unified",), 3, limited=False),
    DemoRun("resident, a third", ("--no-unified",), 1, runs_out=True),
    DemoRun("unified memory alone", ("--unified",), 2, naive=True),
    DemoRun("with the best advice", ("--unified", *BEST), 2),
    DemoRun("policy window", ("--policy=window",), 3),
    DemoRun("policy swap", ("--policy=swap",), 3),
    DemoRun("policy auto", ("--policy=auto",), 5),
)

# BERT-Large, 2 x 128 with AdamW, peaks at 6.4 GB; under unified memory a page can be on the device and on the
# host at once, and the rest of the machine needs some too.
SIZES_BY_MEMORY = (("large", 10 * 10**9), ("base", 4 * 10**9), ("small", 0))


def options(run: DemoRun, size: str, gpu: bool, limit_bytes: int | None) -> list[str]:
    """What one run passes to bert_large.py."""
    without_gpu = "emulated" if run.limited else "cpu"
    words = [*run.options, "--device", "cuda" if gpu else without_gpu, "--size", size]
    words += ["--batch-size", "2", "--seq-length", "128", "--steps", str(run.steps)]
    if run.limited:
        # A GPU's memory is what it is: there the budget makes unified memory move.
        option = "--budget" if gpu and run.managed else "--capacity"
        words += [option, str(limit_bytes)]
        words += [] if gpu else ["--clock", CARD]
    return words


def train(runs: tuple[DemoRun, ...], size: str, gpu: bool, console: Console) -> list[DemoResult]:
    """Runs one after the other. Without the first there is no limit for the others: then it stops."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    results: list[DemoResult] = []
    limit_bytes: int | None = None
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("starting", total=sum(run.steps for run in runs))
        done = 0
        for index, run in enumerate(runs):
            progress.update(task, description=f"{index + 1} of {len(runs)}: {run.name}", completed=done)
            done += run.steps
            written, log, profile = (
                OUTPUT / f"{run.file_stem}{ending}" for ending in (".json", ".log", ".profile.json")
            )
            profile.unlink(missing_ok=True)
            words = [*options(run, size, gpu, limit_bytes), *(["--report", str(profile)] if run.managed else [])]
            for line in bert_row.run(words, written, log):
                console.print(f"{run.name}: {line}", markup=False, highlight=False, soft_wrap=True)
                progress.advance(task, 1 if line.startswith("step ") else 0)
            row = bert_row.read(written)
            results.append(DemoResult(run, row, log, fault_profile.read(profile) if profile.exists() else None))
            if limit_bytes is None:
                if row is None or row.peak_bytes is None:
                    break
                limit_bytes = row.peak_bytes // PART
        progress.update(task, completed=done)
    return results


def show(results: list[DemoResult], what: str, card: DemoCard | None, output: Console) -> None:
    """Prints the table and what it says, and draws the picture."""
    plain_ns = unlimited_ns(results, card)
    output.print(table(f"{what}: the last step of each run", results, card))
    for note in notes(results):
        output.print(note, markup=False, highlight=False)
    picture = OUTPUT / "steps.svg"
    picture.write_text(draw(f"{what}: the first steps in a third of the memory", results, plain_ns))
    said = [factor(results, card) if card else None, f"Picture: {picture}", conclusion(results, plain_ns)]
    for sentence in filter(None, said):
        output.print(f"\n{sentence}", markup=False, highlight=False)


def main() -> int:
    """Runs the demo and returns its exit code."""
    import torch

    console = Console(stderr=True)
    gpu = torch.cuda.is_available()
    card = None if gpu else DemoCard(CARD, load_device(CARD).label)
    memory_bytes = available_bytes()
    size = next(size for size, needs_bytes in SIZES_BY_MEMORY if memory_bytes >= needs_bytes)
    times = (
        f"no GPU, so the CPU and the emulated device, in the times of a {card.label}"
        if card
        else torch.cuda.get_device_name()
    )
    console.print(f"device: {times}")
    if size != "large":
        console.print(f"BERT-{size.capitalize()} instead of BERT-Large: only {memory_bytes / 1e9:.1f} GB are available")
    OUTPUT.mkdir(parents=True, exist_ok=True)
    results = train(RUNS, size, gpu, console)

    output = Console(width=None if sys.stdout.isatty() else 120)
    show(results, f"BERT-{size.capitalize()}, batch 2 x 128", card, output)
    if not all(result.as_meant for result in results) or len(results) < len(RUNS):
        return 1
    return 3 if losses_differ(results) else 0


if __name__ == "__main__":
    sys.exit(main())
