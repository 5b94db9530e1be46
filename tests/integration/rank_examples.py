"""Programs for GPUs in the manner of pytorch/examples: both FSDPs, parameters kept on the host, tensor parallelism."""

import os
from itertools import pairwise

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

rank = int(os.environ["LOCAL_RANK"])
if torch.accelerator.is_available():
    kind = torch.accelerator.current_accelerator()
    device = torch.device(f"{kind}:{rank}")
    torch.accelerator.set_device_index(rank)
else:
    kind = device = torch.device("cpu")
torch.set_num_threads(1)
on_gpu = device.type == "cuda"
distributed.init_process_group(distributed.get_default_backend_for_device(device), device_id=device if on_gpu else None)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(256), nn.Linear(256, 1024), nn.Linear(1024, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(self.norm(x)).relu())


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(512, 256), nn.Linear(256, 512)
        self.layers = nn.ModuleList(Layer() for _ in range(6))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def run(name: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for step in range(3):
        torch.manual_seed(step)
        tokens = torch.randint(0, 512, (8, 32), device=device)
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(name, step, loss.item().hex(), flush=True)  # noqa: T201  # its output is compared


with torch.device("meta"):
    model = Model()
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model.layers:
    fully_shard(layer, mp_policy=policy)
fully_shard(model, mp_policy=policy)
model.to_empty(device=device)
torch.manual_seed(0)
for module in model.modules():
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()
for first, second in pairwise(model.layers):
    first.set_modules_to_forward_prefetch([second])
run("fsdp2", model, torch.optim.Adam(model.parameters(), lr=1e-3))

torch.manual_seed(0)
mesh = init_device_mesh(kind.type, (1, 2), mesh_dim_names=("dp", "tp"))
model = Model().to(device)
for layer in model.layers:
    parallelize_module(layer, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(layer, mesh=mesh["dp"])
fully_shard(model, mesh=mesh["dp"])
run("2d", model, torch.optim.AdamW(model.parameters(), foreach=False))

torch.manual_seed(0)
mesh = init_device_mesh(kind.type, (2,))
model = Model()
for layer in (*model.layers, model):
    fully_shard(layer, mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory=on_gpu))
run("offload", model, torch.optim.Adam(model.parameters(), lr=1e-3))

torch.manual_seed(0)
wrapped = FullyShardedDataParallel(  # on the CPU it refuses to send what rank 0 has to the others
    Model(), auto_wrap_policy=ModuleWrapPolicy({Layer}), device_id=device, sync_module_states=on_gpu
)
run("fsdp", wrapped, torch.optim.Adam(wrapped.parameters(), lr=1e-3))
distributed.barrier(device_ids=[rank] if on_gpu else None)
distributed.destroy_process_group()
