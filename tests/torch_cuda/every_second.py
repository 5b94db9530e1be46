"""What test_every_second.py runs: a session on a hollow GPU, and what its profile says that steps stood still for.

`python every_second.py CASE` prints sums of the profile's tables, and its totals, as JSON.
"""

import json
import sys
from typing import Any

import msgspec
import torch
from torch import nn

import umadvise

FIELDS = ("wait_copy_ns", "on_demand_wait_ns", "wait_room_ns", "compute_ns")
WIDTH = 1024


def told(case: dict[str, Any]) -> dict[str, Any]:
    """A case: rung, budget_bytes and steps."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    options = {"device": "cuda", "budget": case["budget_bytes"], "policy": case["rung"]}
    with umadvise.session(model, optimizer, **options) as um:
        for _ in range(case["steps"]):
            with um.step():
                optimizer.zero_grad()
                model(um.to_device(torch.ones(64, WIDTH))).square().mean().backward()
                optimizer.step()
        torch.cuda.synchronize()
        profile = um.profile()
    tables, swaps, times = profile.tables, profile.swaps, profile.times
    assert tables is not None
    names = ("role", "phase", "module", "tensor", "op")
    rows = {name: getattr(tables, name).rows for name in names}
    return {
        "sampled": [step.index for step in profile.steps if step.times is not None],
        "swaps": msgspec.to_builtins(swaps),
        "times": msgspec.to_builtins(times),
        "tables": {name: {field: sum(getattr(row, field) for row in rows[name]) for field in FIELDS} for name in names},
        "named": sum(row.name is not None and row.wait_copy_ns > 0 for row in rows["tensor"]),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps(told(json.loads(sys.argv[1]))) + "\n")
