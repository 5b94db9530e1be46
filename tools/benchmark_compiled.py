"""Trains BERT, GPT-2 and ResNet-50, compiled block by block, in less than they need: bits, graphs and planned swap-ins.

    python tools/benchmark_compiled.py [--large] [--networks NAME,...] [--policies NAME,...] [--shares PERCENT,...]

Each network is trained compiled without umadvise first. Then it is in sessions on the emulated device, with a budget
that is a share of what it needs in chunks. A row says whether the losses and all parameters and buffers are those
of the plain compiled run to the last bit, how many compiled graphs ran, and which part of the swap-ins was ordered
ahead of the op that used them, from the fourth step on. --large takes BERT-Large, GPT-2 and ResNet-50 as they are (a
small batch, 20 GB of memory); otherwise they are of the same kind and small. Inductor keeps what it compiles in
$TORCHINDUCTOR_CACHE_DIR. The exit status is 3 where a row falls short.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import torch
from harness import command_line

import umadvise
from umadvise.recording.workload import Workload
from umadvise.records.counters import SwapCounters
from umadvise.records.units import format_bytes

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from networks.bert import bert_large  # the examples are no package
from networks.gpt2 import gpt2
from networks.resnet import resnet50

SMALL: dict[str, Callable[[], Workload]] = {
    "bert": lambda: bert_large(4, length=64, layers=4, hidden=256, heads=4, vocabulary=2000),
    "gpt2": lambda: gpt2(4, length=64, layers=4, width=256, heads=4, vocabulary=2000),
    "resnet50": lambda: resnet50(8, image=64, width=16, classes=10),
}
LARGE: dict[str, Callable[[], Workload]] = {
    "bert": lambda: bert_large(2, length=128),
    "gpt2": lambda: gpt2(2, length=128),
    "resnet50": lambda: resnet50(8),
}
STEPS, FIRST = 8, 3
_PLANNED = 0.9
_ROOMY = {True: 10 << 30, False: 2 << 30}


class CompiledRun(msgspec.Struct, frozen=True):
    """What a training came to.

    Attributes:
        kept: losses, then parameters and buffers.
        graphs: runs of compiled graphs.
        planned: part of the swap-ins that was ordered ahead.
        moved: swap-ins, and groups of faults.
        most_bytes: chunks that were used at most.
    """

    kept: list[torch.Tensor]
    graphs: int
    planned: float = 1.0
    moved: int = 0
    most_bytes: int = 0


@contextmanager
def counted_graphs() -> Iterator[list[int]]:
    """Counts in its one element how often a compiled graph runs."""
    from torch._inductor.output_code import CompiledFxGraph

    original, count = CompiledFxGraph.__call__, [0]

    def run(graph: Any, inputs: Any) -> Any:
        count[0] += 1
        return original(graph, inputs)

    with mock.patch.object(CompiledFxGraph, "__call__", run):
        yield count


def train(build: Callable[[], Workload], policy: str | None, budget_bytes: int = 0) -> CompiledRun:
    """Trains a network from its beginning; without a policy as plain torch does."""
    torch.manual_seed(0)
    workload = build()
    for module in workload.modules:
        umadvise.compile(module)
    with counted_graphs() as graphs:
        if policy is None:
            losses = [workload.step() for _ in range(STEPS)]
            return CompiledRun(_kept(workload, losses), graphs[0])
        device = umadvise.EmulatedDevice(budget_bytes + (512 << 20))
        session = umadvise.session(
            workload.modules, workload.optimizers, device=device, budget=budget_bytes, policy=policy
        )
        losses, seen = [], []
        with session as um:
            for _ in range(STEPS):
                with um.step():
                    losses.append(workload.step())
                seen.append(um.swap_counters())
            moved = seen[-1].swap_ins + (um.counters().fault_groups or 0)
            kept = _kept(workload, losses)
        return CompiledRun(kept, graphs[0], _planned(seen[FIRST - 1], seen[-1]), moved, seen[-1].used_peak_bytes)


def _kept(workload: Workload, losses: list[Any]) -> list[torch.Tensor]:
    tensors = [*losses]
    for module in workload.modules:
        tensors += [*module.parameters(), *module.buffers()]
    return [each.detach().cpu().clone() for each in tensors]


def _planned(before: SwapCounters, after: SwapCounters) -> float:
    def since(name: str) -> int:
        return int(getattr(after, name)) - int(getattr(before, name))

    arrived = since("swap_ins")
    unplanned = sum(map(since, ("on_demand_swap_ins", "late_swap_ins", "unused_swap_ins")))
    return 1 - unplanned / arrived if arrived else 1.0


def main(words: list[str] | None = None) -> int:
    """Prints one row for each network, share and policy."""
    parser = command_line(__doc__)
    parser.add_argument("--large", action="store_true", help="the networks as they are")
    parser.add_argument("--networks", default=",".join(SMALL), help="names, with commas (default: all)")
    parser.add_argument("--policies", default="swap,window,auto", help="policies, with commas")
    parser.add_argument("--shares", default="50,33", help="budgets in percent of the need (default: 50,33)")
    options = parser.parse_args(words)
    short = False
    for name in options.networks.split(","):
        build = (LARGE if options.large else SMALL)[name]
        plain = train(build, None)
        need = train(build, "swap", _ROOMY[options.large]).most_bytes
        for share in map(int, options.shares.split(",")):
            for policy in options.policies.split(","):
                budget = need * share // 100
                run = train(build, policy, budget)
                bits = all(map(torch.equal, run.kept, plain.kept))
                good = bits and run.graphs == plain.graphs and run.planned >= _PLANNED and run.moved > 0
                short |= not good
                print(
                    f"{name:10} {policy:8} {share:3} % of need, {format_bytes(budget):>10}  "
                    f"{'equal' if bits else 'OTHER BITS'}  graphs {run.graphs} of {plain.graphs}  "
                    f"moved {run.moved:6}  planned {run.planned:6.1%}{'' if good else '  !'}",
                    flush=True,
                )
    return 3 if short else 0


if __name__ == "__main__":
    sys.exit(main())
