"""What a step's time on a GPU went into: the report's tables add up to its totals, by phase, module, tensor and op."""

import json
from collections.abc import Callable
from typing import Any

import pytest

MIB = 1 << 20
HOLLOW = {"STAND_IN_HOLLOW_US": 200, "STAND_IN_ASYNC": 1, "STAND_IN_MIB": 8_000}
APART = 0.01


@pytest.mark.parametrize("rung", ["swap", "swap+recompute"])
def test_the_tables_add_up_where_ops_run_later(run: Callable[..., Any], rung: str) -> None:
    """Every step counts what ops stood still for, also those in which nobody waits for the device."""
    case: dict[str, Any] = {"rung": rung, "budget_bytes": 24 * MIB, "steps": 7}
    seen = run("every_second.py", json.dumps(case), **HOLLOW)
    assert set(range(1, 4)) <= set(seen["sampled"]) < set(range(1, case["steps"] + 1))  # and those that are recorded
    waited_ns = seen["swaps"]["wait_copy_ns"] + seen["swaps"]["wait_room_ns"]
    assert waited_ns > 0
    for table in ("role", "phase", "module", "tensor", "op"):
        sums = seen["tables"][table]
        assert sums["wait_copy_ns"] + sums["wait_room_ns"] == pytest.approx(waited_ns, rel=APART)
        assert sums["on_demand_wait_ns"] <= sums["wait_copy_ns"]
    for table in ("phase", "module", "op"):
        assert seen["tables"][table]["compute_ns"] == pytest.approx(seen["times"]["compute_ns"], rel=APART)
    assert seen["named"] > 0  # tensors that were waited for
