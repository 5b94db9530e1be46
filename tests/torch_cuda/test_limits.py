"""Each row of the table of docs/torch-on-cuda.md, of what torch does only with its own allocator, in its CUDA build."""

from collections.abc import Callable
from typing import Any

import pytest

MIB = 1 << 20
GRAPH = "a CUDA graph"
POOL = "torch.cuda.MemPool"
SHARING = "sharing CUDA tensors with another process"
SNAPSHOT = "a snapshot of torch's CUDA memory"
FRACTION = "torch.cuda.set_per_process_memory_fraction"
REFUSED = {
    "CUDAGraph": (GRAPH, "run without torch.cuda.graph"),
    "graph": (GRAPH, "run without torch.cuda.graph"),
    "make_graphed_callables": (GRAPH, "run without torch.cuda.graph"),
    "MemPool": (POOL, "leave it out"),
    "use_mem_pool": (POOL, "leave it out"),
    "sent tensor": (SHARING, "send tensor.cpu()"),
    "sent parameter": (SHARING, "send tensor.cpu()"),
    "sent view": (SHARING, "send tensor.cpu()"),
    "memory_snapshot": (SNAPSHOT, "see torch.cuda.memory_stats()"),
    "_snapshot": (SNAPSHOT, "see torch.cuda.memory_stats()"),
    "_dump_snapshot": (SNAPSHOT, "see torch.cuda.memory_stats()"),
    "_record_memory_history": (SNAPSHOT, "see torch.cuda.memory_stats()"),
    "_record_memory_history legacy": (SNAPSHOT, "see torch.cuda.memory_stats()"),
    "memory fraction": (FRACTION, "a budget instead"),
}
"""What each entry is called in its error, and what is said to do about it."""
BENCHMARK = ["torch.backends.cudnn.benchmark stays off"]
PASSED_BY: dict[str, tuple[Any, list[str]]] = {
    "history switched off": (None, []),
    "memory fraction of 1": (None, []),
    "get_per_process_memory_fraction": (1.0, []),
    "cudnn.benchmark": (False, BENCHMARK),
    "cudnn.flags": (False, BENCHMARK),
    "compile": (8.0, ["torch.compile needs Triton for a GPU"]),
    "compile again": (8.0, []),
    "compile reduce-overhead": (8.0, []),
    "compile max-autotune": (8.0, []),
    "compile a module": (True, []),
    "compiled before": ([2.0, 2.0], []),
    "_set_allocator_settings": (None, ["torch.cuda.memory._set_allocator_settings: 'expandable_segments:True' is for"]),
    "caching_allocator_alloc": (3 * MIB, []),
    "caching_allocator_enable": (None, []),
    "get_allocator_backend": ("pluggable", []),
    "share_memory": (True, []),
    "ipc_collect": (None, []),
    "a pickle": ([1.0, 1.0, 1.0], []),
    "held": (3.0, []),
    "dlpack": ([1.0, 1.0, 1.0], []),
    "__cuda_array_interface__": (True, []),
    "dtype and device": ("tensor([1., 1.], device='cuda:0', dtype=torch.float16)", []),
    "words of advice": (6.0, []),
}
"""What each entry gives, and how the lines begin that are logged meanwhile."""
Run = Callable[..., Any]


@pytest.fixture(scope="module")
def seen(run: Run) -> Any:
    return run("limits.py", "limits")


def test_every_entry_is_expected(seen: Any) -> None:
    assert seen["patched"].keys() == REFUSED.keys() | PASSED_BY.keys()


@pytest.mark.parametrize("when", ["patched", "after"])
@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_in_words(seen: Any, name: str, when: str) -> None:
    what, remedy = REFUSED[name]
    told = seen[when][name]
    assert told["error"] == "UnsupportedError", told
    assert told["message"].startswith(f"{what} cannot be used while umadvise is torch's CUDA allocator: ")
    assert remedy in told["message"]


@pytest.mark.parametrize("name", PASSED_BY)
def test_it_works_or_is_passed_by_with_a_warning(seen: Any, name: str) -> None:
    value, lines = PASSED_BY[name]
    told = seen["patched"][name]
    assert told.get("value", told) == value
    assert len(told["log"]) == len(lines), told["log"]
    assert all(line.startswith(start) for line, start in zip(told["log"], lines, strict=True)), told["log"]


@pytest.mark.parametrize("variable", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_settings_of_torchs_allocator_have_no_effect_and_that_is_said(run: Run, variable: str) -> None:
    told = run("limits.py", "settings", **{variable: "expandable_segments:True"})
    assert told["sum"] == 1000.0
    (line,) = told["log"]
    assert line.startswith(f"{variable}: 'expandable_segments:True' is for torch's own allocator and has no effect")
    assert "need no expandable segments" in line
