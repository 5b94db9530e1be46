"""Steps that torch's own means give less memory: beside real copies, closed forms, and what they leave out."""

from typing import Any

import numpy as np
import pytest
import torch
from networks import NETWORKS
from peer_programs import CHECKPOINTED, PEERS, SAVED_ON_CPU, MarkedStep, PeerStep, peer_step
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from umadvise.devices.catalogue import load_device
from umadvise.recording.dry import recorder as dry
from umadvise.recording.workload import Workload, training_step
from umadvise.records.enums import Phase
from umadvise.records.plan import Action, ActionKind, Plan
from umadvise.records.trace import Trace

pytestmark = pytest.mark.long

H100 = load_device("h100-sxm-80gb")
MIB = 1 << 20


def perceptron() -> Workload:
    """Operands that are saved twice, parameters, and one that is not contiguous."""

    class Perceptron(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.LayerNorm(40), nn.Linear(40, 24))

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            mixed: torch.Tensor = self.layers(batch)
            return (mixed * mixed.t()).tanh()

    model = Perceptron()
    return training_step(model, torch.optim.SGD(model.parameters(), lr=0.1), mean, torch.randn(24, 24))


def exponentials() -> Workload:
    """Four of them in a row on a MiB each, whose backward needs their results."""

    class Exponentials(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(1))

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            return (batch + self.bias).exp().exp().exp().exp()

    model = Exponentials()
    return training_step(model, torch.optim.SGD(model.parameters(), lr=0.1), mean, torch.randn(MIB // 4))


def gpt2() -> Workload:
    return NETWORKS["gpt2"](8, length=128, layers=3, width=64, heads=2, vocabulary=50)


def mean(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).mean()


def recorded(build: Any, peer: str) -> PeerStep:
    return peer_step(build, H100, PEERS[peer])


def count(trace: Trace, name: str, phase: Phase) -> int:
    return sum(each.name == name and each.phase == phase for each in map(trace.op, range(len(trace.ops))))


def test_what_save_on_cpu_copies_is_what_it_copies_in_a_real_step() -> None:
    own = save_on_cpu()
    sent: list[int] = []
    fetched: list[int] = []

    def pack(tensor: torch.Tensor) -> Any:
        packed = own.pack_hook(tensor)
        sent.append(packed[1].nbytes)
        return packed

    def unpack(packed: Any) -> torch.Tensor:
        tensor = own.unpack_hook(packed)
        fetched.append(tensor.nbytes)
        return tensor

    workload = perceptron()
    (model,) = workload.modules
    with saved_tensors_hooks(pack, unpack):
        output = model(*workload.inputs)
    output.mean().backward()
    step = recorded(perceptron, SAVED_ON_CPU)
    assert (step.host_bytes, step.device_bytes, step.copies) == (sum(sent), sum(fetched), len(sent) + len(fetched))
    copies = [f"umadvise_peers::copy_to_{place}" for place in ("host", "device")]
    kernels = [each.duration_ns for each in map(step.trace.op, range(len(step.trace.ops))) if each.name not in copies]
    link = H100.link
    lasts_ns = [link.d2h.fixed_ns.value + round(each * 1e9 / link.d2h.bytes_per_s.value) for each in sent]
    lasts_ns += [link.h2d.fixed_ns.value + round(each * 1e9 / link.h2d.bytes_per_s.value) for each in fetched]
    assert step.step_ns == sum(lasts_ns) + sum(filter(None, kernels))


def test_what_is_not_contiguous_is_made_so_before_it_is_copied() -> None:
    plain, step = dry.record(perceptron, device=H100), recorded(perceptron, SAVED_ON_CPU)
    assert count(plain, "aten::clone", Phase.FORWARD) == 0
    assert count(step.trace, "aten::clone", Phase.FORWARD) == 2  # the last weight and the product's operand, transposed


def test_peaks_of_a_chain_whose_results_are_saved() -> None:
    plain, saved = dry.record(exponentials, device=H100), recorded(exponentials, SAVED_ON_CPU)
    # The batch, all results, and two gradients; where they are on the host one of them, and the batch.
    assert 1 + 4 + 2 <= plain.peak_bytes / MIB < 1 + 4 + 2 + 0.01
    assert 1 + 1 + 2 <= saved.peak_bytes / MIB < 1 + 1 + 2 + 0.01


def test_checkpointed_layers_run_again_and_keep_their_inputs() -> None:
    plain, step = dry.record(gpt2, device=H100), recorded(gpt2, CHECKPOINTED)
    products = 3 * 4  # of three layers
    assert count(plain, "aten::addmm", Phase.FORWARD) == count(step.trace, "aten::addmm", Phase.FORWARD) == products
    assert count(plain, "aten::addmm", Phase.BACKWARD) == 0
    assert count(step.trace, "aten::addmm", Phase.BACKWARD) == products
    assert step.peak_bytes < plain.peak_bytes
    assert (step.host_bytes, step.device_bytes, step.copies) == (0, 0, 0)


def test_a_marked_step_keeps_all_but_what_a_plan_has_made_again() -> None:
    plain, marked = dry.record(gpt2, device=H100), MarkedStep(gpt2, H100)
    step = marked.trace
    assert np.array_equal(step.ops.flops, plain.ops.flops) and step.peak_bytes == plain.peak_bytes
    op = next(each for each in range(len(step.ops)) if step.op(each).name == "aten::gelu")
    target = step.op(op).accesses[-1].storage
    uses = step.accesses.op[step.accesses.storage == target].tolist()
    following = next(each for each in uses if step.op(each).phase == Phase.BACKWARD)
    before = max(each for each in uses if each < following)
    actions = [Action(ActionKind.DROP, before, target, after=True)]
    actions.append(Action(ActionKind.RECOMPUTE, following, target, argument=op))
    again = marked.running_again(Plan.from_actions(step, actions, "by hand", step.peak_bytes))
    assert count(again, "aten::gelu", Phase.BACKWARD) == 1
    assert len(again.ops) == len(step.ops) + 1


def test_layers_with_running_statistics_are_left_to_torch() -> None:
    def resnet() -> Workload:
        return NETWORKS["resnet50"](2, image=64, width=4, layers=(1, 1, 1, 1))

    checkpointed, marked = recorded(resnet, CHECKPOINTED), MarkedStep(resnet, H100)
    assert np.array_equal(marked.trace.ops.flops, checkpointed.trace.ops.flops)


@pytest.mark.parametrize("peer", PEERS)
def test_a_recording_repeats_exactly(peer: str) -> None:
    assert recorded(gpt2, peer).trace.digest == recorded(gpt2, peer).trace.digest
