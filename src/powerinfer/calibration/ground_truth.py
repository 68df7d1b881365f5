"""The true result of an FFN for some tokens: active neurons, and how much each of them adds."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from powerinfer.calibration.routing import Routing
from powerinfer.ops.backend import Backend, SomeFFN
from powerinfer.ops.float_errors import ignore_float_errors
from powerinfer.ops.protocol import Linear
from powerinfer.ops.reference.ffn import activate, fires
from powerinfer.ops.reference.matrix import narrow
from powerinfer.values import Activation, ActivationKind, BoolArray, FloatArray

__all__ = [
    "FFNError",
    "GroundTruth",
    "Mask",
    "activated",
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


class GroundTruth:
    """The true result of one layer on the test tokens; predictors are measured against it.

    Neurons of experts that a token is not given to do not count: neither hits nor misses, they are
    not among the columns of `fires` and `active`.

    Attributes:
        x: f32[num_tokens, hidden_size], input of the FFN.
        fires: bool[num_tokens, num_candidates], neurons whose gate (ungated: up) fires.
        active: bool[num_tokens, num_candidates], neurons whose value is not zero.
        energy: f32[active pairs], squares of the active neurons' values times the weights of their
            experts, in the order of `active`.
        firsts: bool[num_tokens], tokens that begin a window.
    """

    def __init__(
        self,
        ops: Backend,
        ffn: SomeFFN,
        x: FloatArray,
        firsts: npt.NDArray[np.bool_] | None = None,
        router_input: FloatArray | None = None,
    ) -> None:
        """Run a block on x f32[num_tokens, hidden_size], without loss.

        `firsts` are none by default; `router_input` is what the router sees if that is not `x`.
        """
        self.routing = Routing.of(ops, ffn, x, router_input, _as_prompt(x))
        chunks = token_chunks(len(x))
        parts = [neuron_values(ops, ffn, x[chunk], self.routing.rows(chunk)) for chunk in chunks]
        self.fires, values = (np.concatenate(part) for part in zip(*parts, strict=True))
        self.active = values != 0
        self.energy = _squared(self.routing.weigh(values)[self.active])
        self.firsts = np.zeros(len(x), bool) if firsts is None else firsts
        exact = _exact(ops, ffn)
        self._output_squares = np.concatenate(
            [
                _squares(_output(ops, exact, x[chunk], _part(router_input, chunk)))
                for chunk in chunks
            ]
        )
        # Without its bias, a block over the missed neurons alone is what skipping them loses.
        self._ffn = _exact(ops, replace(ffn, down=Linear(ffn.down.matrix, None)))
        self._most_missed = int(_MOST_BYTES // _neuron_bytes(ops, ffn))
        self.ops, self.x, self._router_input = ops, x, router_input

    @property
    def num_active(self) -> npt.NDArray[np.int64]:
        """Tokens in which each neuron is active, of all experts: i64[num_neurons]."""
        return self.routing.count(self.active)

    @property
    def is_finite(self) -> bool:
        """Nothing that the block computes is NaN or infinity."""
        return bool(np.isfinite(self.energy).all() and np.isfinite(self._output_squares).all())

    def ffn_error(self, predicted: Mask) -> FFNError:
        """Relative error of the output if only neurons bool[num_tokens, num_candidates] ran."""
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
        """The error from squares of the loss in each of these tokens."""
        output = self._output_squares[rows]
        value, high = _ratio(lost, output, rows)
        # Some models write a huge output for the first token, which drowns all others.
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


def _neuron_bytes(ops: Backend, ffn: SomeFFN) -> float:
    """Bytes read to compute one neuron."""
    parts = [ffn.up, ffn.down] if ffn.gate is None else [ffn.gate, ffn.up, ffn.down]
    num_neurons = ops.matrix_shape(ffn.up.matrix)[0]
    return sum(ops.matrix_bytes(part.matrix) for part in parts) / num_neurons


def count_active(
    ops: Backend, ffn: SomeFFN, x: FloatArray, router_input: FloatArray | None = None
) -> npt.NDArray[np.int64]:
    """Tokens in which each neuron is active: i64[num_neurons], of all experts one after the other.

    `x` is f32[num_tokens, hidden_size], and so is `router_input` if the router sees something else.
    """
    routing = Routing.of(ops, ffn, x, router_input, _as_prompt(x))
    counts = np.zeros(routing.num_neurons, np.int64)
    for chunk in token_chunks(len(x)):
        _, values = neuron_values(ops, ffn, x[chunk], routing.rows(chunk))
        counts += routing.rows(chunk).count(values != 0)
    return counts


def firing_neurons(activation: Activation, gate: FloatArray | None, up: FloatArray) -> Mask:
    """Firing neurons bool[num_tokens, intermediate_size]; all of them if none is ever zero.

    `gate` and `up` are products before the activation; `gate` is None without a gate.
    """
    firing = fires(activation, up if gate is None else gate)
    if gate is not None and activation.kind is ActivationKind.DRELU:
        firing &= fires(activation, up)
    return firing


def token_chunks(num_tokens: int) -> list[slice]:
    """Ranges of tokens to compute at once: values of all neurons of all experts are large."""
    return [slice(start, start + _CHUNK) for start in range(0, num_tokens, _CHUNK)]


def _part(values: FloatArray | None, tokens: slice | npt.NDArray[np.intp]) -> FloatArray | None:
    return None if values is None else np.ascontiguousarray(values[tokens])


def _output(
    ops: Backend, ffn: SomeFFN, x: FloatArray, router_input: FloatArray | None
) -> FloatArray:
    return ops.to_host(ops.ffn(x, ffn, None, _as_prompt(x), router_input))


def _as_prompt(x: FloatArray) -> BoolArray:
    """Prompt flags for a text that was given."""
    return np.ones(len(x), bool)


def _exact(ops: Backend, ffn: SomeFFN) -> SomeFFN:
    is_sparse = ffn.activation.is_sparse
    return ops.ffn_weights(replace(ffn, is_exact_sparse=is_sparse, predictor=None))


def neuron_values(
    ops: Backend, ffn: SomeFFN, x: FloatArray, routing: Routing
) -> tuple[Mask, FloatArray]:
    """Firing of the deciding matrix, and the values that scale rows of down, for candidates.

    Returns:
        bool[num_tokens, num_candidates] and f32[num_tokens, num_candidates].
    """
    deciding = (ffn.up,) if ffn.gate is None else (ffn.gate, ffn.up)
    products = [ops.to_host(part) for part in ops.linear(x, deciding, _as_prompt(x))]
    wide = [routing.take(part).astype(np.float64) for part in products]
    gate = None if ffn.gate is None else wide[0]
    values = activate(ffn.activation, gate, wide[-1])
    return fires(ffn.activation, wide[0]), narrow(values)


def activated(ops: Backend, ffn: SomeFFN, x: FloatArray, routing: Routing) -> FloatArray:
    """Activation of the deciding products, without up: f32[num_tokens, num_candidates]."""
    decider = ffn.up if ffn.gate is None else ffn.gate
    parts = []
    for chunk in token_chunks(len(x)):
        (product,) = ops.linear(x[chunk], (decider,), _as_prompt(x[chunk]))
        own = routing.rows(chunk).take(ops.to_host(product)).astype(np.float64)
        parts.append(narrow(activate(ffn.activation, None, own)))
    return np.concatenate(parts)


@ignore_float_errors
def _squared(values: FloatArray) -> FloatArray:
    squared: FloatArray = np.square(values)
    return squared


def _squares(values: FloatArray) -> npt.NDArray[np.float64]:
    """Squared length of each row: f64[num_tokens]."""
    squares: npt.NDArray[np.float64] = np.square(values, dtype=np.float64).sum(axis=1)
    return squares
