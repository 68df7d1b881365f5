"""The curve of a predictor kind in one layer: useful thresholds, and the effect of each."""

import numpy as np
import numpy.typing as npt

from powerinfer.calibration.ground_truth import GroundTruth, Mask
from powerinfer.calibration.scores import PartScores
from powerinfer.predictors.calibration import Curve, CurvePoint, Dial, six_digits
from powerinfer.predictors.choosing import FFNBytes, PredictorBytes

__all__ = ["measure_curve"]

# Estimated errors at which thresholds are placed; the true error is then measured at each.
_PLACED_AT = (0.0, 3e-4, 1e-3, 2e-3, 3e-3, 5e-3, 7e-3, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2)
# Steps of bisection towards the dial, between two measured points.
_REFINEMENTS = 3
# Share of a cascade's loss that every part but the last may cause.
_EARLY_SHARE = 0.25

Thresholds = tuple[float, ...]


def measure_curve(
    parts: tuple[PartScores, ...], truth: GroundTruth, num_bytes: FFNBytes, dial: Dial
) -> Curve:
    """Measure a kind at thresholds from losing nothing to losing much; closer ones near the dial.

    `parts` are scores of the kind on the tokens of `truth`. Points are in order of falling density.
    """
    placing = _Placing(parts, truth)
    points: dict[Thresholds, CurvePoint] = {}
    estimates: list[tuple[float, CurvePoint]] = []

    def measure(estimate: float) -> CurvePoint:
        thresholds = placing.thresholds(estimate)
        if thresholds not in points:
            points[thresholds] = _measure(parts, thresholds, truth, num_bytes)
        estimates.append((estimate, points[thresholds]))
        return points[thresholds]

    for estimate in _PLACED_AT:
        measure(estimate)
    if dial.max_ffn_error is not None:
        wanted = dial.max_ffn_error
        for _ in range(_REFINEMENTS):
            low = max((e for e, p in estimates if p.ffn_error_high <= wanted), default=0.0)
            high = min(
                (e for e, p in estimates if p.ffn_error_high > wanted and e > low), default=low
            )
            measure((low + high) / 2)
    return tuple(sorted(points.values(), key=lambda point: (-point.density, point.ffn_error)))


class _Placing:
    """Thresholds by an estimate of the error: squares of the values that are missed.

    Neurons' outputs count as orthogonal and their rows of down as equally long, which is wrong by
    some factor, but steadily so; the points are measured afterwards.
    """

    def __init__(self, parts: tuple[PartScores, ...], truth: GroundTruth) -> None:
        lowest = [part.lowest for part in parts]
        self._scores = [scores[truth.active] for scores in lowest]
        self._highest = [float(scores.max(initial=0.0)) for scores in lowest]
        self._energy = truth.energy.astype(np.float64)
        self._orders = [np.argsort(scores, kind="stable") for scores in self._scores]

    def thresholds(self, error: float) -> Thresholds:
        """One threshold per part, so that together they lose this relative error."""
        budget = error**2 * float(self._energy.sum())
        left = np.ones(len(self._energy), bool)
        found = []
        last = len(self._scores) - 1
        for number, (scores, order) in enumerate(zip(self._scores, self._orders, strict=True)):
            share = 1.0 if number == last else _EARLY_SHARE
            alive = order[left[order]]
            lost = np.cumsum(self._energy[alive])
            count = int(np.searchsorted(lost, share * budget, side="right"))
            if not len(alive):
                found.append(self._highest[number])
                continue
            count = min(count, len(alive) - 1)
            budget -= float(lost[count - 1]) if count else 0.0
            threshold = _below(float(scores[alive[count]]))
            left &= scores >= threshold
            found.append(threshold)
        return tuple(found)


def _below(score: float) -> float:
    """A short number slightly below, so that neither rounding nor storing loses the neuron."""
    return six_digits(score - 2e-5 * abs(score))


def _measure(
    parts: tuple[PartScores, ...],
    thresholds: Thresholds,
    truth: GroundTruth,
    num_bytes: FFNBytes,
) -> CurvePoint:
    """Measure these thresholds on the tokens of `truth`."""
    predicted, shares = _pass(parts, thresholds)
    num_predicted = int(np.count_nonzero(predicted))
    num_found = int(np.count_nonzero(predicted & truth.active))
    num_active = len(truth.energy)
    error = truth.ffn_error(predicted)
    exact = num_bytes.exact_time(float(truth.fires.mean()), num_active / predicted.size)
    time = num_bytes.predicted_time(
        _bytes_of(parts),
        shares,
        float((predicted & truth.fires).mean()),
        num_found / predicted.size,
    )
    return CurvePoint(
        thresholds=thresholds,
        density=six_digits(num_predicted / predicted.size),
        recall=six_digits(num_found / num_active if num_active else 1.0),
        precision=six_digits(num_found / num_predicted if num_predicted else 1.0),
        ffn_error=six_digits(error.value),
        time=six_digits(time / exact),
        ffn_error_high=six_digits(error.high),
    )


def _pass(parts: tuple[PartScores, ...], thresholds: Thresholds) -> tuple[Mask, tuple[float, ...]]:
    """Find the neurons that pass all stages, and the share that passed each stage."""
    passed: npt.NDArray[np.bool_] = np.ones(parts[0].stages[0].shape, bool)
    shares = []
    for part, threshold in zip(parts, thresholds, strict=True):
        for scores in part.stages:
            passed &= scores >= np.float32(threshold)
            shares.append(float(passed.mean()))
    return passed, tuple(shares)


def _bytes_of(parts: tuple[PartScores, ...]) -> PredictorBytes:
    rows = [row for part in parts for row in part.num_bytes.stage_rows]
    return PredictorBytes(parts[0].num_bytes.hidden_layer, tuple(rows))
