"""Time of a step from its roofline, calibrated on rows in which everything stays on the device."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


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
