"""What torch does only with its own allocator, asked of torch while umadvise is it.

A program prints by name what came of each entry: its value, or its error, and what was logged meanwhile.
"""

import gc
import io
import json
import logging
import sys
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import nn

import umadvise

MIB = 1 << 20
Entries = dict[str, Callable[[], Any]]


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, device="cuda")


# ---- refused ---------------------------------------------------------------------------------------------------------


def graph() -> None:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        pass


def pool() -> None:
    with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
        pass


def held(tensor: torch.Tensor) -> float:
    with umadvise.held(tensor):
        return tensor.sum().item()


def sent(tensor: torch.Tensor) -> None:
    ForkingPickler(io.BytesIO()).dump(tensor)


REFUSED: Entries = {
    "CUDAGraph": torch.cuda.CUDAGraph,
    "graph": graph,
    "make_graphed_callables": lambda: torch.cuda.make_graphed_callables(nn.Linear(4, 4).cuda(), (ones(4),)),
    "MemPool": torch.cuda.MemPool,
    "use_mem_pool": pool,
    "sent tensor": lambda: sent(ones(4)),
    "sent parameter": lambda: sent(nn.Linear(4, 4).cuda().weight),
    "sent view": lambda: sent(ones(4, 4)[1]),
    "memory_snapshot": torch.cuda.memory_snapshot,
    "_snapshot": torch.cuda.memory._snapshot,
    "_dump_snapshot": lambda: torch.cuda.memory._dump_snapshot("never.pickle"),
    "_record_memory_history": torch.cuda.memory._record_memory_history,
    "_record_memory_history legacy": lambda: torch.cuda.memory._record_memory_history(True),
    "memory fraction": lambda: torch.cuda.set_per_process_memory_fraction(0.5),
}


# ---- passed by -------------------------------------------------------------------------------------------------------


def benchmark() -> bool:
    torch.backends.cudnn.benchmark = True
    return torch.backends.cudnn.benchmark


def benchmark_flags() -> bool:
    with torch.backends.cudnn.flags(benchmark=True):
        return torch.backends.cudnn.benchmark


def compiled(**named: Any) -> float:
    return float(torch.compile(lambda tensor: tensor * 2, **named)(ones(4)).sum())


def compiled_module() -> bool:
    module = nn.Linear(4, 4).cuda()
    late, inputs = torch.compile(module), ones(2, 4)
    expected = nn.functional.linear(inputs, module.weight, module.bias)
    module.compile()
    return all(torch.equal(each(inputs), expected) for each in (late, module))


def raw_allocation() -> int:
    gc.collect()  # The compiled functions before it leave cycles that hold tensors, freed when Python next collects.
    before = torch.cuda.memory_allocated()
    address = torch.cuda.caching_allocator_alloc(3 * MIB)
    held = torch.cuda.memory_allocated() - before
    torch.cuda.caching_allocator_delete(address)
    return held if torch.cuda.memory_allocated() == before else -1


def shared_module() -> bool:
    """torch says that sharing does nothing to tensors of CUDA."""
    return bool(nn.Linear(4, 4).cuda().share_memory().weight.is_shared())


PASSED_BY: Entries = {
    "history switched off": lambda: torch.cuda.memory._record_memory_history(enabled=None),
    "memory fraction of 1": lambda: torch.cuda.set_per_process_memory_fraction(1.0),
    "get_per_process_memory_fraction": torch.cuda.get_per_process_memory_fraction,
    "cudnn.benchmark": benchmark,
    "cudnn.flags": benchmark_flags,
    "compile": compiled,
    "compile again": compiled,
    "compile reduce-overhead": lambda: compiled(mode="reduce-overhead"),
    "compile max-autotune": lambda: compiled(mode="max-autotune", fullgraph=True),
    "compile a module": compiled_module,
    "_set_allocator_settings": lambda: torch.cuda.memory._set_allocator_settings("expandable_segments:True"),
    "caching_allocator_alloc": raw_allocation,
    "caching_allocator_enable": lambda: torch.cuda.memory.caching_allocator_enable(False),
    "get_allocator_backend": torch.cuda.get_allocator_backend,
    "share_memory": shared_module,
    "ipc_collect": torch.cuda.ipc_collect,
    "a pickle": lambda: io_round_trip(ones(3)).tolist(),
    "held": lambda: held(ones(3)),
    "dlpack": lambda: torch.from_dlpack(ones(3)).tolist(),
    "__cuda_array_interface__": lambda: (tensor := ones(3)).__cuda_array_interface__["data"][0] == tensor.data_ptr(),
    "dtype and device": lambda: str(torch.ones(2).to("cuda", torch.float16)),
    "words of advice": lambda: torch.arange(4.0).to("cuda:readmostly").sum().item(),
}


def io_round_trip(tensor: torch.Tensor) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    loaded: torch.Tensor = torch.load(file)
    assert loaded.is_cuda
    return loaded


# ---- programs --------------------------------------------------------------------------------------------------------


class Log(logging.Handler):
    """Lines of umadvise's logger, warnings and above."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        logging.getLogger("umadvise").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def came_of(entries: Entries, log: Log) -> Any:
    found = {}
    for name, entry in entries.items():
        log.lines.clear()
        try:
            found[name] = {"value": entry()}
        except Exception as error:
            found[name] = {"error": type(error).__name__, "message": str(error)}
        found[name]["log"] = [*log.lines]
    return found


def limits() -> Any:
    """All of it after patch(), and again after unpatch(), as the allocator stays."""
    log = Log()
    early = torch.compile(lambda tensor: tensor + 1, backend=lambda module, _: module)
    umadvise.patch(device="cuda")
    patched = came_of(REFUSED | PASSED_BY | {"compiled before": lambda: early(ones(2)).tolist()}, log)
    umadvise.unpatch()
    return {"patched": patched, "after": came_of(REFUSED, log)}


def settings() -> Any:
    """With a variable of the environment that torch's own allocator reads."""
    log = Log()
    umadvise.patch(device="cuda")
    return {"log": log.lines, "sum": ones(1000).sum().item()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
