"""What the first steps of a training cost: BERT-Large in half of the memory that it needs, against plain PyTorch.

    python tools/benchmark_first_steps.py [--size large] [--part 50] [--steps 9]

Three runs, each in a process of its own: plain PyTorch, a session that knows nothing of earlier ones, and a session
that finds the steps of that one. The first five steps of a session are compared with five steady ones of the same run
(the median of those after the fifth) and what plain PyTorch's first step costs above its own steady one. For both
sessions it is said from which step on plans drive.
"""

import os
import statistics
import sys
import tempfile
from pathlib import Path

from harness import add_results, command_line, write_results  # isort: split

import bert_row

from umadvise.records import fault_profile

FIRST = 5
"""Steps that are looked at."""
KNOWING = ("knows nothing", "knows the steps before")


def row(words: list[str], folder: Path) -> bert_row.Row:
    """What one run of bert_large.py observed."""
    for line in bert_row.run(words, folder / "row.json", folder / "log"):
        print(f"  {line}", file=sys.stderr, flush=True)
    found = bert_row.read(folder / "row.json")
    if found is None or found.error is not None:
        raise SystemExit(f"bert_large.py {' '.join(words)} did not finish")
    return found


def steady_ns(steps_ns: list[int]) -> float:
    """Time of one step after the first ones."""
    return statistics.median(steps_ns[FIRST:])


def first_driven(profile: Path) -> int:
    """Number of the first step from which on plans drove every step to its end."""
    planned = fault_profile.read(profile).planned
    assert planned is not None  # the policy plans
    return 1 + max((each.last for each in planned.undriven), default=0)


def main() -> int:
    """Prints the ratios."""
    parser = command_line(__doc__)
    parser.add_argument("--size", choices=("large", "base", "small"), default="large")
    parser.add_argument("--part", type=int, default=50, help="budget in percent of plain PyTorch's peak")
    parser.add_argument("--steps", type=int, default=9)
    add_results(parser)
    options = parser.parse_args()
    shape = ["--size", options.size, "--steps", str(options.steps)]
    ratios, equal = {}, True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ |= {"UMADVISE_PLAN_CACHE": "", "XDG_CACHE_HOME": name}
        plain = row([*shape, "--no-unified", "--device", "cpu"], folder)
        assert plain.peak_bytes is not None  # on Linux it is known
        once_ns = max(plain.step_ns[0] - steady_ns(plain.step_ns), 0)
        budget, capacity = plain.peak_bytes * options.part // 100, plain.peak_bytes * 2
        where = ["--device", "emulated", "--capacity", str(capacity), "--policy", "swap", "--budget", str(budget)]
        for knowing in KNOWING:
            report = folder / "profile.json"
            found = row([*shape, *where, "--report", str(report)], folder)
            expected_ns = FIRST * steady_ns(found.step_ns) + once_ns
            ratios[knowing] = sum(found.step_ns[:FIRST]) / expected_ns
            equal &= found.losses_hex == plain.losses_hex
            seconds = " ".join(f"{each / 1e9:.2f}" for each in found.step_ns)
            print(f"{knowing:24} x{ratios[knowing]:.2f}  driven from step {first_driven(report)} on  {seconds} s")
    print("losses equal to the last bit" if equal else "LOSSES DIFFER")
    write_results(options, "umadvise.benchmark-first-steps/1", ratios)
    return 0 if equal else 3


if __name__ == "__main__":
    sys.exit(main())
