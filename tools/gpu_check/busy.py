"""Who was busy in a step: the GPU's kernels and copies, its memory, and its clocks."""

import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

_POLL_S = 0.002
_QUERY_S = 10.0
_CLOCKS = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw", "clocks_throttle_reasons.active", "memory.used")


def profiled(step: Callable[[], Any], synchronize: Callable[[], None], *, on_gpu: bool) -> dict[str, Any]:
    """Nanoseconds of one more step in which at least one kernel ran, at least one copy did, and either.

    Torch's profiler tells, so the step takes longer than others, but its kernels do not. What pages move at faults and
    by prefetches is no copy of its. None where it saw no kernel.
    """
    activities = [ProfilerActivity.CUDA] if on_gpu else [ProfilerActivity.CPU]
    try:
        with profile(activities=activities) as seen:
            step()
            synchronize()
        events: Any = seen.profiler.kineto_results.events()
        spans = [
            (event.name(), event.start_ns(), event.start_ns() + event.duration_ns())
            for event in events
            if event.device_type() == DeviceType.CUDA
        ]
    except Exception as error:  # it shares CUPTI with others: that costs this number, not the row
        return {"gpu_ns": None, "reason": f"{type(error).__name__}: {error}"}
    copies = [span[1:] for span in spans if span[0].startswith(("Memcpy", "Memset"))]
    kernels = [span[1:] for span in spans if not span[0].startswith(("Memcpy", "Memset"))]
    if not kernels:
        return {"gpu_ns": None, "reason": "torch's profiler saw no kernel"}
    return {
        "gpu_ns": covered_ns(kernels),
        "copies_ns": covered_ns(copies),
        "either_ns": covered_ns(kernels + copies),
        "kernels": len(kernels),
        "copies": len(copies),
    }


def covered_ns(spans: Sequence[tuple[int, int]]) -> int:
    """Length of what spans cover together."""
    total, ends = 0, 0
    for start, end in sorted(spans):
        total += max(0, end - max(start, ends))
        ends = max(ends, end)
    return total


@contextmanager
def memory(*, on_gpu: bool) -> Iterator[dict[str, int]]:
    """What the driver says is in use on the device (cuMemGetInfo): before, at most while this lasts, and after."""
    seen: dict[str, int] = {}
    if not on_gpu:
        yield seen
        return
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_POLL_S):
            seen["most"] = max(seen["most"], _used_bytes())

    seen["before"] = seen["most"] = _used_bytes()
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()
        seen["after"] = _used_bytes()


def _used_bytes() -> int:
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    return int(total_bytes - free_bytes)


def clocks(step: Callable[[], Any], synchronize: Callable[[], None], *, on_gpu: bool) -> str | None:
    """Clocks, temperature, power and throttling, by nvidia-smi while more steps run: an idle GPU slows down."""
    if not on_gpu:
        return None
    command = ["nvidia-smi", "--id=0", f"--query-gpu={','.join(_CLOCKS)}", "--format=csv,noheader"]
    started = time.monotonic()
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as query:
            while query.poll() is None:
                step()
                synchronize()
                if time.monotonic() - started > _QUERY_S:
                    query.kill()
            return query.communicate()[0].strip()
    except OSError as error:
        return str(error)
