"""What `torchrun` runs for test_rank_faults.py: a training of two ranks, one of which ends early at a named moment.

The words of the command line are strategy, policy, fault and moment. Rank 1 has the fault. The policy "plain" opens no
session: its losses are the reference.
"""

import atexit
import io
import os
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import umadvise

MIB = 1 << 20
WIDTH = 512
STEP = 3
"""The step with the fault, of five: a plan of the first one drives it."""
MOMENTS = (
    "opening",
    "before",
    "forward",
    "backward",
    "collective",
    "optimizer",
    "clearing",
    "between",
    "evaluation",
    "checkpoint",
    "closing",
    "exit",
)


def starve() -> None:
    """Needs more than the budget, in a step or outside of one."""
    torch.ones(64 * MIB, dtype=torch.uint8).add_(1)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise ValueError("planted in a rank")


FAULTS: dict[str, Callable[[], None]] = {"kill": kill, "raise": fail, "starve": starve, "none": lambda: None}


class Faulty:
    """The fault, which `at` lets happen when its moment has come."""

    def __init__(self, fault: str, moment: str) -> None:
        self.fault, self.moment, self.step = FAULTS[fault], moment, 0

    def at(self, moment: str) -> None:
        in_time = self.step == STEP or moment in ("opening", "before", "closing", "exit")
        if moment == self.moment and in_time and distributed.get_rank() == 1:
            self.fault()

    def __reduce__(self) -> Any:
        """A part of the checkpoint."""
        self.at("checkpoint")
        return str, ()


def network(faulty: Faulty, strategy: str) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(8)))
    model[4].register_forward_hook(lambda *_: faulty.at("forward" if torch.is_grad_enabled() else "evaluation"))
    model[4].register_full_backward_hook(lambda *_: faulty.at("backward"))
    if strategy == "ddp":
        return DistributedDataParallel(model, bucket_cap_mb=1)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model


def say(*words: object) -> None:
    """In one write, which other ranks do not cut; at once, as a rank that is killed says nothing more."""
    sys.stdout.write(" ".join(map(str, ("rank", os.environ["RANK"], *words))) + "\n")
    sys.stdout.flush()


class Plain:
    """PyTorch without a session."""

    step = nullcontext

    @staticmethod
    def to_device(tensor: torch.Tensor) -> torch.Tensor:
        return tensor


def step(um: Any, model: nn.Module, optimizer: torch.optim.Optimizer, faulty: Faulty) -> None:
    faulty.step += 1
    with um.step():
        batch = torch.full((32, WIDTH), 1.0 + distributed.get_rank())
        loss = model(um.to_device(batch)).square().mean()
        loss.backward()
        total = um.to_device(torch.ones(MIB))
        work = distributed.all_reduce(total, async_op=True)
        faulty.at("collective")
        work.wait()
        optimizer.step()
        optimizer.zero_grad()
        faulty.at("clearing")
    assert total[0].item() == 2
    say("loss", faulty.step, loss.item().hex())
    faulty.at("between")


def main(strategy: str, policy: str, fault: str, moment: str) -> None:
    assert moment in MOMENTS
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    faulty = Faulty(fault, moment)
    model = network(faulty, strategy)
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.register_step_pre_hook(lambda *_: faulty.at("optimizer"))
    faulty.at("opening")
    device = umadvise.EmulatedDevice(32 * MIB)
    opened = (
        nullcontext(Plain()) if policy == "plain" else umadvise.session(model, optimizer, device=device, policy=policy)
    )
    with opened as um:
        faulty.at("before")
        for _ in range(5):
            step(um, model, optimizer, faulty)
            with torch.no_grad():
                model(um.to_device(torch.ones(32, WIDTH)))
            torch.save({"model": model.state_dict(), "step": faulty}, io.BytesIO())
            distributed.barrier()
        faulty.at("closing")
    if moment == "exit":
        atexit.register(faulty.at, "exit")
    else:
        distributed.barrier()
        distributed.destroy_process_group()
    say("ended")


if __name__ == "__main__":
    main(*sys.argv[1:])
