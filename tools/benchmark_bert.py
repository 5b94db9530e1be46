"""BERT-Large in unified memory on a third of the memory that it needs, against plain PyTorch: step times as a ratio.

    python tools/benchmark_bert.py [--size large] [--rounds 2]

Plain PyTorch, unified memory without advice and unified memory with the paper's best advice take turns, each in a
process of its own; the first step of each is left out, as it makes the optimizer's state. Ratios are of medians.
"""

import statistics
import sys
import tempfile
from pathlib import Path

from harness import add_results, command_line, write_results  # isort: split

import bert_row
from demo import BEST

PLAIN = "plain PyTorch"
WAYS = {PLAIN: ("--no-unified", "--device", "cpu"), "unified, no advice": (), "unified, best advice": BEST}
STEPS = 4


def row(words: list[str], size: str) -> bert_row.Row:
    """What one run of bert_large.py observed."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder, "row.json")
        options = [*words, "--size", size, "--steps", str(STEPS)]
        for line in bert_row.run(options, written, Path(folder, "log")):
            print(f"  {line}", file=sys.stderr, flush=True)
        found = bert_row.read(written)
    if found is None or found.error is not None:
        raise SystemExit(f"bert_large.py {' '.join(words)} did not finish")
    return found


def main() -> int:
    """Prints the ratios."""
    parser = command_line(__doc__)
    parser.add_argument("--size", choices=("large", "base", "small"), default="large")
    parser.add_argument("--rounds", type=int, default=2)
    add_results(parser)
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    losses = set()
    for _ in range(options.rounds):
        third: list[str] = []
        for name, words in WAYS.items():
            found = row([*third, *words], options.size)
            assert found.peak_bytes is not None  # on Linux it is known
            third = third or ["--device", "emulated", "--capacity", str(found.peak_bytes // 3)]
            seconds[name] += [step_ns / 1e9 for step_ns in found.step_ns[1:]]
            losses.add(tuple(found.losses_hex))
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    ratios = {name: median / medians[PLAIN] for name, median in medians.items()}
    for name, median in medians.items():
        print(f"{name:22} {median:7.2f} s a step   x{ratios[name]:.2f}")
    print("losses equal to the last bit" if len(losses) == 1 else "LOSSES DIFFER")
    del ratios[PLAIN]
    write_results(options, "umadvise.benchmark-bert/1", ratios, seconds=seconds)
    return 0 if len(losses) == 1 else 3


if __name__ == "__main__":
    sys.exit(main())
