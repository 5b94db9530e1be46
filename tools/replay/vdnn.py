"""Rhu et al. 2016 (vDNN): its baseline's memory. What its policies do waits for their planners.

AlexNet's share of feature extraction layers, 81 %, cannot be had together with its 1.1 GB and a gradient for
each weight: the full layers' weights alone are 0.22 GiB, a fifth of it, and with their gradients two fifths.
"""

from collections.abc import Iterable, Iterator
from functools import partial

from networks import NETWORKS

from replay.network_wide import NetworkWide, network_wide
from replay.outcome import Outcome, number, pending, within
from replay.published import Figure, known

TABLE = "vdnn"
MEMORY_BOUND = 0.10
_GIB = 1 << 30
_ALEXNET_BATCH = 128  # section 2.2: the best performing batch for AlexNet


def replay(figures: Iterable[Figure]) -> Iterator[Outcome]:
    """Predicts each figure of the table that needs no policy."""
    for figure in figures:
        policy, quantity = figure.key[2:]
        if policy == "baseline":
            memory = _measure(figure)
            yield within(figure, memory.total / _GIB, MEMORY_BOUND, f"GiB; {_parts(memory)}")
        elif quantity == "feature_map_share":
            memory = _measure(figure)
            without = 100 * memory.without_weight_gradients.extraction_share
            note = f"all but the full layers' W, dW and Y; without any dW it would be {number(without)}"
            yield within(figure, 100 * memory.extraction_share, MEMORY_BOUND, note)
        else:
            yield pending(figure, f"the vDNN planner ({policy.replace('_', ' ')})")


def _measure(figure: Figure) -> NetworkWide:
    network, batch, *_ = figure.key
    build = known(figure, network.partition("_")[0], NETWORKS)  # vgg16_32 is VGG-16 with a batch of 32
    return network_wide(partial(build, int(batch or _ALEXNET_BATCH)))


def _parts(memory: NetworkWide) -> str:
    parts = {
        "Y": memory.feature_maps,
        "W": memory.weights,
        "dW": memory.weight_gradients,
        "dX dY": memory.gradient_maps,
        "workspace": memory.workspace,
    }
    return ", ".join(f"{name} {bytes_ / _GIB:.2f}" for name, bytes_ in parts.items())
