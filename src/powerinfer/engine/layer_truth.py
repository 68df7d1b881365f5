"""What an FFN really does on some tokens: which neurons are active, how much each of them adds."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from powerinfer.ops.protocol import FFN, ActiveIds, Linear, Ops
from powerinfer.ops.reference_ffn import activate
from powerinfer.values import Activation, ActivationKind, FloatArray

__all__ = ["LayerTruth", "Mask", "count_active"]

Mask = npt.NDArray[np.bool_]

# Tokens computed at once: what is needed on the way is f64.
_CHUNK = 128
# Tokens on which the error is measured: its sum over thousands of neurons needs no more.
_ERROR_TOKENS = 128
# Most pairs of a token and a missed neuron that are computed for it.
_MOST_MISSED = 20_000


@dataclass(frozen=True, slots=True)
class LayerTruth:
    """One layer on the test tokens.

    Attributes:
        ops: the backend.
        x: f32[num_tokens, hidden_size], input of the FFN.
        firing: share of neurons and tokens whose gate (ungated: up) fires.
        fires: bool[num_tokens, intermediate_size], where it does.
        active: bool[num_tokens, intermediate_size], where the neuron's value is not zero.
        energy: f32[active pairs], squared values of the active neurons in the order of `active`.
    """

    ops: Ops
    x: FloatArray
    fires: Mask
    active: Mask
    energy: FloatArray
    _ffn: FFN
    _error_rows: npt.NDArray[np.intp]
    _output_squares: npt.NDArray[np.float64]

    @classmethod
    def measure(cls, ops: Ops, ffn: FFN, x: FloatArray) -> "LayerTruth":
        """Run the block without loss.

        Args:
            ops: the backend.
            ffn: prepared, of a sparse activation.
            x: f32[num_tokens, hidden_size].
        """
        parts = [_neurons(ops, ffn, chunk) for chunk in _chunks(x)]
        fires, values = (np.concatenate(part) for part in zip(*parts, strict=True))
        active = values != 0
        rows = np.linspace(0, len(x) - 1, min(len(x), _ERROR_TOKENS)).astype(np.intp)
        output = ops.ffn(np.ascontiguousarray(x[rows]), _exact(ops, ffn))
        # Without its bias, a block over the missed neurons alone is what skipping them loses.
        unbiased = replace(ffn, down=Linear(ffn.down.matrix, None), predictor=None)
        return cls(
            ops=ops,
            x=x,
            fires=fires,
            active=active,
            energy=np.square(values[active]),
            _ffn=_exact(ops, unbiased),
            _error_rows=rows,
            _output_squares=_squares(output),
        )

    @property
    def num_active(self) -> npt.NDArray[np.int64]:
        """i64[intermediate_size], tokens in which each neuron is active."""
        counts: npt.NDArray[np.int64] = self.active.sum(axis=0, dtype=np.int64)
        return counts

    def ffn_error(self, predicted: Mask) -> float:
        """Relative error of the output if only these neurons ran.

        Args:
            predicted: bool[num_tokens, intermediate_size].
        """
        rows = self._error_rows
        missed = self.active[rows] & ~predicted[rows]
        num_missed = int(np.count_nonzero(missed))
        if not num_missed:
            return 0.0
        # Large errors need few tokens to be known well enough, and are slow to measure.
        step = -(-num_missed // _MOST_MISSED)
        rows, missed = rows[::step], missed[::step]
        x = np.ascontiguousarray(self.x[rows])
        lost = self.ops.ffn_active(x, self._ffn, ActiveIds.of_mask(missed))
        lost_square = float(_squares(lost).sum())
        output_square = float(self._output_squares[::step].sum())
        if not output_square:
            return float(lost_square > 0)
        return float(np.sqrt(lost_square / output_square))


def count_active(ops: Ops, ffn: FFN, x: FloatArray) -> npt.NDArray[np.int64]:
    """Tokens in which each neuron is active: i64[intermediate_size].

    Args:
        ops: the backend.
        ffn: prepared.
        x: f32[num_tokens, hidden_size].
    """
    counts = np.zeros(ops.matrix_shape(ffn.up.matrix)[0], np.int64)
    for chunk in _chunks(x):
        _, values = _neurons(ops, ffn, chunk)
        counts += np.count_nonzero(values, axis=0)
    return counts


def _chunks(x: FloatArray) -> Iterator[FloatArray]:
    for start in range(0, len(x), _CHUNK):
        yield np.ascontiguousarray(x[start : start + _CHUNK])


def _exact(ops: Ops, ffn: FFN) -> FFN:
    return ops.ffn_weights(replace(ffn, is_exact_sparse=True, predictor=None))


def _neurons(ops: Ops, ffn: FFN, x: FloatArray) -> tuple[Mask, FloatArray]:
    """Where the deciding matrix fires, and the values that scale the rows of down."""
    deciding = (ffn.up,) if ffn.gate is None else (ffn.gate, ffn.up)
    wide = [product.astype(np.float64) for product in ops.linear(x, deciding)]
    gate = None if ffn.gate is None else wide[0]
    values = activate(ffn.activation, gate, wide[-1])
    return _fires(ffn.activation, wide[0]), values.astype(np.float32)


def _fires(activation: Activation, decider: npt.NDArray[np.float64]) -> Mask:
    if activation.kind is ActivationKind.FATRELU:
        return decider >= activation.threshold
    return decider > 0


def _squares(values: FloatArray) -> npt.NDArray[np.float64]:
    """Squared length of each row: f64[num_tokens]."""
    squares: npt.NDArray[np.float64] = np.square(values, dtype=np.float64).sum(axis=1)
    return squares
