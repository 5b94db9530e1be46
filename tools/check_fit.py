"""Trains what `umadvise fit` names, and a tenth more: the first has to run, the second has to be refused.

    python tools/check_fit.py [gpt2 ...] [--rungs swap,resident]

Six small networks, each in an emulated device of its own size. Of each `fit` names the largest batch on a rung; four
steps of that batch have to run there, with the losses of plain PyTorch to the last bit, and a tenth more samples, at
least one, have to be refused in words. The exit status is 1 where that is not so on `swap`. On `resident`, where the
last MiB decides, what the CPU's kernels take for themselves and the recorder does not know may make a difference.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from harness import command_line
from networks import NETWORKS as FACTORIES

import umadvise
from umadvise.devices.catalogue import load_device
from umadvise.errors import UmadviseError
from umadvise.recording.workload import Workload
from umadvise.torch_seam import runtime
from umadvise.training.plans.device import PlanningDevice
from umadvise.training.plans.fit import Batches, Fitting

MIB = 1 << 20
STEPS = 4
MOST_BATCH = 256
CARD = "rtx-4090"


@dataclass(frozen=True)
class CheckedCard:
    """A network, and an emulated device for it.

    Attributes:
        build: function that makes the workload of a batch.
        capacity_bytes: memory of the device.
    """

    build: Callable[[int], Workload]
    capacity_bytes: int


def _card(network: str, capacity_mib: int, **options: int) -> CheckedCard:
    return CheckedCard(lambda batch: FACTORIES[network](batch, **options), capacity_mib * MIB)


NETWORKS = {
    "gpt2": _card("gpt2", 64, length=64, layers=2, width=256, heads=4, vocabulary=2000),
    "bert_large": _card("bert_large", 128, length=64, layers=2, hidden=256, heads=4),
    "unet": _card("unet", 64, image=188, width=8, levels=3),
    "vgg16": _card("vgg16", 64, image=64, width=16, classes=100),
    "char_lstm": _card("char_lstm", 48, length=32, hidden=256),
    "vit_b16": _card("vit_b16", 32, image=96, layers=3, width=192, heads=3),
}


@dataclass(frozen=True)
class Checked:
    """What became of what was named.

    Attributes:
        largest: the largest batch that `fit` names; None where it names none.
        runs: whether that trains.
        refused: what is said of a tenth more; None where that trains too.
    """

    largest: int | None
    runs: bool
    refused: str | None

    @property
    def holds(self) -> bool:
        """Whether the largest batch that trains was named."""
        return self.runs and self.refused is not None


def check(network: str, rung: str) -> Checked:
    """Asks `fit` for the largest batch on a rung, trains it, and tries a tenth more.

    Args:
        network: one of NETWORKS.
        rung: a rung of the ladder.

    Raises:
        AssertionError: losses are not those of plain PyTorch.
    """
    card = NETWORKS[network]
    device = PlanningDevice(load_device(CARD), "", synchronous=True)
    fitting = Fitting(card.build, device, card.capacity_bytes, (rung,))
    largest = fitting.report(Batches((1, MOST_BATCH), searched=True)).largest[0].batch
    tenth_more = 1 if largest is None else largest + max(1, -(-largest // 10))
    refused = _refusal(card, tenth_more, rung)
    return Checked(largest, largest is not None and _refusal(card, largest, rung) is None, refused)


def _refusal(card: CheckedCard, batch: int, rung: str) -> str | None:
    """What a session says of a batch that it refuses; None where it trains."""
    torch.manual_seed(0)
    workload = card.build(batch)
    try:
        with _session(workload, card, rung) as um:
            losses = list(_steps(workload, um))
    except (UmadviseError, torch.OutOfMemoryError) as error:
        return str(error)
    torch.manual_seed(0)
    plain = list(_steps(card.build(batch), None))
    assert all(map(torch.equal, losses, plain)), f"batch {batch} on {rung} has other losses"
    return None


@contextmanager
def _session(workload: Workload, card: CheckedCard, rung: str) -> Iterator[umadvise.session]:
    device = umadvise.EmulatedDevice(card.capacity_bytes)
    try:
        with umadvise.session(workload.modules, workload.optimizers, device=device, policy=rung) as um:
            for each in workload.inputs:
                each.data = um.to_device(each)
            yield um
    finally:
        if runtime.is_patched():
            umadvise.unpatch()


def _steps(workload: Workload, session: umadvise.session | None) -> Iterator[torch.Tensor]:
    for _ in range(STEPS):
        with session.step() if session is not None else torch.enable_grad():
            loss = workload.step()
        assert isinstance(loss, torch.Tensor)
        yield loss.cpu().clone()


def main(words: Sequence[str] | None = None) -> int:
    """Prints a row for each network and rung."""
    parser = command_line(__doc__)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help="of: " + ", ".join(NETWORKS))
    parser.add_argument("--rungs", default="swap,resident", metavar="NAMES", help="rungs (default swap,resident)")
    options = parser.parse_args(words)
    wrong = 0
    print("| network | memory MiB | rung | largest | trains | a tenth more |\n|---|---|---|---|---|---|")
    for network in options.networks or NETWORKS:
        for rung in options.rungs.split(","):
            found = check(network, rung)
            wrong += rung == "swap" and not found.holds
            trains, more = "yes" if found.runs else "no", "trains" if found.refused is None else "refused"
            size = NETWORKS[network].capacity_bytes // MIB
            print(f"| {network} | {size} | {rung} | {found.largest or '-'} | {trains} | {more} |", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
