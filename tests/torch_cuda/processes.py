"""Programs as people run them on a GPU: workers, threads, forks, errors in the middle, and what comes afterwards."""

import ctypes
import gc
import io
import os
import threading
from collections.abc import Callable
from typing import Any

import torch
from several import main
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import umadvise

MIB = 1 << 20
WIDTH = 1024  # weights of 4 MiB


def made(layers: int = 3) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(5)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(layers)])
    return model, torch.optim.AdamW(model.parameters())


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor) -> str:
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item().hex()


def batch(step: int) -> torch.Tensor:
    return torch.full((16, WIDTH), 0.01 * (step + 1))


def session(model: nn.Module, optimizer: Any, policy: str, budget: str = "36MiB") -> Any:
    kept = None if policy == "resident" else budget  # there everything must fit
    return umadvise.session(model, optimizer, device="cuda", budget=kept, policy=policy)


def trained(
    model: nn.Module, optimizer: Any, policy: str, budget: str = "36MiB", steps: int = 4, first: int = 0
) -> list[str]:
    losses = []
    with session(model, optimizer, policy, budget) as um:
        for step in range(first, first + steps):
            with um.step():
                losses.append(one_step(model, optimizer, um.to_device(batch(step))))
    return losses


def plainly(model: nn.Module, optimizer: Any, first: int, steps: int) -> list[str]:
    model.to("cuda")
    return [one_step(model, optimizer, batch(step).to("cuda")) for step in range(first, first + steps)]


# ---- data ------------------------------------------------------------------------------------------------------------


def loader(policy: str) -> Any:
    """Two workers, page-locked batches, copies without a wait."""
    model, optimizer = made()
    generator = torch.Generator().manual_seed(1)
    dataset = TensorDataset(torch.randn(96, WIDTH, generator=generator))
    batches = DataLoader(dataset, batch_size=16, num_workers=2, pin_memory=True, persistent_workers=True)
    losses = []

    def epoch(around: Callable[[], Any]) -> None:
        for (rows,) in batches:
            assert rows.is_pinned()
            with around():
                losses.append(one_step(model, optimizer, rows.to("cuda", non_blocking=True)))

    if policy == "plain":
        model.to("cuda")
        for _ in range(2):
            epoch(torch.enable_grad)
    else:
        with session(model, optimizer, policy) as um:
            for _ in range(2):
                epoch(um.step)
    return losses


# ---- processes -------------------------------------------------------------------------------------------------------


def fork(policy: str) -> Any:
    """A child that frees tensors, and ends; the parent goes on."""
    model, optimizer = made()
    losses = []
    with session(model, optimizer, policy) as um:
        for step in range(4):
            with um.step():
                losses.append(one_step(model, optimizer, um.to_device(batch(step))))
            kept = model[0][0].weight * 2
            child = os.fork()
            if child == 0:
                del kept
                gc.collect()
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    return losses


def addresses(policy: str) -> Any:
    """What CuPy and Numba are told of a tensor is good while others come and go; a file that is loaded pins nothing."""
    model, optimizer = made()
    with session(model, optimizer, policy) as um:
        with um.step():
            kept = um.to_device(torch.arange(1 << 20, dtype=torch.float32)) + 1
        address, _ = kept.__cuda_array_interface__["data"]
        for step in range(3):
            file = io.BytesIO()
            torch.save(model.state_dict(), file)
            file.seek(0)
            model.load_state_dict(torch.load(file, map_location="cuda"))
            with um.step():
                one_step(model, optimizer, um.to_device(batch(step)))
        torch.cuda.synchronize()
        raw = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
        return [raw[0], raw[(1 << 20) - 1], um.swap_counters().swap_outs > 0]


# ---- threads ---------------------------------------------------------------------------------------------------------


def threads(policy: str) -> Any:
    """Six threads in streams of their own, while another one trains."""
    model, optimizer = made()
    found: dict[int, float] = {}

    def work(index: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            tensor = torch.full((1 << 19,), float(index), device="cuda", requires_grad=True)
            for _ in range(10):
                (tensor * tensor).sum().backward()
            assert tensor.grad is not None
            found[index] = float((tensor.grad - 20.0 * index).abs().max())

    with session(model, optimizer, policy, "64MiB") as um:
        workers = [threading.Thread(target=work, args=(index,)) for index in range(6)]
        for worker in workers:
            worker.start()
        losses = []
        for step in range(4):
            with um.step():
                losses.append(one_step(model, optimizer, um.to_device(batch(step))))
        for worker in workers:
            worker.join()
    return {"losses": losses, "threads": [found.get(index) for index in range(6)]}


# ---- errors and what comes afterwards --------------------------------------------------------------------------------


def raises(policy: str) -> Any:
    """Every other step raises after its backward; its gradients are thrown away."""
    model, optimizer = made()
    losses = []
    with session(model, optimizer, policy) as um:
        for step in range(8):
            try:
                with um.step():
                    inputs = um.to_device(batch(step // 2))
                    if step % 2 == 1:
                        model(inputs).sum().backward()
                        raise KeyError("the user's own")
                    losses.append(one_step(model, optimizer, inputs))
            except KeyError:
                optimizer.zero_grad()
    return losses


def too_small(policy: str) -> Any:
    """A budget with which the step cannot run, one with which the session cannot open, and then one that does."""
    errors = []
    for budget in ("8MiB", "4MiB"):
        model, optimizer = made()
        try:
            trained(model, optimizer, policy, budget, steps=1)
        except torch.OutOfMemoryError as error:
            errors.append(str(error))
        gc.collect()
        assert all(parameter.device.type == "cpu" for parameter in model.parameters())
    assert not optimizer.state
    return {"errors": errors, "losses": trained(model, optimizer, policy)}


def resumed(policy: str) -> Any:
    """A session's checkpoint goes on in a new model and a new session, as in a new process."""
    if policy == "plain":
        model, optimizer = made()
        return plainly(model, optimizer, 0, 6)
    model, optimizer = made()
    losses = trained(model, optimizer, policy, steps=3)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    kept = torch.load(file, map_location="cpu")
    model, optimizer = made()
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    return losses + trained(model, optimizer, policy, steps=3, first=3)


def then_plain(policy: str) -> Any:
    """A session, then plain torch, another session, and plain torch again, with one model and its optimizer."""
    model, optimizer = made()
    if policy == "plain":
        losses = plainly(model, optimizer, 0, 8)
    else:
        losses = []
        for first in (0, 4):
            with session(model, optimizer, policy) as um:
                for step in (first, first + 1):
                    with um.step():
                        losses.append(one_step(model, optimizer, um.to_device(batch(step))))
            for entries in optimizer.state.values():
                for name in ("exp_avg", "exp_avg_sq"):
                    entries[name] = entries[name].to("cuda")
            losses += plainly(model, optimizer, first + 2, 2)
            if first == 0:
                model.cpu()
    return losses


if __name__ == "__main__":
    main(globals())
