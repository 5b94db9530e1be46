"""What test_owners.py runs: storages whose memory torch's CUDA allocator gave out are told of another address."""

import gc
import json
import sys

import torch
from owners_core import Core

import umadvise
from umadvise.torch_seam import runtime

SIZE = 1 << 18


def patched() -> Core:
    """The core of the patched device."""
    umadvise.patch(device="cuda")
    return Core(runtime.current().device)


def live(core: Core) -> int:
    """Allocations that there are."""
    gc.collect()
    return core.device.info().live_allocations


def freed() -> list[int]:
    """Torch frees what has moved, and what it was given meanwhile at the address from before."""
    core = patched()
    counts = [live(core)]
    for _ in range(3):
        tensor = torch.full((SIZE,), 3.0, device="cuda")
        left = tensor.data_ptr()
        core.move_all(tensor)
        others = [torch.full((SIZE,), 4.0, device="cuda") for _ in range(3)]
        assert left in [other.data_ptr() for other in others]
        core.move_all(tensor, *others)
        del others
        assert bool((tensor == 3).all())
        del tensor
        counts.append(live(core))
    return counts


def resized() -> list[int]:
    """A storage that has moved gets other memory, and none."""
    core = patched()
    before = live(core)
    tensor = torch.full((SIZE,), 3.0, device="cuda")
    core.move_all(tensor)
    tensor.resize_(2 * SIZE)
    assert bool((tensor[:SIZE] == 3).all())
    core.move_all(tensor)
    tensor.untyped_storage().resize_(0)
    return [before, live(core)]


def lent() -> list[int]:
    """A stream is told of memory before it moves and after, and has it freed."""
    core = patched()
    before, side = live(core), torch.cuda.Stream()
    tensor = torch.full((SIZE,), 3.0, device="cuda")
    tensor.record_stream(side)
    core.move_all(tensor)
    tensor.record_stream(side)
    del tensor
    other = torch.full((SIZE,), 4.0, device="cuda")
    assert bool((other == 4).all())
    del other
    return [before, live(core)]


def trained() -> list[list[float]]:
    """The same losses, without moves and with all parameters and gradients moved in each step."""
    core, losses = patched(), []
    for moving in (False, True):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).to("cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        losses.append([])
        for _ in range(3):
            loss = model(torch.ones(4, 64, device="cuda")).square().mean()
            if moving:
                core.move_all(*model.parameters())
            loss.backward()
            if moving:
                core.move_all(*[parameter.grad for parameter in model.parameters() if parameter.grad is not None])
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            losses[-1].append(loss.item())
    return losses


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps(globals()[sys.argv[1]]()) + "\n")
