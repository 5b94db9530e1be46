"""BERT-Large in unified memory on a third of the memory that it needs, against plain PyTorch: step times as a ratio.

    python tools/benchmark_bert.py [--size large] [--rounds 2]

Plain PyTorch, unified memory without advice and unified memory with the paper's best advice take turns, each in a
process of its own; the first step of each is left out, as it makes the optimizer's state. Ratios are of medians.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))
import bert_row  # noqa: E402  # an example, not a package

BEST = ["--parameter-advice", "preferredlocation", "--input-advice", "readmostly", "--intermediate-advice", "prefetch"]
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
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--size", choices=("large", "base", "small"), default="large")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {"plain PyTorch": [], "unified, no advice": [], "unified, best advice": []}
    losses = set()
    for _ in range(options.rounds):
        plain = row(["--no-unified", "--device", "cpu"], options.size)
        assert plain.peak_bytes is not None  # on Linux it is known
        third = ["--device", "emulated", "--capacity", str(plain.peak_bytes // 3)]
        rows = (plain, row(third, options.size), row([*third, *BEST], options.size))
        for name, each in zip(seconds, rows, strict=True):
            seconds[name] += [step_ns / 1e9 for step_ns in each.step_ns[1:]]
            losses.add(tuple(each.losses_hex))
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    for name, median in medians.items():
        print(f"{name:22} {median:7.2f} s a step   x{median / medians['plain PyTorch']:.2f}")
    print("losses equal to the last bit" if len(losses) == 1 else "LOSSES DIFFER")
    return 0 if len(losses) == 1 else 3


if __name__ == "__main__":
    sys.exit(main())
