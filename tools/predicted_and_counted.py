"""Trains BERT-Large in virtual time at parts of its memory, and puts what was predicted beside what was counted.

    python tools/predicted_and_counted.py [--layers 24] [--share 0.5 0.33]

The batch is small, as the CPU computes. The exit status is 1 where a steady step is another one than was predicted.
"""

import sys

import torch
from harness import command_line
from networks import NETWORKS

import umadvise
from umadvise.recording.dry import recorder as dry
from umadvise.records.units import format_bytes

COUNTS = (
    *("swap_ins", "swap_outs", "swap_in_bytes", "swap_out_bytes", "evictions", "clean_drops", "cancelled"),
    *("on_demand_swap_ins", "wait_copy_ns", "wait_room_ns"),
)


def compare(layers: int, share: float, steps: int, clock: str) -> dict[str, tuple[int, int]]:
    """What is predicted and what the last step counts, by name."""
    trace = dry.record(lambda: NETWORKS["bert_large"](1, length=64, layers=layers), target="cpu")
    budget_bytes = int(trace.peak_bytes * share)
    workload = NETWORKS["bert_large"](1, length=64, layers=layers)
    device = umadvise.EmulatedDevice(budget_bytes + (64 << 20), clock=clock)
    with umadvise.session(
        workload.modules, workload.optimizers, device=device, policy="swap", budget=budget_bytes
    ) as um:
        counters, first = [um.swap_counters()], 0
        for number in range(1, steps + 1):
            with um.step():
                workload.step()
            counters.append(um.swap_counters())
            first = first or (number if um.plan is not None else 0)
        simulation = um._open_loop().predicted()
    if simulation is None:
        raise RuntimeError("no plan drove the steps: give more memory")
    last = min(steps, first + len(simulation.steps) - 2)  # the first simulated step has no plan
    predicted, before, counted = simulation.steps[last - first + 1].swaps, counters[last - 1], counters[last]
    print(f"{format_bytes(budget_bytes)}, {share:.0%} of the peak, {len(trace.ops)} ops, step {last}")
    rows = {name: (getattr(predicted, name), getattr(counted, name) - getattr(before, name)) for name in COUNTS}
    return rows | {"peak_bytes": (predicted.used_peak_bytes, counted.used_peak_bytes)}


def main(words: list[str] | None = None) -> int:
    """Prints what it found."""
    parser = command_line(__doc__)
    parser.add_argument("--layers", type=int, default=24, help="encoder layers (default 24)")
    parser.add_argument("--share", type=float, nargs="+", default=[0.5, 0.33], help="parts of the peak")
    parser.add_argument("--steps", type=int, default=14, help="steps to train (default 14)")
    parser.add_argument("--clock", default="v100-16gb", help="device whose times count (default v100-16gb)")
    given = parser.parse_args(words)
    torch.manual_seed(1)
    wrong = 0
    for share in given.share:
        for name, (predicted, counted) in compare(given.layers, share, given.steps, given.clock).items():
            wrong += predicted != counted
            print(
                f"  {name:20} predicted {predicted:>15,} counted {counted:>15,}{'' if predicted == counted else '  !'}"
            )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
