"""What test_settling.py runs: a session on a GPU that is larger than the machine's memory (STAND_IN_HOLLOW_US).

`python settling.py CASE` prints how many chunks the driver mapped in each step, how large they are, and what the
session needed at its peak, as JSON.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "gpu_check"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import stand_in
from bert import bert_large
from networks import NETWORKS
from ours import training
from workloads import SizedNetwork, checkpoint_blocks

from umadvise import _native
from umadvise._native.abi import ChunkOptions

NETWORKS |= {"bert_large": bert_large, "encoder": stand_in.bert_large}
HOST_BYTES = 1 << 40
"""Of page-locked memory, which no copy touches."""


@contextmanager
def large_host() -> Iterator[None]:
    """Chunks are sent away to a host with more memory than this machine has."""
    set_chunks = _native.Device.set_chunks

    def larger(device: _native.Device, options: ChunkOptions) -> None:
        set_chunks(device, replace(options, host_budget_bytes=HOST_BYTES))

    with patch.object(_native.Device, "set_chunks", larger):
        yield


def mapped() -> int:
    """Chunks, so far."""
    return sum(made.calls for made in _native.cuda_calls() if made.function == "cuMemMap")


def settled(case: dict[str, Any]) -> dict[str, Any]:
    """A case: the network and its options, rung, budget_bytes and steps."""
    network = SizedNetwork(case["network"], case["options"], bf16=True)

    def build() -> Any:
        with torch.device("cuda"):
            workload = network.build()
        if case["rung"] == "swap+recompute":
            checkpoint_blocks(workload)
        return workload

    found = []
    with (
        large_host(),
        training(build, case["rung"], case["budget_bytes"], HOST_BYTES, counted_step=0, on_gpu=True) as running,
    ):
        for _ in range(case["steps"]):
            before = mapped()
            running.step()
            torch.cuda.synchronize()
            found.append(mapped() - before)
        chunk_bytes = running.session.swap_counters().chunk_bytes
        peak_bytes = running.session.memory_stats().requested_peak_bytes
    return {"mapped": found, "chunk_bytes": chunk_bytes, "peak_bytes": peak_bytes}


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps(settled(json.loads(sys.argv[1]))) + "\n")
