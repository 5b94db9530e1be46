"""Hayakawa and Narihira 2020 (window scheduling): baselines. What is scheduled waits for the window planner.

Memory is that of live tensors in PyTorch's order, as the dry recorder sees it; the paper's framework is another one
(Neural Network Libraries). Capacity is the whole of the device's memory: nothing is kept back for a context.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from replay import lms
from replay.outcome import Outcome, calibration, holds, pending, within
from replay.published import Figure, known
from replay.recording import largest_batch, trace
from umadvise.catalogue import load_device
from umadvise.units import format_bytes

RESNET_TABLE = "hayakawa_resnet50"
MODELS_TABLE = "hayakawa_models"
BATCH_BOUND = 0.10
_DEVICES = {"V100-16GB": "v100-sxm2-power9-16gb", "P100-16GB": "p100-sxm2-16gb"}
_NETWORKS = {"densenet": "densenet121", "pix2pixhd": "pix2pixhd", "deeplabv3plus": "deeplabv3plus"}
_PLANNERS = {
    "schedule": "the window planner",
    "schedule_va": "the window planner with VA chunks",
    "schedule_factor": "the window planner",
    "va_extra_factor": "the window planner with VA chunks",
}


@dataclass(frozen=True)
class StepTime:
    """Time of a step: `fixed_s` and the roofline's time divided by `efficiency`, the same for all classes of ops."""

    fixed_s: float
    efficiency: float

    def seconds(self, roofline_s: float) -> float:
        """Of a step that takes so long by the roofline."""
        return self.fixed_s + roofline_s / self.efficiency


def fit(roofline_s: Sequence[float], measured_s: Sequence[float]) -> StepTime:
    """Least squares of the relative errors; neither part is below zero."""
    roofline, measured = np.array(roofline_s), np.array(measured_s)
    design = np.stack([1 / measured, roofline / measured], axis=1)
    fixed, factor = np.linalg.lstsq(design, np.ones(len(measured)), rcond=None)[0]
    if fixed < 0:
        ratio = roofline / measured
        fixed, factor = 0.0, float(ratio.sum() / (ratio**2).sum())
    return StepTime(float(fixed), 1 / float(factor))


def replay_resnet(figures: Iterable[Figure]) -> Iterator[Outcome]:
    """ResNet-50: the baselines calibrate time, and predict what fits."""
    figures = list(figures)
    for figure in figures:
        method, gpu, batch = figure.key
        device = known(figure, gpu, _DEVICES)
        if method == lms.METHOD:
            yield lms.outcome(figure, figures, device, _fit_baseline(figures, gpu))
            continue
        if not method.startswith("baseline"):
            yield pending(figure, known(figure, method, _PLANNERS))
            continue
        step = trace("resnet50", int(batch), device)
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
        (int(batch), figure.low)
        for figure in figures
        for method, row_gpu, batch in [figure.key]
        if method.startswith("baseline") and row_gpu == gpu and figure.low is not None
    ]
    roofline = [trace("resnet50", batch, _DEVICES[gpu]).duration_ns / 1e9 for batch, _ in rows]
    return fit(roofline, [batch / speed for batch, speed in rows])


def replay_models(figures: Iterable[Figure]) -> Iterator[Outcome]:
    """The largest batches that train in 16 GiB."""
    device = _DEVICES["V100-16GB"]
    for figure in figures:
        network, quantity = figure.key[0], figure.key[-1]
        if quantity != "baseline_max_batch":
            yield pending(figure, known(figure, quantity, _PLANNERS))
            continue
        name = known(figure, network, _NETWORKS)
        batch = largest_batch(name, load_device(device).memory_bytes, device)
        peak = format_bytes(trace(name, batch, device).peak_bytes)
        yield within(figure, batch, BATCH_BOUND, f"{name} in PyTorch's order, fp32; peak {peak}")
