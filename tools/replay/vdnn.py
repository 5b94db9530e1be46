"""Rhu et al. 2016 (vDNN): its baseline's memory. What its policies do waits for their planners."""

from collections.abc import Iterable, Iterator
from functools import partial

from networks import NETWORKS

from replay.network_wide import NetworkWide, network_wide
from replay.outcome import Outcome, pending, within
from replay.published import Figure

TABLE = "vdnn"
MEMORY_BOUND = 0.10
_GIB = 1 << 30
_ALEXNET_BATCH = 128  # section 2.2: the best performing batch for AlexNet


def replay(figures: Iterable[Figure]) -> Iterator[Outcome]:
    """Predicts each figure of the table that needs no policy."""
    for figure in figures:
        network, batch, policy, quantity = figure.key
        if policy == "baseline":
            memory = _measure(network, batch)
            yield within(figure, memory.total / _GIB, MEMORY_BOUND, f"GiB; {_parts(memory)}")
        elif quantity == "feature_map_share":
            share = 100 * _measure(network, batch).extraction_share
            yield within(figure, share, MEMORY_BOUND, "of the same sum: all but the full layers' W, dW and Y")
        else:
            yield pending(figure, f"the vDNN planner ({policy.replace('_', ' ')})")


def _measure(network: str, batch: str) -> NetworkWide:
    name = network.partition("_")[0]  # vgg16_32 is VGG-16 with a batch of 32
    return network_wide(partial(NETWORKS[name], int(batch or _ALEXNET_BATCH)))


def _parts(memory: NetworkWide) -> str:
    parts = {
        "Y": memory.feature_maps,
        "W": memory.weights,
        "dW": memory.weight_gradients,
        "dX dY": memory.gradient_maps,
        "workspace": memory.workspace,
    }
    return ", ".join(f"{name} {bytes_ / _GIB:.2f}" for name, bytes_ in parts.items())
