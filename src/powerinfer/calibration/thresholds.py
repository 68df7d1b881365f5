"""The curve of thresholds on a layer's activation: how many neurons each makes zero, and its error.

CATS (arXiv 2404.08763) skips neurons by the magnitude of silu(gate), TEAL (arXiv 2408.14690)
chooses thresholds by shares of zeros; both calibrate per layer, as here.
"""

import numpy as np

from powerinfer.calibration.ground_truth import GroundTruth, activated
from powerinfer.ops.backend import Backend, SomeFFN
from powerinfer.predictors.calibration import Curve, CurvePoint, Dial, six_digits
from powerinfer.predictors.choosing import FFNBytes

__all__ = ["measure_thresholds"]

# Shares of zeros that are measured, besides the one that is asked for.
_ZEROS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


def measure_thresholds(ops: Backend, ffn: SomeFFN, truth: GroundTruth, dial: Dial) -> Curve:
    """Measure thresholds on the tokens of `truth`, in order of falling density."""
    magnitudes = np.abs(activated(ops, ffn, truth.x, truth.routing))
    ascending = np.sort(magnitudes, axis=None)
    num_bytes = FFNBytes.of(ops, ffn)
    points = {}
    for zeros in sorted({*_ZEROS, *([] if dial.zeros is None else [dial.zeros])}):
        # A short number that makes no more than these zero.
        threshold = six_digits(float(ascending[int(zeros * (len(ascending) - 1))]) * (1 - 1e-5))
        is_kept = ~(magnitudes < threshold)
        error = truth.ffn_error(is_kept)
        num_found, num_kept = int((is_kept & truth.active).sum()), int(is_kept.sum())
        density = float(is_kept.mean())
        points[threshold] = CurvePoint(
            thresholds=(threshold,),
            density=six_digits(density),
            recall=six_digits(num_found / len(truth.energy) if len(truth.energy) else 1.0),
            precision=six_digits(num_found / num_kept if num_kept else 1.0),
            ffn_error=six_digits(error.value),
            time=six_digits(num_bytes.exact_time(density, density) / num_bytes.exact_time(1, 1)),
            ffn_error_high=six_digits(error.high),
        )
    return tuple(points.values())
