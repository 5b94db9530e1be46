"""What nothing but a GPU can show: the driver's own answers, streams, and coming too late.

Each program below runs in a process of its own: `python test_cuda_only.py NAME` prints what it saw as JSON.
"""

import ctypes
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import umadvise
from umadvise.doctor import witness

pytestmark = pytest.mark.gpu
MIB, CPU = 1 << 20, -1  # CU_DEVICE_CPU
READ_MOSTLY, PREFERRED_LOCATION, ACCESSED_BY, LAST_PREFETCH_LOCATION = 1, 2, 3, 4  # CUmem_range_attribute


def range_attribute(tensor: torch.Tensor, attribute: int) -> int:
    """What the driver says of a tensor's range: by its own function, and by cuda-python where that is installed."""
    value = ctypes.c_int(-99)
    ask = ctypes.CDLL("libcuda.so.1").cuMemRangeGetAttribute
    address, size = ctypes.c_uint64(tensor.data_ptr()), ctypes.c_size_t(tensor.nbytes)
    assert ask(ctypes.byref(value), ctypes.c_size_t(4), attribute, address, size) == 0
    assert not witness.contradicts(tensor.data_ptr(), tensor.nbytes, attribute, value.value)
    return value.value


def advice() -> Any:
    umadvise.patch("cuda")
    words = {"readmostly": READ_MOSTLY, "preferredlocation": PREFERRED_LOCATION, "accessby": ACCESSED_BY}
    advised = {word: torch.ones(4 * MIB).to(f"cuda:{word}") for word in (*words, "noadvise", "prefetch")}
    seen = {
        word: {name: range_attribute(advised[word], words[name]) for name in words} for word in (*words, "noadvise")
    }
    return {"attributes": seen, "prefetched": range_attribute(advised["prefetch"], LAST_PREFETCH_LOCATION)}


def budget() -> Any:
    umadvise.patch("cuda", budget="64MiB")
    tensors = [torch.ones(4 * MIB, device="cuda") for _ in range(8)]
    assert torch.cuda.memory_allocated() == 8 * 16 * MIB
    torch.cuda.synchronize()  # the driver may put prefetches off
    return [range_attribute(tensor, LAST_PREFETCH_LOCATION) for tensor in tensors]


def streams() -> Any:
    """A side stream's long work on memory that is freed, and asked for again, before it is done."""
    umadvise.patch("cuda")
    side, wrong = torch.cuda.Stream(), 0
    for round_index in range(20):
        source = torch.full((8 * MIB,), float(round_index), device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(50_000_000)
            copied = source.clone()
        source.record_stream(side)
        del source
        torch.full((8 * MIB,), -1.0, device="cuda")
        torch.cuda.current_stream().wait_stream(side)
        wrong += int((copied != round_index).sum())
    return wrong


def compiled() -> Any:
    """Blocks that Inductor compiles, with room for everything and in half of it; without Triton they run eagerly."""

    def train(policy: str, budget: str | None) -> tuple[list[float], int]:
        torch.manual_seed(0)
        block = (torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.GELU()) for _ in range(8))
        model = umadvise.compile(torch.nn.Sequential(*block))
        optimizer = torch.optim.AdamW(model.parameters())
        with umadvise.session(model, optimizer, device="cuda", policy=policy, budget=budget) as um:
            losses = []
            for _ in range(5):
                with um.step():
                    loss = model(um.to_device(torch.linspace(-1, 1, 1 << 20).reshape(1024, 1024))).square().mean()
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    losses.append(loss.item())
            return losses, um.swap_counters().swap_ins

    (roomy, _), (tight, moved) = train("resident", None), train("swap", "96MiB")
    return {"same": roomy == tight, "moved": moved}


def too_late() -> Any:
    torch.cuda.mem_get_info()
    try:
        umadvise.patch("cuda")
    except umadvise.errors.StateError as error:
        return str(error)


def test_the_driver_holds_the_advice(run: Callable[..., Any]) -> None:
    seen = run("test_cuda_only.py", "advice")
    for word, attributes in seen["attributes"].items():
        assert attributes["readmostly"] == (word == "readmostly"), word
        assert (attributes["preferredlocation"] == 0) == (word == "preferredlocation"), word
        assert (attributes["accessby"] == 0) == (word == "accessby"), word
    assert seen["prefetched"] == 0


def test_a_budget_sends_the_oldest_to_the_host(run: Callable[..., Any]) -> None:
    assert run("test_cuda_only.py", "budget")[:4] == [CPU] * 4


def test_memory_changes_hands_between_streams_in_order(run: Callable[..., Any]) -> None:
    assert run("test_cuda_only.py", "streams") == 0


def test_compiled_blocks_train_in_less_memory(run: Callable[..., Any]) -> None:
    seen = run("test_cuda_only.py", "compiled")
    assert seen["same"]
    assert seen["moved"]


def test_too_late_is_a_clear_error(run: Callable[..., Any]) -> None:
    assert "torch has set CUDA up already" in run("test_cuda_only.py", "too_late")


if __name__ == "__main__":
    json.dump(globals()[sys.argv[1]](), sys.stdout)
