"""Whether planned steps on a GPU stop mapping memory: the engine on a simulated H100.

python tools/check_settling.py [--networks gpt2 bert_large ...] [--device h100-sxm-80gb] [--jitter 0]

Mapping a chunk takes an H100 36 us, so a step that maps its memory each time takes seconds (docs/gpu.md). Each network
is planned by `belady` at half and a third of its peak, with 3, 7 and 15 % of the budget left over, and run with chunks
of 2, 4 and 8 MiB where there are at least 400 of them. A step has settled if nothing is mapped from the nineteenth on.
Prints those that have not. Exit code 1: more than 3 % have not.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from harness import EXAMPLES, command_line  # noqa: F401  # isort: split
from networks import NETWORKS
from planned_steps import STEPS

from umadvise import planners
from umadvise.devices.catalogue import load_device
from umadvise.errors import BudgetError
from umadvise.recording.dry import recorder as dry
from umadvise.records.device import DeviceProfile
from umadvise.simulator.gpu import simulate_gpu

MIB = 1 << 20
SIZES = {
    **STEPS,
    "bert_large, batch 8": partial(NETWORKS["bert_large"], 8, length=512),
    "gpt2": partial(NETWORKS["gpt2"], 8, layers=12, width=768, heads=12),
    "gpt2, width 1024": partial(NETWORKS["gpt2"], 4, layers=12, width=1024, heads=16),
    "resnet50, batch 32": partial(NETWORKS["resnet50"], 32),
}
SHARES = (0.5, 0.33)
PLANNED = (0.85, 0.93, 0.97)
"""Parts of the budget that plans may use."""
CHUNKS_MIB = (2, 4, 8)
LEAST_CHUNKS = 400
MOST_UNSETTLED = 0.03


@dataclass(frozen=True, slots=True)
class Settled:
    """One run.

    Attributes:
        name: network, share of its peak, part that is planned, size of chunks.
        mapped: chunks that a late step maps, in the mean.
        step_ms: milliseconds of it.
    """

    name: str
    mapped: float
    step_ms: float


def runs(network: str, device: DeviceProfile, jitter: float) -> Iterator[Settled]:
    """All runs of a network whose plan keeps the budget."""
    trace = dry.record(SIZES[network], device=device)
    for share in SHARES:
        budget_bytes = int(trace.peak_bytes * share)
        for part in PLANNED:
            try:
                plan = planners.run("belady", trace, device, int(budget_bytes * part))
            except BudgetError:
                continue
            for chunk_bytes in (size * MIB for size in CHUNKS_MIB if budget_bytes // (size * MIB) >= LEAST_CHUNKS):
                run = simulate_gpu(
                    trace, device, plan, budget_bytes=budget_bytes, chunk_bytes=chunk_bytes, jitter=jitter
                )
                maps = run.calls["cuMemMap"].calls if "cuMemMap" in run.calls else 0
                name = f"{network} at {share:.0%}, {part:.0%} planned, chunks of {chunk_bytes // MIB} MiB"
                yield Settled(name, maps / len(run.steady), run.mean_step_ns / 1e6)


def main() -> int:
    """Runs and prints."""
    parser = command_line(__doc__)
    parser.add_argument("--networks", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--device", default="h100-sxm-80gb")
    parser.add_argument("--jitter", type=float, default=0.0, help="part by which kernels and the host take longer")
    options = parser.parse_args()
    device = load_device(options.device)
    found = [each for network in options.networks for each in runs(network, device, options.jitter)]
    unsettled = [each for each in found if each.mapped > 0]
    for each in unsettled:
        print(f"{each.name}: {each.mapped:.0f} chunks mapped a step of {each.step_ms:.1f} ms")
    print(f"{len(found) - len(unsettled)} of {len(found)} settle")
    return int(len(unsettled) > MOST_UNSETTLED * len(found))


if __name__ == "__main__":
    sys.exit(main())
