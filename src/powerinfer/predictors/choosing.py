"""Choice of the predictor kind of a layer: the fastest within the dial, by the bytes it reads.

Decoding is bound by memory, so time is bytes over bandwidth: streamed where a matrix is read whole,
gathered where single rows of it are.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from powerinfer.ops.backend import Backend, Matrix, SomeFFN
from powerinfer.predictors.build import LayerChoice
from powerinfer.predictors.calibration import Calibration, Curve, CurvePoint, Dial
from powerinfer.predictors.predictor import Scorer

__all__ = [
    "FFNBytes",
    "PredictorBytes",
    "choose",
    "choose_for_model",
    "closest_point",
    "point_for",
]

EXACT = "exact"

# Rows of a few KiB that are read one by one reach about this share of the streaming bandwidth.
GATHER_SPEED = 0.6
# A recall dial must hold on other text too, where slightly more is missed than was measured.
_SAFETY = 0.9
# Shares have six digits.
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class PredictorBytes:
    """Bytes that a predictor reads.

    Attributes:
        hidden_layer: bytes of fc1, read whole; of used experts only, where experts have their own.
        stage_rows: bytes of one row of each stage.
    """

    hidden_layer: int
    stage_rows: tuple[float, ...]

    @classmethod
    def of(
        cls, ops: Backend, scorers: tuple[Scorer, ...], used_share: float = 1.0
    ) -> "PredictorBytes":
        """Compute the reads of a cascade of scorers; a token uses `used_share` of the experts."""
        fc1 = scorers[0].fc1
        rows = [_row_bytes(ops, part.matrix) for scorer in scorers for part in scorer.parts]
        hidden_layer = 0 if fc1 is None else ops.matrix_bytes(fc1)
        if scorers[0].num_experts > 1:
            hidden_layer = round(hidden_layer * used_share)
        return cls(hidden_layer, tuple(rows))


@dataclass(frozen=True, slots=True)
class FFNBytes:
    """Bytes that an FFN reads per neuron.

    Attributes:
        num_neurons: neurons that may run for a token: intermediate_size, or that of all experts
            selected for it.
        decider: bytes of a row of the deciding matrix: gate, or up without one.
        up: bytes of a row of up; 0 where up decides.
        down: bytes of a neuron's part of down.
        is_down_skippable: neurons are rows of down; otherwise it is read whole.
    """

    num_neurons: int
    decider: float
    up: float
    down: float
    is_down_skippable: bool

    @classmethod
    def of(cls, ops: Backend, ffn: SomeFFN) -> "FFNBytes":
        """Compute the reads of a prepared FFN."""
        num_neurons = ops.matrix_shape(ffn.up.matrix)[0]
        num_used = 1 if ffn.router is None else ffn.router.num_used
        up = _row_bytes(ops, ffn.up.matrix)
        return cls(
            num_neurons=num_neurons // ffn.num_experts * num_used,
            decider=up if ffn.gate is None else _row_bytes(ops, ffn.gate.matrix),
            up=0.0 if ffn.gate is None else up,
            down=ops.matrix_bytes(ffn.down.matrix) / num_neurons,
            is_down_skippable=ffn.is_down_transposed,
        )

    def exact_time(self, firing: float, active: float) -> float:
        """Return the time without predictor, in bytes streamed.

        Args:
            firing: share of the neurons whose decider fires.
            active: share of the neurons whose value is not zero.
        """
        return self.num_neurons * (self.decider + self._behind(firing, active))

    def predicted_time(
        self,
        predictor: PredictorBytes,
        stage_shares: tuple[float, ...],
        firing: float,
        active: float,
    ) -> float:
        """Return the time with a predictor, in bytes streamed.

        Args:
            stage_shares: share of the neurons that pass each stage; the last is the density.
            firing: share of the neurons predicted and firing.
            active: share of the neurons predicted and not zero.
        """
        first, *later = predictor.stage_rows
        passed = zip(later, stage_shares, strict=False)
        stages = first + sum(row * share for row, share in passed) / GATHER_SPEED
        decider = stage_shares[-1] * self.decider / GATHER_SPEED
        per_neuron = stages + decider + self._behind(firing, active)
        return predictor.hidden_layer + self.num_neurons * per_neuron

    def _behind(self, firing: float, active: float) -> float:
        """Return the average bytes read per neuron after the decider."""
        up = firing * self.up / GATHER_SPEED
        return up + (active * self.down / GATHER_SPEED if self.is_down_skippable else self.down)


def point_for(curve: Curve, dial: Dial) -> CurvePoint | None:
    """Return the fastest measured point within the dial and a margin, or None."""
    points = [point for point in curve if _is_within(point, dial)]
    return min(points, key=lambda point: point.time, default=None)


def closest_point(curve: Curve, dial: Dial) -> CurvePoint | None:
    """Return the operating point of a requested kind: within the dial, else the most accurate."""
    careful = min(curve, key=lambda point: (point.ffn_error, -point.recall), default=None)
    return point_for(curve, dial) or careful


def choose(curves: Mapping[str, Curve], dial: Dial) -> LayerChoice:
    """Return the fastest kind of a layer within the dial; `exact` if none beats it."""
    best, best_time = LayerChoice(EXACT), 1.0
    for kind, curve in curves.items():
        point = point_for(curve, dial)
        if point is not None and point.time < best_time:
            best, best_time = LayerChoice(kind, point.thresholds), point.time
    return best


def choose_for_model(calibration: Calibration, dial: Dial) -> Calibration:
    """Choose again for another dial, from the same measurements."""
    return calibration.chosen(dial, [choose(layer.curves, dial) for layer in calibration.layers])


def _is_within(point: CurvePoint, dial: Dial) -> bool:
    if dial.zeros is not None:
        return 1.0 - point.density <= dial.zeros + _ROUNDING
    if dial.recall is not None:
        return 1.0 - point.recall <= _SAFETY * (1.0 - dial.recall)
    # The bound for other text, but never less than was measured.
    error = max(point.ffn_error, point.ffn_error_high)
    return dial.max_ffn_error is None or error <= dial.max_ffn_error


def _row_bytes(ops: Backend, matrix: Matrix) -> float:
    return ops.matrix_bytes(matrix) / max(1, ops.matrix_shape(matrix)[0])
