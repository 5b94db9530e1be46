"""What `torchrun` runs for test_ranks.py: trainings of several processes, in a session and without one.

Each word of the command line is a case, "strategy network policy". Rank 0 prints a line of JSON for each.
"""

import hashlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import umadvise

STEPS = 4
MIB = 1 << 20
ROOMY_BYTES = 256 * MIB
"""More than any of them needs."""


class Block(nn.Module):
    """What tensor parallelism divides, and `fully_shard` shards."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(x)))


class Mlp(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(*(Block(512, 512) for _ in range(8)))

    @staticmethod
    def batch(generator: torch.Generator) -> torch.Tensor:
        return torch.randn(32, 512, generator=generator)


class Cnn(nn.Module):
    """With running statistics, which DistributedDataParallel broadcasts."""

    def __init__(self) -> None:
        super().__init__()
        layers = [(nn.Conv2d(3 if i == 0 else 32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()) for i in range(3)]
        self.features = nn.Sequential(*(part for layer in layers for part in layer), nn.AvgPool2d(8), nn.Flatten())
        self.blocks = nn.Sequential(*(Block(512, 512) for _ in range(6)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(self.features(x))

    @staticmethod
    def batch(generator: torch.Generator) -> torch.Tensor:
        return torch.randn(8, 3, 32, 32, generator=generator)


class Transformer(nn.Module):
    """The embedding is the head's weight, too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 256)
        self.blocks = nn.ModuleList(Block(256, 1024) for _ in range(8))
        self.norms = nn.ModuleList(nn.LayerNorm(256) for _ in range(8))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block, norm in zip(self.blocks, self.norms, strict=True):
            seen = norm(x)
            x = block(x + functional.scaled_dot_product_attention(seen, seen, seen, is_causal=True))
        return functional.linear(x, self.embedding.weight)

    @staticmethod
    def batch(generator: torch.Generator) -> torch.Tensor:
        return torch.randint(0, 1000, (4, 64), generator=generator)


class Experts(nn.Module):
    """Every step leaves another part of it out."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(Block(512, 512) for _ in range(8))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        for index, expert in enumerate(self.experts):
            if (index + self.calls) % 4:
                x = expert(x)
        return x

    batch = Mlp.batch


NETWORKS: dict[str, type[nn.Module]] = {"mlp": Mlp, "cnn": Cnn, "transformer": Transformer, "experts": Experts}


def ddp(model: nn.Module) -> nn.Module:
    unused = isinstance(model, Experts)
    return DistributedDataParallel(
        model, bucket_cap_mb=1, gradient_as_bucket_view=not unused, find_unused_parameters=unused
    )


def fsdp(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    for module in [each for each in model.modules() if isinstance(each, Block)]:
        fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def tp(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    for module in [each for each in model.modules() if isinstance(each, Block)]:
        parallelize_module(module, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def flat(model: nn.Module) -> nn.Module:
    """The older FSDP: one flat parameter for each block, of which each rank has a part."""
    return FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=torch.device("cpu"))


STRATEGIES: dict[str, Callable[[nn.Module], nn.Module]] = {"ddp": ddp, "fsdp": fsdp, "tp": tp, "flat": flat}


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def train(strategy: str, network: str, steps: int = STEPS, **session: Any) -> tuple[Any, dict[str, Any]]:
    """Parameters' bytes in a digest, with all losses; and what the session did."""
    torch.manual_seed(0)
    made = NETWORKS[network]
    model = STRATEGIES[strategy](made())
    parameters = list(model.parameters())
    kinds = [[each for each in parameters if isinstance(each, DTensor) is kind] for kind in (True, False)]
    optimizer = torch.optim.AdamW(parameters, foreach=not all(kinds))  # torch has no lists of both kinds
    generator = torch.Generator().manual_seed(0 if strategy == "tp" else distributed.get_rank())
    losses, seen = [], {}
    opened = umadvise.session(model, optimizer, **session) if session else nullcontext()
    with opened as um:
        for _ in range(steps):
            batch = made.batch(generator)  # type: ignore[attr-defined]
            with um.step() if um else nullcontext():
                loss = model(um.to_device(batch) if um else batch).square().mean()
                loss.backward()
                for some in filter(None, kinds):
                    torch.nn.utils.clip_grad_norm_(some, 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item().hex())
        if um:
            swaps, counters = um.swap_counters(), um.counters()
            allocations = umadvise.torch_seam.runtime.current().device.allocations()
            names = {each.name for each in allocations}
            seen = {
                "rung": um.rung,
                "swap_ins": swaps.swap_ins,
                "faults": counters.fault_groups,
                "peak_bytes": um.memory_stats().requested_peak_bytes,
                "chunks_peak_bytes": swaps.used_peak_bytes,
                "names": sorted(name for name in names if name),
                "held": sum(each.exports > 0 for each in allocations),
            }
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(local(parameter.detach()).contiguous().numpy().tobytes())
    return (digest.hexdigest(), losses), seen


def device(budget_bytes: int, policy: str) -> dict[str, Any]:
    capacity = budget_bytes if policy in ("advise", "window") else ROOMY_BYTES
    return {"device": umadvise.EmulatedDevice(capacity), "budget": budget_bytes, "policy": policy}


_plain: dict[tuple[str, str], Any] = {}
_need_bytes: dict[tuple[str, str], int] = {}


def bits(strategy: str, network: str, policy: str) -> dict[str, Any]:
    """A training in half of the memory that it needs beside the same one without umadvise."""
    both = strategy, network
    if both not in _plain:
        _plain[both] = train(strategy, network)[0]
        _need_bytes[both] = train(strategy, network, steps=2, **device(ROOMY_BYTES, "resident"))[1]["peak_bytes"]
    share = _need_bytes[both] if policy == "resident" else _need_bytes[both] // 2
    budget_bytes = max(share, 16 * MIB) // (2 * MIB) * 2 * MIB
    result, seen = train(strategy, network, **device(budget_bytes if policy != "resident" else ROOMY_BYTES, policy))
    return {"equal": result == _plain[both], "budget_bytes": budget_bytes, **seen}


def left(policy: str) -> dict[str, Any]:
    """What collectives are given stays while a slow rank keeps them waiting; their results leave, and come back."""
    rank = distributed.get_rank()
    numbers = torch.arange(1 << 20, dtype=torch.float32)
    equal, stayed = True, True
    with umadvise.session([], **device(28 * MIB, policy)) as um:
        others = [um.to_device(torch.full((1 << 20,), float(i))) for i in range(6)]
        for step in range(3):
            with um.step():
                given = um.to_device(numbers * (rank + 1 + step))
                total, gathered = given * 1.0, [torch.empty_like(given) for _ in range(2)]
                if rank == 1:
                    time.sleep(0.2)
                works = [
                    distributed.all_reduce(total, async_op=True),
                    distributed.all_gather(gathered, given, async_op=True),
                ]
                before = umadvise.torch_seam.runtime.address_of(total)
                for other in others:
                    other.mul_(1.0)
                moved = before != umadvise.torch_seam.runtime.address_of(total)
                stayed &= not moved or works[0].is_completed()
                for work in works:
                    work.wait()
                for _ in range(2):
                    for other in others:
                        other.mul_(1.0)  # now they may leave
                equal &= torch.equal(total.cpu(), numbers * (2 * step + 3))
                equal &= all(
                    torch.equal(each.cpu(), numbers * (which + 1 + step)) for which, each in enumerate(gathered)
                )
                equal &= torch.equal(given.cpu(), numbers * (rank + 1 + step))
        seen = {"swap_ins": um.swap_counters().swap_ins, "faults": um.counters().fault_groups}
        held = [each for each in umadvise.torch_seam.runtime.current().device.allocations() if each.exports]
    return {"equal": equal, "stayed": stayed, "held": len(held), **seen}


def calls(policy: str) -> dict[str, Any]:
    """Every kind of call of torch.distributed's that gloo has, in a session and without one."""

    def results(put: Callable[[torch.Tensor], torch.Tensor]) -> list[Any]:
        rank, found = distributed.get_rank(), []

        def make(size: int = 4) -> torch.Tensor:
            return put(torch.arange(float(size)) + 10 * rank)

        for op in (distributed.ReduceOp.SUM, distributed.ReduceOp.MAX):
            found.append(make())
            distributed.all_reduce(found[-1], op=op)
        found.append(make())
        distributed.broadcast(found[-1], src=1)
        found.append(make())
        distributed.reduce(found[-1], dst=0)
        if rank == 1:
            found.pop()
        found += [torch.empty_like(make()) for _ in range(2)]
        distributed.all_gather(found[-2:], make())
        found.append(torch.empty_like(make(8)))
        distributed.all_gather_into_tensor(found[-1], make())
        found.append(torch.empty_like(make(2)))
        distributed.reduce_scatter_tensor(found[-1], make())
        found.append(torch.empty_like(make()))
        distributed.all_to_all_single(found[-1], make())
        found.append(torch.empty_like(make()))
        distributed.scatter(found[-1], [make(), make() + 1] if rank == 0 else None, src=0)
        gathered = [torch.empty_like(make()) for _ in range(2)] if rank == 0 else None
        distributed.gather(make(), gathered, dst=0)
        found += gathered or []
        sent, received = make(), torch.empty_like(make())
        for work in (distributed.isend(sent, 1 - rank), distributed.irecv(received, 1 - rank)):
            work.wait()
        found.append(received)
        objects: list[Any] = [None, None]
        distributed.all_gather_object(objects, {"rank": rank, "tensor": torch.ones(2)})
        found.append(objects[1]["tensor"] * objects[1]["rank"])
        future = distributed.all_reduce(found[0].clone(), async_op=True).get_future()
        found.append(future.then(lambda done: done.value()[0].mul(2)).wait())
        found.append(torch.distributed._functional_collectives.all_reduce(make(), "sum", distributed.group.WORLD) + 1)
        distributed.barrier()
        return [each.cpu().tolist() for each in found]

    plain = results(lambda tensor: tensor)
    with umadvise.session([], **device(64 * MIB, policy)) as um, um.step():
        ours = results(um.to_device)
        held = [each for each in umadvise.torch_seam.runtime.current().device.allocations() if each.exports]
    return {"equal": ours == plain, "held": len(held)}


def variants(policy: str) -> dict[str, Any]:
    """DistributedDataParallel in other ways: no_sync, a static graph, uneven inputs, a hook, sharded state."""

    def losses(kind: str, um: Any) -> list[str]:
        torch.manual_seed(0)
        rank = distributed.get_rank()
        inner = nn.Sequential(nn.Linear(256, 256), nn.BatchNorm1d(256), *(nn.Linear(256, 256) for _ in range(4)))
        model = DistributedDataParallel(inner, bucket_cap_mb=1, static_graph=kind == "static_graph")
        if kind == "fp16 hook":
            model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        if kind == "zero":
            optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)
        else:
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        found = []
        uneven = kind == "join"
        with model.join() if uneven else nullcontext():
            for index in range(4 + (rank if uneven else 0)):
                waits = kind == "no_sync" and index % 2 == 0
                with um.step() if um else nullcontext(), model.no_sync() if waits else nullcontext():
                    x = torch.ones(16, 256) * (index + rank)
                    loss = model(um.to_device(x) if um else x).square().mean()
                    loss.backward()
                    if not waits:
                        optimizer.step()
                        optimizer.zero_grad()
                    found.append(loss.item().hex())
        return found + [each.detach().double().sum().item().hex() for each in model.parameters()]

    differs = []
    for kind in ("no_sync", "static_graph", "join", "fp16 hook", "zero"):
        plain = losses(kind, None)
        with umadvise.session([], **device(32 * MIB, policy)) as um:
            if losses(kind, um) != plain:
                differs.append(kind)
    return {"equal": not differs, "differs": differs}


def checkpoint(policy: str) -> dict[str, Any]:
    """torch.distributed.checkpoint: what a session saves is loaded without one, and the other way round."""

    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(1)
        model = fsdp(Mlp())
        return model, torch.optim.AdamW(model.parameters())

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        parts = get_state_dict(model, optimizer)
        return {"model": parts[0], "optimizer": parts[1]}

    def digest(model: nn.Module) -> str:
        all_bytes = b"".join(local(each.detach()).contiguous().numpy().tobytes() for each in model.parameters())
        return hashlib.sha256(all_bytes).hexdigest()

    words = [tempfile.mkdtemp() if distributed.get_rank() == 0 else ""]
    distributed.broadcast_object_list(words)
    x = torch.ones(8, 512)
    model, optimizer = made()
    step(model, optimizer, x)
    step(model, optimizer, x)
    plain = digest(model)
    model, optimizer = made()
    with umadvise.session(model, optimizer, **device(40 * MIB, policy)) as um:
        with um.step():
            step(model, optimizer, um.to_device(x))
        torch.distributed.checkpoint.save(state(model, optimizer), checkpoint_id=words[0])
    model, optimizer = made()
    with umadvise.session(model, optimizer, **device(40 * MIB, policy)) as um:
        kept = state(model, optimizer)
        torch.distributed.checkpoint.load(kept, checkpoint_id=words[0])
        set_state_dict(model, optimizer, model_state_dict=kept["model"], optim_state_dict=kept["optimizer"])
        with um.step():
            step(model, optimizer, um.to_device(x))
    distributed.barrier()
    if distributed.get_rank() == 0:
        shutil.rmtree(words[0])
    return {"equal": digest(model) == plain}


def stages(policy: str) -> dict[str, Any]:
    """Pipeline parallelism: each rank has a part of the layers, and sends what they make to the next."""
    rank, count = distributed.get_rank(), distributed.get_world_size()

    def losses(um: Any) -> list[str]:
        torch.manual_seed(0)
        model = nn.Sequential(*list(Mlp())[rank * 8 // count : (rank + 1) * 8 // count])
        optimizer = torch.optim.Adam(model.parameters())
        found: list[torch.Tensor] = []
        if um:
            model.to("cuda")
        stage = PipelineStage(model, rank, count, torch.device("cpu"))
        schedule = Schedule1F1B(stage, 4, loss_fn=lambda y, wanted: (y - wanted).square().mean())
        for _ in range(STEPS):
            x, y = (um.to_device(torch.randn(32, 512)) if um else torch.randn(32, 512) for _ in range(2))
            with um.step() if um else nullcontext():
                first, last = rank == 0, rank == count - 1
                schedule.step(*(x,) if first else (), **{"target": y, "losses": found} if last else {})
                optimizer.step()
                optimizer.zero_grad()
        return [each.item().hex() for each in found] + [each.sum().item().hex() for each in model.parameters()]

    plain = losses(None)
    with umadvise.session([], **device(16 * MIB, policy)) as um:
        return {"equal": losses(um) == plain}


OTHERS: dict[str, Callable[[str], dict[str, Any]]] = {
    "left": left,
    "calls": calls,
    "variants": variants,
    "checkpoint": checkpoint,
    "flat": lambda policy: bits("flat", "transformer", policy),
    "stages": stages,
}


def main(cases: list[str]) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    for case in cases:
        kind, *words = case.split()
        found = OTHERS[kind](*words) if kind in OTHERS else bits(kind, *words)
        everyone: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(everyone, found)
        if distributed.get_rank() == 0:
            sys.stdout.write(f"RESULT {json.dumps({'case': case, 'ranks': everyone})}\n")
            sys.stdout.flush()
    distributed.barrier()  # gloo's threads let go of their tensors: torch aborts if one does while Python ends
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
