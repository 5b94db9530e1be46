"""Ordered counting: every counter repeats exactly from run to run, with any number of threads and any delays.

Two things are not the ops' own. What runs between ops (the fill of `torch.tensor(0.0)`, `item`) faults where it stands,
always the same, and is counted as unordered. And oneDNN's convolutions take a scratchpad whose size depends on the
number of threads: such a network repeats for the same number of threads.
"""

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Counts = dict[str, dict[str, Any]]

CASES = [
    ("mlp", 96, "noadvise"),
    ("cnn", 64, "readmostly"),
    ("lstm", 160, "prefetch"),
    ("transformer", 128, "accessby"),
    ("unet", 80, "preferredlocation"),
    ("embedding", 288, "noadvise"),
]
NAMES = [name for name, _, _ in CASES]
CONVOLUTIONAL = ("cnn", "unet")

SCRIPT = f"""
import json, sys
import msgspec, small_networks, torch, umadvise
from umadvise._native.readings import events_from
from umadvise.torch_seam import runtime

threads, delay_us, names = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
torch.set_num_threads(threads)
found = {{}}
for name, capacity_mib, intermediates in (case for case in {CASES} if case[0] in names):
    umadvise.patch(umadvise.EmulatedDevice(f"{{capacity_mib}}MiB", delays=delay_us, delay_seed=threads))
    device = runtime.current().device
    device.enable_events(True)
    torch.cuda.set_unified(intermediates)
    torch.manual_seed(0)
    network = small_networks.NETWORKS[name]
    model = network.model().to("cuda:preferredlocation")
    optimizer = small_networks.OPTIMIZERS["adamw"](model.parameters())
    for step, _ in enumerate(small_networks.steps(network, model, optimizer, 2, lambda x: x.to("cuda:readmostly"))):
        counters = msgspec.to_builtins(umadvise.read_counters())
        del counters["fault_service_ns"]  # a time
        counters["resident_bytes"] = umadvise.memory_stats().resident_bytes
        counters["unordered_in_ops"] = sum(
            event.unordered for event in events_from(device.drain_events()) if event.op
        )
        found[f"{{name}} {{step}}"] = counters
    assert device.dropped_events() == 0
    del model, optimizer
    umadvise.unpatch()
print(json.dumps(found))
"""


def count(python: Run, threads: int, delay_us: int, *names: str) -> Counts:
    words = (str(threads), str(delay_us), *names)
    finished = python(SCRIPT, *words, timeout=400, anew=True)  # other addresses and hashes
    assert finished.returncode == 0, finished.stderr
    found: Counts = json.loads(finished.stdout)
    return found


@pytest.fixture(scope="module")
def reference(python: Run) -> Counts:
    return count(python, 2, 0, *NAMES)


def test_the_cases_are_worth_counting(reference: Counts) -> None:
    for name, counters in reference.items():
        assert counters["oversized_ops"] == 0, name  # every op's working set fits
        assert counters["unordered_in_ops"] == 0, name
        assert counters["bytes_d2h"]["eviction"] > 0, name
        assert counters["remote_accesses"] is None, name


@pytest.mark.long
def test_counters_of_convolutions_repeat_for_the_same_threads(python: Run, reference: Counts) -> None:
    found = count(python, 2, 100, *CONVOLUTIONAL)
    assert found == {name: reference[name] for name in found}


@pytest.mark.parametrize(("threads", "delay_us"), [(1, 30), pytest.param(4, 100, marks=pytest.mark.long)])
def test_counters_do_not_depend_on_threads(threads: int, delay_us: int, python: Run, reference: Counts) -> None:
    found = count(python, threads, delay_us, *NAMES)
    for name, counters in reference.items():
        assert found[name] == counters or name.startswith(CONVOLUTIONAL), name
        assert found[name]["unordered_in_ops"] == 0, name
