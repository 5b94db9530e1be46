"""Training loops of a few steps as programs for a GPU have them; the same code runs in plain torch and in sessions."""

import copy
import io
from collections.abc import Callable
from typing import Any

import torch
import training_variants
from fast_networks import FAST_NETWORKS
from region_backend import regions
from small_networks import Batch, Cnn, Network
from torch import nn
from training_variants import Loop

import umadvise
from umadvise.torch_seam.compiling import compile_module

Move = Callable[[torch.Tensor], torch.Tensor]
NETWORKS = {name: FAST_NETWORKS[name] for name in ("transformer", "lstm", "mlp")}
NETWORKS["cnn"] = Network("cnn", lambda: Cnn(16, 3, 48), lambda: (torch.randn(24, 3, 48, 48), torch.randint(10, (24,))))
"""Each needs 30 MiB and more, most of it in tensors of a chunk of 2 MiB and more."""


class OnCuda(Loop):
    """Batches come from the CPU's generator, and are moved by whatever moves them."""

    move: Move

    def batch(self, step: int) -> Batch:
        inputs, targets = super().batch(step)
        return self.move(inputs), self.move(targets)


class Bfloat16(OnCuda):
    def loss(self, inputs: torch.Tensor, targets: torch.Tensor, step: int) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return super().loss(inputs, targets, step)


class Float16Scaled(OnCuda):
    """With clipping, whose norm is that of unscaled gradients; the first scale is too large."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.scaler = torch.amp.GradScaler("cuda", init_scale=2.0**22, growth_interval=2)

    def step(self, step: int) -> None:
        self.optimizer.zero_grad()
        inputs, targets = self.batch(step)
        with torch.autocast("cuda", torch.float16):
            loss = self.loss(inputs, targets, step)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.seen += [loss.detach(), norm, torch.tensor(self.scaler.get_scale())]


class Doubled(torch.autograd.Function):
    """An op of the user's that wants float32 under autocast."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(tensor)
        return tensor * 2

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (tensor,) = ctx.saved_tensors
        return gradient * 2 + tensor * 0


class OwnFunction(OnCuda):
    def outputs(self, inputs: torch.Tensor, step: int) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            outputs: torch.Tensor = Doubled.apply(super().outputs(inputs, step))
        return outputs


class SideStream(OnCuda):
    """The model in a stream of its own, and so its backward; the rest in the one that is current."""

    def outputs(self, inputs: torch.Tensor, step: int) -> torch.Tensor:
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            outputs = super().outputs(inputs, step)
        inputs.record_stream(side)
        current.wait_stream(side)
        outputs.record_stream(current)
        return outputs


class TwoStreams(OnCuda):
    """Two forwards and two losses, each in a stream of its own; what they make is freed while it is still in use."""

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor, step: int) -> torch.Tensor:
        current, losses = torch.cuda.current_stream(), []
        for _ in range(2):
            side = torch.cuda.Stream()
            side.wait_stream(current)
            with torch.cuda.stream(side):
                losses.append(super().loss(inputs, targets, step))
            for tensor in (inputs, targets):
                tensor.record_stream(side)
            current.wait_stream(side)
            losses[-1].record_stream(current)
        return losses[0] + losses[1]


class CopyStream(OnCuda):
    """A prefetcher: the next batch comes from page-locked memory, in a stream of its own, while a step is computed."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.copies = torch.cuda.Stream()
        self.next: Batch | None = None

    def fetch(self, step: int) -> Batch:
        with torch.cuda.stream(self.copies):
            inputs, targets = (tensor.pin_memory() for tensor in Loop.batch(self, step))
            return inputs.to("cuda", non_blocking=True), targets.cuda(non_blocking=True)

    def batch(self, step: int) -> Batch:
        ready = self.next or self.fetch(step)
        current = torch.cuda.current_stream()
        current.wait_stream(self.copies)
        for tensor in ready:
            tensor.record_stream(current)
        self.next = self.fetch(step + 1)
        return ready


class LateLosses(OnCuda):
    """Losses go to page-locked memory without a wait, and are read when their event has come; steps are timed."""

    def gradients(self, step: int) -> None:
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        super().gradients(step)
        host = torch.empty((), pin_memory=True)
        host.copy_(self.seen.pop(), non_blocking=True)
        ended.record()
        ended.synchronize()
        assert began.elapsed_time(ended) >= 0
        self.seen.append(host)


class SaveOnCpu(OnCuda):
    def outputs(self, inputs: torch.Tensor, step: int) -> torch.Tensor:
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            return super().outputs(inputs, step)


class Resume(OnCuda):
    """Every other step goes on from a file."""

    def step(self, step: int) -> None:
        super().step(step)
        if step % 2 == 1:
            file = io.BytesIO()
            torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, file)
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter.zero_()
            file.seek(0)
            kept = torch.load(file, map_location="cuda")
            self.model.load_state_dict(kept["model"])
            self.optimizer.load_state_dict(kept["optimizer"])


class MovingAverage(OnCuda):
    """A deep copy of the model follows it, and is evaluated."""

    def step(self, step: int) -> None:
        if step == 0:
            self.average = copy.deepcopy(self.model).eval().requires_grad_(False)
        super().step(step)
        with torch.no_grad():
            for mean, parameter in zip(self.average.parameters(), self.model.parameters(), strict=True):
                mean.lerp_(parameter, 0.25)
        with torch.inference_mode():
            inputs, _ = self.batch(step)
            self.seen.append(self.average(inputs).square().mean())


@torch.no_grad()
def updated(parameter: torch.Tensor) -> None:
    assert parameter.grad is not None
    parameter.add_(parameter.grad, alpha=-0.001)
    parameter.grad = None


class StepInBackward(OnCuda):
    """Each parameter is updated as soon as its gradient is there, which is freed at once."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        for parameter in self.model.parameters():
            parameter.register_post_accumulate_grad_hook(updated)


class KeptGradients(OnCuda):
    """Gradients are zeroed in place, and torch is asked about memory, and to give it back, in every step."""

    def step(self, step: int) -> None:
        self.gradients(step)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        assert torch.cuda.memory_allocated() > 0
        assert torch.cuda.max_memory_allocated() >= torch.cuda.memory_allocated()


class ReadBack(OnCuda):
    """Values go to numpy, to lists and to Python, and their addresses to whoever asks."""

    def outputs(self, inputs: torch.Tensor, step: int) -> torch.Tensor:
        outputs = super().outputs(inputs, step)
        assert outputs.data_ptr() != 0
        array = outputs.detach().cpu().numpy()
        most = outputs.detach().topk(3, dim=-1).values[0].tolist()
        self.seen += [torch.tensor(float(array.sum())), torch.tensor(most[0])]
        return outputs


_OF_ANY_DEVICE = ["plain", "accumulation", "checkpoint", "checkpoint-reentrant", "retain-graph", "double-backward"]
_OF_ANY_DEVICE += ["in-place", "clipped", "evaluation", "last-batch", "other-branch"]


class Compiled(OnCuda):
    """In graphs as Inductor makes them, forward and backward, but with torch's kernels."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        torch._dynamo.reset()
        for child in self.model.children():
            made = umadvise.compile if next(child.children(), None) is not None else compile_module
            made(child, backend=regions)


VARIANTS: dict[str, type[OnCuda]] = {
    "compiled": Compiled,
    "float16": Float16Scaled,
    "two-streams": TwoStreams,
    "copy-stream": CopyStream,
    "side-stream": SideStream,
    "bfloat16": Bfloat16,
    "own-function": OwnFunction,
    "late-losses": LateLosses,
    "save-on-cpu": SaveOnCpu,
    "resume": Resume,
    "moving-average": MovingAverage,
    "step-in-backward": StepInBackward,
    "kept-gradients": KeptGradients,
    "read-back": ReadBack,
    **{name: type(name, (OnCuda, training_variants.VARIANTS[name]), {}) for name in _OF_ANY_DEVICE},
}
