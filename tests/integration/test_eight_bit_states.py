"""Optimizers with state that is quantized in blocks of 256, in custom ops of bitsandbytes' schema: bits are equal.

bitsandbytes' own kernels for CPUs are such ops: of torch's ops, and of functions in C that are given addresses.
"""

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from small_networks import same_bits
from torch import nn

import umadvise

BLOCK, WIDTH, STEPS = 256, 512, 4
MIB = 1 << 20
SCHEMA = (
    "(Tensor(a0!) g, Tensor(a1!) p, Tensor(a2!) state1, Tensor(a3!)? state2, Tensor(a4!) absmax1, "
    "Tensor(a5!)? absmax2, int step, float lr) -> ()"
)


def taken(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return ((codes.float() - 128) / 127).view(-1, BLOCK).mul(scales.unsqueeze(1)).view(codes.shape)


def given(values: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> None:
    blocks = values.view(-1, BLOCK)
    scales.copy_(blocks.abs().amax(1).clamp(min=1e-12))
    codes.copy_((blocks / scales.unsqueeze(1) * 127).round().add(128).view(codes.shape))


def through_address(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """What a function in C sees that is given the address and the size."""
    size = tensor.numel() * tensor.element_size()
    array = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(tensor.data_ptr()))
    return array.view({torch.uint8: np.uint8, torch.float32: np.float32}[tensor.dtype])


def taken_in_c(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    values = torch.empty(codes.shape)
    signed = (through_address(codes).astype(np.float32) - 128) / 127
    through_address(values)[:] = (signed.reshape(-1, BLOCK) * through_address(scales)[:, None]).reshape(-1)
    return values


def given_in_c(values: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> None:
    blocks = through_address(values).reshape(-1, BLOCK)
    through_address(scales)[:] = np.maximum(np.abs(blocks).max(1), 1e-12)
    through_address(codes)[:] = (np.rint(blocks / through_address(scales)[:, None] * 127) + 128).reshape(-1)


def update(take: Callable[..., torch.Tensor], give: Callable[..., None]) -> Callable[..., None]:
    def kernel(
        g: torch.Tensor,
        p: torch.Tensor,
        state1: torch.Tensor,
        state2: torch.Tensor | None,
        absmax1: torch.Tensor,
        absmax2: torch.Tensor | None,
        step: int,
        lr: float,
    ) -> None:
        first = take(state1, absmax1).mul_(0.9).add_(g, alpha=0.1)
        if state2 is None or absmax2 is None:
            p.add_(first.sign(), alpha=-lr)
        else:
            second = take(state2, absmax2).mul_(0.99).addcmul_(g, g, value=0.01)
            p.addcdiv_(first / (1 - 0.9**step), (second / (1 - 0.99**step)).sqrt().add_(1e-6), value=-lr)
            give(second, state2, absmax2)
        give(first, state1, absmax1)

    return kernel


@pytest.fixture(scope="module")
def library() -> Iterator[Any]:
    made = torch.library.Library("umadvise_eight_bit", "DEF")
    for name, how in {"ops": (taken, given), "in_c": (taken_in_c, given_in_c)}.items():
        made.define(f"{name}{SCHEMA}")
        made.impl(name, update(*how), "CPU")
    yield torch.ops.umadvise_eight_bit
    made._destroy()


class EightBit(torch.optim.Optimizer):
    """Adam, or with one state Lion's sign of the mean."""

    def __init__(self, parameters: Any, kernel: Any, *, states: int) -> None:
        super().__init__(parameters, {"lr": 1e-3})
        self.kernel, self.states = kernel, states

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # noqa: ARG002  # torch's signature
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["step"] = 0
                    for index in range(1, self.states + 1):
                        state[f"state{index}"] = torch.full_like(parameter, 128, dtype=torch.uint8)
                        state[f"absmax{index}"] = torch.zeros(parameter.numel() // BLOCK)
                state["step"] += 1
                names = "state1", "state2", "absmax1", "absmax2"
                self.kernel(parameter.grad, parameter, *(state.get(name) for name in names), state["step"], group["lr"])


def train(kernel: Any, states: int, um: Callable[[nn.Module, EightBit], Any] | None = None) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(10)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 32)
    optimizer = EightBit(model.parameters(), kernel, states=states)
    losses = []

    def step(put: Callable[[torch.Tensor], torch.Tensor] = lambda x: x) -> None:
        loss = model(put(torch.linspace(-1, 1, 16 * WIDTH).reshape(16, WIDTH))).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().clone())

    if um is None:
        for _ in range(STEPS):
            step()
    else:
        with um(model, optimizer) as session:
            for _ in range(STEPS):
                with session.step():
                    step(session.to_device)
            swaps, faults = session.swap_counters(), session.counters().fault_groups
            assert swaps.swap_ins or faults
            assert swaps.used_peak_bytes <= 12 * MIB
    kept = [state[name] for state in optimizer.state.values() for name in state if name != "step"]
    return [*losses, *(each.detach() for each in model.parameters()), *kept]


@pytest.mark.parametrize("policy", ["swap", "advise"])
@pytest.mark.parametrize("states", [1, 2])
@pytest.mark.parametrize("kernel", ["ops", "in_c"])
def test_bits_are_those_without_a_session(kernel: str, states: int, policy: str, library: Any) -> None:
    op = getattr(library, kernel)
    expected = train(op, states)

    def session(model: nn.Module, optimizer: EightBit) -> Any:
        device = umadvise.EmulatedDevice(capacity="16MiB" if policy == "advise" else "64MiB")
        return umadvise.session(model, optimizer, device=device, budget="12MiB", policy=policy)

    found = train(op, states, session)
    assert all(map(same_bits, found, expected))
    assert len(found) == STEPS + 20 + 20 * 2 * states
