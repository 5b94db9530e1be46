"""Hayakawa and Narihira 2020 (window scheduling): table 1, and the largest batches of other networks.

Memory is that of live tensors in PyTorch's order, as the dry recorder sees it; the paper's framework is another one
(Neural Network Libraries). Capacity is the whole of the device's memory: nothing is kept back for a context.
"""

import functools
from collections.abc import Callable, Iterable, Iterator

import harness

from replay import lms
from replay.outcome import FigureOutcome, calibration, holds, within
from replay.published import Figure, known
from replay.recording import largest_batch, trace
from replay.step_time import StepTime, fit
from replay.window_rows import METHODS, WindowRows, resnet
from replay.window_runs import GIB, largest_plan
from umadvise.devices.catalogue import load_device
from umadvise.records.trace import Trace
from umadvise.records.units import format_bytes
from umadvise.simulator.swap import AllocatorModel

RESNET_TABLE = "hayakawa_resnet50"
MODELS_TABLE = "hayakawa_models"
BATCH_BOUND, FACTOR_BOUND = 0.10, 0.35
_DEVICES = {"V100-16GB": "v100-sxm2-power9-16gb", "P100-16GB": "p100-sxm2-16gb"}
_NETWORKS = {"densenet": "densenet121", "pix2pixhd": "pix2pixhd", "deeplabv3plus": "deeplabv3plus"}
_RECORDERS: dict[str, Callable[[int, str], Trace]] = {
    "baseline": resnet,
    "baseline_lms": functools.partial(trace, "resnet50"),
}
"""From the name of a method in which everything stays on the device: its steps, by batch and device."""


def replay_resnet(figures: Iterable[Figure]) -> Iterator[FigureOutcome]:
    """ResNet-50: the baselines calibrate time, and predict what fits."""
    figures = list(figures)
    scheduled: dict[str, WindowRows] = {}
    for figure in figures:
        method, gpu, batch = figure.key
        device = known(figure, gpu, _DEVICES)
        if method == lms.METHOD:
            yield lms.outcome(figure, figures, device, _fit_baseline(figures, gpu))
            continue
        if method in METHODS:
            if gpu not in scheduled:
                scheduled[gpu] = WindowRows(figures, gpu, device, _fit_baseline(figures, gpu))
            yield scheduled[gpu].outcome(figure)
            continue
        step = known(figure, method, _RECORDERS)(int(batch), device)
        fits = step.peak_bytes <= load_device(device).memory_bytes
        peak = f"peak {format_bytes(step.peak_bytes)}"
        if figure.low is None or not fits:
            yield holds(figure, not fits and figure.low is None, "fits" if fits else "x", "fits or not", note=peak)
            continue
        time = _fit_baseline(figures, gpu)
        speed = int(batch) / time.seconds(step.duration_ns / 1e9)
        note = (
            f"{peak}; fixed {time.fixed_s * 1e3:.1f} ms a step and efficiency x {time.efficiency:.2f} from this method"
        )
        yield calibration(figure, speed, note)


def _fit_baseline(figures: list[Figure], gpu: str) -> StepTime:
    rows = [
        (_RECORDERS[method](int(batch), _DEVICES[gpu]).duration_ns / 1e9, int(batch) / figure.low)
        for figure in figures
        for method, row_gpu, batch in [figure.key]
        if method in _RECORDERS and row_gpu == gpu and figure.low is not None
    ]
    return fit([roofline_s for roofline_s, _ in rows], [measured_s for _, measured_s in rows])


@functools.cache
def _largest(network: str, device: str, allocator: AllocatorModel, least: int) -> int:
    """The largest batch for which a budget of whole GiB is found, within 5 %; `least` is one that trains.

    Between two batches of which the smaller trains and the larger does not there may be others of both kinds, as an
    allocator's luck has it.
    """

    def trains(batch: int) -> bool:
        step = trace(network, batch, device)
        return largest_plan(step, load_device(device), allocator, step_bytes=GIB) is not None

    return harness.largest(trains, least, part=20)


def replay_models(figures: Iterable[Figure]) -> Iterator[FigureOutcome]:
    """The largest batches that train in 16 GiB."""
    device = _DEVICES["V100-16GB"]
    for figure in figures:
        network, quantity = figure.key[0], figure.key[-1]
        name = known(figure, network, _NETWORKS)
        baseline = largest_batch(name, load_device(device).memory_bytes, device)
        if quantity == "baseline_max_batch":
            peak = format_bytes(trace(name, baseline, device).peak_bytes)
            yield within(figure, baseline, BATCH_BOUND, f"{name} in PyTorch's order, fp32; peak {peak}")
            continue
        scheduled = _largest(name, device, "best_fit", baseline)
        if quantity == "schedule_factor":
            yield within(figure, scheduled / baseline, FACTOR_BOUND, f"batch {scheduled} for {baseline}")
            continue
        chunks = _largest(name, device, "va_chunks", scheduled)
        yield within(figure, chunks / scheduled, FACTOR_BOUND, f"batch {chunks} for {scheduled}")
