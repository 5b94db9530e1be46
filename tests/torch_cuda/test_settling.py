"""Steps under large budgets stop mapping memory: real sessions, as large as on a GPU, whose kernels only take time.

Each chunk that is mapped takes an H100 36 us. tools/check_settling.py asks the same of replayed plans; what those
cannot show is copies that end sooner or later than in the step before, which once decided who got whose chunks.
"""

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

MIB = 1 << 20
HOLLOW = {"STAND_IN_HOLLOW_US": 90, "STAND_IN_ASYNC": 1, "STAND_IN_MIB": 80_000}
# In bfloat16, with half and a third of what each takes at its peak.
NETWORKS = {
    "bert_large": ({"batch": 32, "length": 512}, (24_037, 15_864)),
    "resnet50": ({"batch": 512}, (11_051, 7_294)),
}


def cases() -> Iterator[tuple[str, dict[str, int], str, int, int]]:
    """Network, its options, rung, budget in MiB, steps."""
    options, _ = NETWORKS["bert_large"]
    # It maps for 7 steps. If parts of shared chunks are handed on only when somebody wants them, it mostly never stops.
    yield "bert_large", options, "swap", 23_560, 14
    if os.environ.get("UMADVISE_SHORT"):
        return
    for network, (options, budgets_mib) in NETWORKS.items():
        for rung in ("swap", "swap+recompute"):
            for budget_mib in budgets_mib:
                yield network, options, rung, budget_mib, 18
    # They map for 13 and 26 steps, and for ever if a storage opens another chunk where its own is to stay free.
    yield "encoder", {"batch": 8, "length": 512}, "swap", 7_400, 26
    yield "encoder", {"batch": 12, "length": 512, "vocabulary": 8192}, "swap", 12_100, 40


@pytest.mark.parametrize(("network", "options", "rung", "budget_mib", "steps"), list(cases()))
def test_the_last_steps_map_nothing(
    run: Callable[..., Any], network: str, options: dict[str, int], rung: str, budget_mib: int, steps: int
) -> None:
    case = {"network": network, "options": options, "rung": rung, "budget_bytes": budget_mib * MIB, "steps": steps}
    seen = run("settling.py", json.dumps(case), **HOLLOW)
    assert seen["mapped"][0] > 0
    assert seen["mapped"][-3:] == [0, 0, 0], str(seen)
