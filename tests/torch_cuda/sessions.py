"""What the tests of sessions run: the same training in plain torch, in unified memory, and on every rung.

A program gets its cases as JSON and prints what each one saw, by name; a case that raises has its error in its place.
"""

import gc
import hashlib
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from cuda_loops import NETWORKS, VARIANTS, Move, OnCuda
from torch import nn
from training_variants import OPTIMIZERS, STEPS

import umadvise

MIB = 1 << 20
Case = dict[str, Any]
Seen = dict[str, Any]
Around = Callable[[], AbstractContextManager[None]]
Opened = AbstractContextManager[tuple[Around, Move]]


def made(case: Case) -> OnCuda:
    torch.manual_seed(2021)
    network = NETWORKS[case["network"]]
    model = network.model()
    optimizer = OPTIMIZERS[case["optimizer"]](model.parameters())
    return VARIANTS[case["variant"]](network, model, optimizer)


def train(loop: OnCuda, opened: Opened) -> Seen:
    """Losses of all steps, and a digest of what they leave behind, taken when it is over."""
    with opened as (around, loop.move):
        for step in range(STEPS):
            with around():
                loop.step(step)
    state = [*loop.model.parameters(), *loop.model.buffers()]
    state += [parameter.grad for parameter in loop.model.parameters() if parameter.grad is not None]
    for entries in loop.optimizer.state.values():
        state += [value for value in entries.values() if isinstance(value, torch.Tensor)]
    digest = hashlib.sha256()
    for tensor in state:
        digest.update(tensor.detach().cpu().numpy().tobytes())
    return {"losses": [value.item().hex() for value in loop.seen], "state": digest.hexdigest()}


@contextmanager
def on_gpu(model: nn.Module) -> Iterator[tuple[Around, Move]]:
    """As in plain torch."""
    model.to("cuda")
    yield nullcontext, lambda tensor: tensor.to("cuda")


def in_plain_torch(case: Case) -> Seen:
    torch.cuda.reset_peak_memory_stats()
    loop = made(case)
    return train(loop, on_gpu(loop.model)) | {"need_bytes": torch.cuda.max_memory_allocated()}


def unadvised(case: Case) -> Seen:
    """patch() alone."""
    umadvise.patch(device="cuda", budget=case["budget_bytes"])
    try:
        loop = made(case)
        seen = train(loop, on_gpu(loop.model))
        return seen | {"moved": bool(umadvise.memory_stats().host_peak_bytes)}
    finally:
        umadvise.unpatch()


def in_session(case: Case) -> Seen:
    if case["policy"] == "no-advice":
        return unadvised(case)
    loop, moved = made(case), {}
    budget = None if case["policy"] == "resident" else case["budget_bytes"]

    @contextmanager
    def opened() -> Iterator[tuple[Around, Move]]:
        session = umadvise.session(loop.model, loop.optimizer, device="cuda", budget=budget, policy=case["policy"])
        with session as um:
            yield um.step, um.to_device
            moved["moved"] = bool(um.memory_stats().host_peak_bytes) or um.swap_counters().swap_outs > 0

    return train(loop, opened()) | moved


def each(run: Callable[[Case], Seen], cases: dict[str, Case]) -> dict[str, Seen]:
    found = {}
    for name, case in cases.items():
        print(name, file=sys.stderr, flush=True)  # where the process dies, the last one is to blame
        try:
            found[name] = run(case)
        except Exception:
            found[name] = {"error": traceback.format_exc()}
        gc.collect()
        found[name]["left_bytes"] = torch.cuda.memory_allocated()
    return found


def plain(cases: str) -> Any:
    """Each program once."""
    return each(in_plain_torch, {case["program"]: case for case in json.loads(cases)})


def sessions(cases: str) -> Any:
    return each(in_session, {case["name"]: case for case in json.loads(cases)})


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
