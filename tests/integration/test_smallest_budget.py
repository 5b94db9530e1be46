"""Networks of small tensors train in half of what they need, and in little more than their largest op needs."""

import pytest
from floor_networks import NETWORKS
from smallest_budget import CHUNK_BYTES, floor_of


@pytest.mark.parametrize("network", NETWORKS)
def test_what_is_small_leaves_too(network: str) -> None:
    floor = floor_of(network, small=True, search=False)
    assert floor.half_runs
    assert floor.op_bytes < floor.smallest_bytes + CHUNK_BYTES
    assert floor.smallest_bytes <= floor.bar_bytes < floor.need_bytes
