"""`torch.compile` and its kin in sessions: what they give is what they give without umadvise, to the last bit."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from small_networks import same_bits
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint
from usable_policies import RUNGS

import umadvise

ROWS, WIDTH = 300, 600
Step = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def network() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(WIDTH, 1000),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(1000, WIDTH),
        nn.BatchNorm1d(WIDTH),
        nn.Linear(WIDTH, 1000),
    )
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def batch() -> torch.Tensor:
    return torch.linspace(-1, 1, ROWS * WIDTH).reshape(ROWS, WIDTH)


def train(forward: Step, optimizer: torch.optim.Optimizer, step: Callable[[], Any], move: Step) -> list[torch.Tensor]:
    torch.manual_seed(1)
    losses = []
    for _ in range(4):
        with step():
            loss = forward(move(batch())).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach().clone())
    return losses


def in_session(policy: str, backend: str, *, inside: bool, make: Callable[..., Step], **options: Any) -> bool:
    """Whether training in a session gives what it gives without one."""
    model, optimizer = network()
    expected = train(make(model, backend, **options), optimizer, nullcontext, lambda x: x)
    torch._dynamo.reset()
    model, optimizer = network()
    forward = None if inside else make(model, backend, **options)
    capacity = "96MiB" if policy == "resident" else "24MiB"
    warnings.filterwarnings("error", "Using `torch.compile")  # of hooks; pytest forgets it after the test
    with umadvise.session(model, optimizer, device="emulated", capacity=capacity, policy=policy) as um:
        found = train(forward or make(model, backend, **options), optimizer, um.step, um.to_device)
        moved = um.counters().fault_groups or um.swap_counters().swap_out_bytes
    assert moved or policy == "resident"
    return all(map(same_bits, found, expected))


def compiled_method(model: nn.Module, backend: str) -> Step:
    model.compile(backend=backend)
    return model


def compiled_function(model: nn.Module, backend: str) -> Step:
    return torch.compile(lambda x: checkpoint(model[5], model[:5](x), use_reentrant=False), backend=backend)  # type: ignore[index]


def compiled_module(model: nn.Module, backend: str, **options: Any) -> Step:
    return torch.compile(model, backend=backend, **options)


@pytest.mark.parametrize("policy", RUNGS)
def test_a_compiled_module_trains_under_every_policy(policy: str) -> None:
    assert in_session(policy, "aot_eager", inside=policy in ("window", "auto"), make=compiled_module)


@pytest.mark.parametrize(("make", "inside"), [(compiled_method, True), (compiled_function, False)])
def test_whatever_is_compiled_wherever(make: Callable[..., Step], inside: bool) -> None:
    assert in_session("swap", "eager", inside=inside, make=make)


def test_the_hooks_of_a_session_break_no_graph() -> None:
    assert in_session("advise", "eager", inside=True, make=compiled_module, fullgraph=True)


def test_kernels_of_inductor() -> None:
    """They read and write by address, in no op."""
    assert in_session("advise", "inductor", inside=False, make=compiled_module)


# ---- whatever else traces or transforms a module ---------------------------------------------------------------------


def compiled_update(model: nn.Module) -> torch.Tensor:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(batch()).square().mean().backward()
    torch.compile(optimizer.step, backend="eager")()
    optimizer.zero_grad()
    return next(model.parameters()).detach().sum()


def compiled_backward(model: nn.Module) -> torch.Tensor:
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        model(batch()).square().mean().backward()
    gradient = next(model.parameters()).grad
    model.zero_grad()
    return gradient.sum()


def transformed(model: nn.Module) -> torch.Tensor:
    parameters = dict(model.named_parameters())

    def loss(values: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(model, values, (batch(),)).square().mean()

    gradients = torch.func.grad(loss)(parameters)
    rows = torch.func.vmap(lambda row: torch.func.functional_call(model, parameters, (row,)))(batch())
    tangent = torch.func.jvp(loss, (parameters,), (parameters,))[1]
    return torch.stack([*(each.sum() for each in gradients.values()), rows.sum(), tangent])


class Cubed(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x**3

    @staticmethod
    def setup_context(context: Any, inputs: tuple[torch.Tensor], _output: torch.Tensor) -> None:
        context.save_for_backward(*inputs)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (x,) = context.saved_tensors
        return 3 * x**2 * gradients[0]


def higher_order(model: nn.Module) -> torch.Tensor:
    """torch dispatches such operators in Python."""
    per_row = torch.func.vmap(torch.func.grad(lambda row: Cubed.apply(row).sum()))(batch())
    chosen = torch.cond(torch.tensor(True), lambda x: x.sin(), lambda x: x.cos(), (per_row,))
    return model(chosen)


def broken_graph(model: nn.Module) -> torch.Tensor:
    """After a graph break Dynamo compiles whatever frames run: those of the doors too."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        y = model(x)
        torch._dynamo.graph_break()
        return y.cpu().sum() + float(y.to("cpu").detach().numpy().sum()) + y.data_ptr() * 0

    return torch.compile(forward, backend="eager")(batch())


TRACERS = {
    "export": lambda model: torch.export.export(model, (batch(),)).module()(batch()),
    "script": lambda model: torch.jit.script(model)(batch()),
    "trace": lambda model: torch.jit.trace(model, (batch(),))(batch()),
    "fx": lambda model: torch.fx.symbolic_trace(model)(batch()),
    "make_fx": lambda model: make_fx(model)(batch())(batch()),
    "func": transformed,
    "higher order": higher_order,
    "update": compiled_update,
    "backward": compiled_backward,
    "graph break": broken_graph,
}


@pytest.mark.filterwarnings("ignore")  # torch's own, of what is deprecated
def test_tracers_and_transforms() -> None:
    def results(model: nn.Module) -> dict[str, torch.Tensor]:
        torch._dynamo.reset()
        return {name: use(model).detach().cpu().clone() for name, use in TRACERS.items()}

    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(WIDTH, 1000), nn.ReLU(), nn.Linear(1000, WIDTH))

    expected = results(model())
    watched = model()
    with umadvise.session(watched, device="emulated", capacity="24MiB", policy="swap") as um:
        found = results(watched)
        assert um.swap_counters().swap_outs
    assert [name for name in expected if not same_bits(found[name], expected[name])] == []


def test_names_are_the_modules_own() -> None:
    model, optimizer = network()
    compiled = torch.compile(model, backend="eager")
    with umadvise.session(compiled, optimizer, device="emulated", capacity="24MiB", policy="advise") as um:
        with um.step():
            compiled(batch()).sum().backward()
            optimizer.step()
        with um.step():
            model(batch())  # eagerly
        names = {allocation.name for allocation in umadvise.torch_seam.runtime.current().device.allocations()}
        tables = um.profile().tables
        assert tables is not None
        modules = {row.module or "" for row in tables.module.rows}
    assert {"0.weight", "3.bias", "4.running_mean", "0.weight.exp_avg"} <= names
    assert not any("_orig_mod" in name or "Optimized" in name for name in names | modules)
    assert {"Sequential", "0"} <= modules
