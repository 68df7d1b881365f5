"""What an FFN really computes for some tokens: active neurons, and how much each of them adds."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from powerinfer.calibration.routing import Routing
from powerinfer.ops.float_errors import quietly
from powerinfer.ops.protocol import Linear
from powerinfer.ops.reference.ffn import activate, fires
from powerinfer.ops.reference.matrix import narrow
from powerinfer.ops.some_backend import SomeFFN, SomeOps
from powerinfer.values import Activation, ActivationKind, BoolArray, FloatArray

__all__ = [
    "FFNError",
    "GroundTruth",
    "Mask",
    "count_active",
    "firing_neurons",
    "neuron_values",
    "token_chunks",
]

Mask = npt.NDArray[np.bool_]

# Tokens computed at once: what is needed on the way is f64.
_CHUNK = 128
# Most bytes of missed neurons' rows that are read for one error; beyond, tokens are left out.
_MOST_BYTES = 1 << 27
# Neighbouring tokens whose sum is one sample of what text does to the error.
_BLOCK = 32
# Standard errors above what was measured that an error may be on other text.
_STANDARD_ERRORS = 3.0


@dataclass(frozen=True, slots=True)
class FFNError:
    """Relative error of a block's output.

    Attributes:
        value: sqrt(sum |y - y_sparse|^2 / sum |y|^2) over the tokens.
        high: limit that it nearly always stays below on other text of the same kind.
    """

    value: float
    high: float


@dataclass(frozen=True, slots=True)
class GroundTruth:
    """What one layer really does on the test tokens; predictors are measured against it.

    Neurons of experts that a token is not given to do not count: neither hits nor misses, they are
    not among the columns of `fires` and `active`.

    Attributes:
        ops: the backend.
        x: f32[num_tokens, hidden_size], input of the FFN.
        routing: the neurons that may run for each token.
        fires: bool[num_tokens, num_candidates], where the gate (ungated: up) fires.
        active: bool[num_tokens, num_candidates], where the neuron's value is not zero.
        energy: f32[active pairs], squares of the active neurons' values times the weights of their
            experts, in the order of `active`.
        firsts: bool[num_tokens], tokens that begin a window.
    """

    ops: SomeOps
    x: FloatArray
    routing: Routing
    fires: Mask
    active: Mask
    energy: FloatArray
    firsts: npt.NDArray[np.bool_]
    _ffn: SomeFFN
    _most_missed: int
    _output_squares: npt.NDArray[np.float64]
    _router_input: FloatArray | None

    @classmethod
    def measure(
        cls,
        ops: SomeOps,
        ffn: SomeFFN,
        x: FloatArray,
        firsts: npt.NDArray[np.bool_] | None = None,
        router_input: FloatArray | None = None,
    ) -> "GroundTruth":
        """Run the block without loss.

        Args:
            ops: the backend.
            ffn: prepared, of a sparse activation.
            x: f32[num_tokens, hidden_size].
            firsts: bool[num_tokens], tokens that begin a window; None for none.
            router_input: f32[num_tokens, hidden_size], what the router sees; None for `x`.
        """
        routing = Routing.of(ops, ffn, x, router_input, _as_prompt(x))
        parts = [
            neuron_values(ops, ffn, x[chunk], routing.rows(chunk)) for chunk in token_chunks(len(x))
        ]
        firing, values = (np.concatenate(part) for part in zip(*parts, strict=True))
        active = values != 0
        exact = _exact(ops, ffn)
        squares = [
            _squares(_output(ops, exact, x[chunk], _part(router_input, chunk)))
            for chunk in token_chunks(len(x))
        ]
        # Without its bias, a block over the missed neurons alone is what skipping them loses.
        unbiased = replace(ffn, down=Linear(ffn.down.matrix, None), predictor=None)
        return cls(
            ops=ops,
            x=x,
            routing=routing,
            fires=firing,
            active=active,
            energy=_squared(routing.weigh(values)[active]),
            firsts=np.zeros(len(x), bool) if firsts is None else firsts,
            _ffn=_exact(ops, unbiased),
            _most_missed=int(_MOST_BYTES // _neuron_bytes(ops, ffn)),
            _output_squares=np.concatenate(squares),
            _router_input=router_input,
        )

    @property
    def num_active(self) -> npt.NDArray[np.int64]:
        """i64[num_neurons], tokens in which each neuron is active, of all experts."""
        return self.routing.count(self.active)

    @property
    def is_finite(self) -> bool:
        """Whether there is no NaN or infinity in what the block computes."""
        return bool(np.isfinite(self.energy).all() and np.isfinite(self._output_squares).all())

    def ffn_error(self, predicted: Mask) -> FFNError:
        """Relative error of the output if only these neurons ran.

        Args:
            predicted: bool[num_tokens, num_candidates].
        """
        missed = self.active & ~predicted
        num_missed = int(np.count_nonzero(missed))
        if not num_missed:
            return FFNError(0.0, 0.0)
        # Large errors need few tokens to be known well enough, and are slow to measure.
        rows = np.arange(0, len(self.x), -(-num_missed // self._most_missed))
        x = np.ascontiguousarray(self.x[rows])
        active = self.routing.rows(rows).ids(missed[rows])
        seen = _part(self._router_input, rows)
        y = self.ops.ffn_active(x, self._ffn, active, _as_prompt(x), seen)
        lost = _squares(self.ops.to_host(y))
        return self._error(rows, lost)

    def _error(self, rows: npt.NDArray[np.intp], lost: npt.NDArray[np.float64]) -> FFNError:
        """From squares of what is lost in each of these tokens."""
        output = self._output_squares[rows]
        value, high = _ratio(lost, output, rows)
        # Some models write a huge output for the first token, beside which no other counts.
        later = ~self.firsts[rows]
        _, high_later = _ratio(lost[later], output[later], rows[later])
        return FFNError(value, max(high, high_later))


def _ratio(
    lost: npt.NDArray[np.float64], output: npt.NDArray[np.float64], rows: npt.NDArray[np.intp]
) -> tuple[float, float]:
    """Root of a ratio of sums, and of its upper limit by the spread between blocks of tokens.

    A few tokens make most of the error, so its spread says more than any fixed distance would
    (Cochran, Sampling Techniques, 1977, section 6.3: variance of a ratio).
    """
    total = float(output.sum())
    if not total:
        return (float(lost.any()),) * 2
    ratio = float(lost.sum()) / total
    blocks = rows // _BLOCK
    starts = np.flatnonzero(np.diff(blocks, prepend=-1))
    excess = np.add.reduceat(lost - ratio * output, starts)
    num_blocks = len(starts)
    if num_blocks < 2:
        return float(np.sqrt(ratio)), float(np.sqrt(2 * ratio))
    variance = num_blocks / (num_blocks - 1) * float(np.square(excess).sum()) / total**2
    return float(np.sqrt(ratio)), float(np.sqrt(ratio + _STANDARD_ERRORS * np.sqrt(variance)))


def _neuron_bytes(ops: SomeOps, ffn: SomeFFN) -> float:
    """What computing one neuron reads."""
    parts = [ffn.up, ffn.down] if ffn.gate is None else [ffn.gate, ffn.up, ffn.down]
    num_neurons = ops.matrix_shape(ffn.up.matrix)[0]
    return sum(ops.matrix_bytes(part.matrix) for part in parts) / num_neurons


def count_active(
    ops: SomeOps, ffn: SomeFFN, x: FloatArray, router_input: FloatArray | None = None
) -> npt.NDArray[np.int64]:
    """Tokens in which each neuron is active: i64[num_neurons], of all experts one after the other.

    Args:
        ops: the backend.
        ffn: prepared.
        x: f32[num_tokens, hidden_size].
        router_input: f32[num_tokens, hidden_size], what the router sees; None for `x`.
    """
    routing = Routing.of(ops, ffn, x, router_input, _as_prompt(x))
    counts = np.zeros(routing.num_neurons, np.int64)
    for chunk in token_chunks(len(x)):
        _, values = neuron_values(ops, ffn, x[chunk], routing.rows(chunk))
        counts += routing.rows(chunk).count(values != 0)
    return counts


def firing_neurons(activation: Activation, gate: FloatArray | None, up: FloatArray) -> Mask:
    """Where neurons fire: bool[num_tokens, intermediate_size]; everywhere if none is ever zero.

    Args:
        activation: of the block.
        gate: f32[num_tokens, intermediate_size], before the activation; None without a gate.
        up: the same of up.
    """
    if not activation.is_sparse:
        return np.ones(up.shape, bool)
    firing = fires(activation, up if gate is None else gate)
    if gate is not None and activation.kind is ActivationKind.DRELU:
        firing &= fires(activation, up)
    return firing


def token_chunks(num_tokens: int) -> list[slice]:
    """Tokens to compute at once: numbers for every neuron of every expert take much memory."""
    return [slice(start, start + _CHUNK) for start in range(0, num_tokens, _CHUNK)]


def _part(values: FloatArray | None, tokens: slice | npt.NDArray[np.intp]) -> FloatArray | None:
    return None if values is None else np.ascontiguousarray(values[tokens])


def _output(
    ops: SomeOps, ffn: SomeFFN, x: FloatArray, router_input: FloatArray | None
) -> FloatArray:
    return ops.to_host(ops.ffn(x, ffn, None, _as_prompt(x), router_input))


def _as_prompt(x: FloatArray) -> BoolArray:
    """Marks of a text that was given."""
    return np.ones(len(x), bool)


def _exact(ops: SomeOps, ffn: SomeFFN) -> SomeFFN:
    return ops.ffn_weights(replace(ffn, is_exact_sparse=True, predictor=None))


def neuron_values(
    ops: SomeOps, ffn: SomeFFN, x: FloatArray, routing: Routing
) -> tuple[Mask, FloatArray]:
    """Where the deciding matrix fires, and the values that scale rows of down; of candidates.

    Args:
        ops: the backend.
        ffn: prepared.
        x: f32[num_tokens, hidden_size], input of the block.
        routing: of these tokens.

    Returns:
        bool[num_tokens, num_candidates] and f32[num_tokens, num_candidates].
    """
    deciding = (ffn.up,) if ffn.gate is None else (ffn.gate, ffn.up)
    products = [ops.to_host(part) for part in ops.linear(x, deciding, _as_prompt(x))]
    wide = [routing.take(part).astype(np.float64) for part in products]
    gate = None if ffn.gate is None else wide[0]
    values = activate(ffn.activation, gate, wide[-1])
    return fires(ffn.activation, wide[0]), narrow(values)


@quietly
def _squared(values: FloatArray) -> FloatArray:
    squared: FloatArray = np.square(values)
    return squared


def _squares(values: FloatArray) -> npt.NDArray[np.float64]:
    """Squared length of each row: f64[num_tokens]."""
    squares: npt.NDArray[np.float64] = np.square(values, dtype=np.float64).sum(axis=1)
    return squares
