"""Rhu et al. 2016 (vDNN): its baseline's memory, and what its policies take and lose.

How the paper's words are read, where they leave a choice:

- Memory of a policy is that of vDNN's manager, which holds the feature extraction layers (section 4.1: classification
  layers are Torch's). The 92 % that `all` saves on average cannot be had otherwise: the weights of the full layers
  alone are a fifth of AlexNet's baseline. Savings are relative to the whole baseline.
- Its average is that over the layers as they run, forward and back. Weighted with their time OverFeat's 83 % would be
  55 and fail, AlexNet's 61 % would be 62, and the averages of six 3 to 14 points lower.
- The pool has all of the device's memory (section 3.2), and the full layers' W and dW are in it.
- Performance is that of the feature extraction layers, relative to the fastest algorithms without a copy (section 5.3).
- Averages are over the networks of section 4.3, VGG-16 with batches of 32 to 256; a policy counts also where it
  does not fit.

AlexNet's share of feature extraction layers, 81 %, cannot be had together with its 1.1 GB and a gradient for
each weight: the full layers' weights alone are 0.22 GiB, a fifth of it, and with their gradients two fifths.
"""

import functools
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, replace

import numpy as np
from networks import NETWORKS

from replay.network_wide import NetworkWide, network_wide
from replay.outcome import FigureOutcome, calibration, holds, number, within
from replay.published import Figure, known
from replay.vdnn_step import VdnnStep, vdnn_step
from umadvise import planners
from umadvise.devices.catalogue import load_device
from umadvise.planners.papers.convolution import SPEED_RATIO, with_algorithms, workspace_bytes
from umadvise.planners.papers.vdnn import choose
from umadvise.simulator.swap import simulate_swap

TABLE = "vdnn"
MEMORY_BOUND = 0.10
POLICY_MEMORY_BOUND = 0.20
AVERAGE_POINTS = 10
ORACLE_POINTS = 6
LEAST_THROUGHPUT = 95
_DEVICE = "k40"
_GIB = 1 << 30
_WITHOUT_END = 1 << 42
_BATCHES = {"alexnet": 128, "overfeat": 128}  # section 2.2: the best performing batch for AlexNet
_SIX = (("alexnet", 128), ("overfeat", 128), *(("vgg16", batch) for batch in (32, 64, 128, 256)))
_POLICIES = {
    "all_memory_optimal": ("all", "memory_optimal"),
    "all_performance_optimal": ("all", "performance_optimal"),
    "conv_memory_optimal": ("conv", "memory_optimal"),
    "conv_performance_optimal": ("conv", "performance_optimal"),
    "dyn": ("dyn", ""),
}


@dataclass(frozen=True)
class PolicyRun:
    """A step under a policy.

    Attributes:
        most_gib: the most of the manager's memory at once.
        average_gib: over the layers as they run.
        offloaded_gib: what goes to the host.
        throughput: speed of the feature extraction layers, in percent of the fastest algorithms' without copies.
        note: what `dyn` chose.
    """

    most_gib: float
    average_gib: float
    offloaded_gib: float
    throughput: float
    note: str


def replay(figures: Iterable[Figure]) -> Iterator[FigureOutcome]:
    """Predicts each figure of the table."""
    for figure in figures:
        network, _, policy, quantity = figure.key
        if policy == "baseline":
            memory = _baseline(*_network(figure))
            yield within(figure, memory.total / _GIB, MEMORY_BOUND, f"GiB; {_parts(memory)}")
        elif quantity == "feature_map_share":
            memory = _baseline(*_network(figure))
            without = 100 * memory.without_weight_gradients.extraction_share
            note = f"all but the full layers' W, dW and Y; without any dW it would be {number(without)}"
            yield within(figure, 100 * memory.extraction_share, MEMORY_BOUND, note)
        elif network == "average_of_six":
            known(figure, policy, _POLICIES)
            value = float(np.mean([_quantity(figure, *each) for each in _SIX]))
            yield _points(figure, value, AVERAGE_POINTS)
        else:
            yield _of_one(figure, *_network(figure))


def _network(figure: Figure) -> tuple[str, int]:
    name, batch = figure.key[0].partition("_")[0], figure.key[1]  # vgg16_32 is VGG-16 with a batch of 32
    known(figure, name, NETWORKS)
    return name, int(batch or known(figure, name, _BATCHES))


def _of_one(figure: Figure, network: str, batch: int) -> FigureOutcome:
    policy, quantity = figure.key[2:]
    known(figure, policy, _POLICIES)
    value = _quantity(figure, network, batch)
    note = _run(network, batch, policy).note
    if quantity in ("max_memory", "offloaded"):
        return within(figure, value, POLICY_MEMORY_BOUND, note)
    if quantity == "performance_loss":
        return calibration(figure, value, f"a ratio of {SPEED_RATIO} of implicit GEMM to the tiled FFT from this row")
    if quantity == "throughput_of_baseline":
        predicted = number(value)
        bound = f"{LEAST_THROUGHPUT} or more"
        return holds(figure, value >= LEAST_THROUGHPUT, predicted, bound, error=value / figure.middle - 1, note=note)
    return _points(figure, value, ORACLE_POINTS if quantity == "throughput_of_oracle" else AVERAGE_POINTS, note)


def _points(figure: Figure, value: float, points: int, note: str = "") -> FigureOutcome:
    near = abs(value - figure.middle) <= points
    return holds(figure, near, number(value), f"{points} points", error=value / figure.middle - 1, note=note)


def _quantity(figure: Figure, network: str, batch: int) -> float:
    """What a figure asks for, of one network."""
    run = _run(network, batch, figure.key[2])
    baseline_gib = _baseline(network, batch).total / _GIB
    meanings = {
        "max_memory": run.most_gib,
        "offloaded": run.offloaded_gib,
        "max_memory_saved": 100 * (1 - run.most_gib / baseline_gib),
        "average_memory_saved": 100 * (1 - run.average_gib / baseline_gib),
        "performance_loss": 100 - run.throughput,
        "throughput_of_baseline": run.throughput,
        "throughput_of_oracle": run.throughput,
    }
    return known(figure, figure.key[3], meanings)


@functools.cache
def _baseline(network: str, batch: int) -> NetworkWide:
    return network_wide(functools.partial(NETWORKS[network], batch))


@functools.cache
def _step(network: str, batch: int) -> VdnnStep:
    return vdnn_step(functools.partial(NETWORKS[network], batch), load_device(_DEVICE))


@functools.cache
def _run(network: str, batch: int, policy: str) -> PolicyRun:
    """Plans for the step as it is, and executes it with the algorithms that the policy takes."""
    device, step = load_device(_DEVICE), _step(network, batch)
    trace, (transfer, algorithm) = step.trace, _POLICIES[policy]
    if transfer == "dyn":
        plan = planners.run("vdnn-dyn", trace, device, device.memory_bytes)
        fast = choose(trace, device.memory_bytes).fast
        slow = int(((workspace_bytes(trace) > 0) & ~fast).sum())
        note = f"GiB and percent; transfers {plan.options['transfer']}, {slow} passes of convolutions downgraded"
    else:
        plan = planners.run(f"vdnn-{transfer}", trace, device, _WITHOUT_END, algorithm=algorithm)
        fast = np.full(len(trace.ops), algorithm == "performance_optimal")
        note = "GiB"
    chosen = with_algorithms(trace, fast)
    done = simulate_swap(chosen, device, replace(plan, trace_digest=chosen.structure_digest), spans=False)
    managed_gib = (done.live_bytes - step.classifier_weight_bytes) / _GIB
    fastest_ns = trace.duration_ns - step.classifier_ns
    return PolicyRun(
        most_gib=float(managed_gib.max()),
        average_gib=float(managed_gib.mean()),
        offloaded_gib=done.result.swap_out_bytes / _GIB,
        throughput=100 * fastest_ns / (done.step_ns - step.classifier_ns),
        note=note,
    )


def _parts(memory: NetworkWide) -> str:
    parts = zip(("Y", "W", "dW", "dX dY", "workspace"), astuple(memory), strict=False)
    return ", ".join(f"{name} {bytes_ / _GIB:.2f}" for name, bytes_ in parts)
