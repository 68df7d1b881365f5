"""The FFN in numpy: the definition of skipping, written for reading."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from powerinfer.errors import ShapeError
from powerinfer.ops.float_errors import ignore_float_errors
from powerinfer.ops.protocol import FFN, ActiveIds, FFNCounters
from powerinfer.ops.reference.matrix import (
    DoubleArray,
    Mask,
    ReferenceLinear,
    ReferenceMatrix,
    add_bias,
    bytes_of_rows,
    narrow,
    product,
)
from powerinfer.values import Activation, ActivationKind, FloatArray

__all__ = [
    "ReferenceFFN",
    "activate",
    "ffn_values",
    "fires",
    "hidden_size",
    "mask_of_ids",
    "neuron_values",
    "run_ffn",
]

ReferenceFFN: TypeAlias = FFN[ReferenceMatrix, FloatArray]

# gpt-oss's activation: the limit of gate and up, and the factor of sigmoid's argument.
_CLAMP = 7.0
_SWIGLU_SLOPE = 1.702


@ignore_float_errors
def activate(activation: Activation, gate: DoubleArray | None, up: DoubleArray) -> DoubleArray:
    """Compute the values that scale the rows of `down`; without a gate, from `up` alone."""
    first = up if gate is None else gate
    kind = activation.kind
    if kind is ActivationKind.SILU:
        fired = first / (1.0 + np.exp(-first))
    elif kind is ActivationKind.GELU:
        # The tanh form, as other engines run GGUF models (arXiv 1606.08415, section 2).
        inner = np.sqrt(2.0 / np.pi) * (first + 0.044715 * first**3)
        fired = 0.5 * first * (1.0 + np.tanh(inner))
    elif kind is ActivationKind.FATRELU:
        # Written so that NaN passes, as it does through maximum.
        fired = np.where(first < activation.threshold, 0.0, first)
    elif kind is ActivationKind.CLAMPED_SWIGLU:
        clamped = np.minimum(first, _CLAMP)
        fired = clamped / (1.0 + np.exp(-_SWIGLU_SLOPE * clamped))
    else:
        fired = np.maximum(first, 0.0)
    if kind is ActivationKind.RELU2:
        fired = fired * fired
    if activation.is_cut:
        fired = np.where(np.abs(fired) < activation.threshold, 0.0, fired)
    if gate is None:
        return fired
    if kind is ActivationKind.CLAMPED_SWIGLU:
        return fired * (np.clip(up, -_CLAMP, _CLAMP) + 1.0)
    return fired * (np.maximum(up, 0.0) if kind is ActivationKind.DRELU else up)


def run_ffn(
    x: FloatArray,
    ffn: ReferenceFFN,
    mask: Mask | None,
    counters: FFNCounters,
    weights: FloatArray | None = None,
) -> FloatArray:
    """Run a block on f32[num_tokens, hidden_size]; adds to `counters`.

    Bytes are counted once per step for a row that any token used. `mask`,
    bool[num_tokens, intermediate_size], selects neurons; None for all. `weights`,
    f32[num_tokens, n], are factors of the values of n groups of consecutive neurons; None: 1.
    """
    counters.total += len(x) * len(ffn.up.matrix.values)
    return narrow(ffn_values(x, ffn, mask, counters, weights))


def ffn_values(
    x: FloatArray,
    ffn: ReferenceFFN,
    mask: Mask | None,
    counters: FFNCounters,
    weights: FloatArray | None = None,
) -> DoubleArray:
    """Compute `run_ffn` before rounding: f64[num_tokens, hidden_size]; does not count `total`."""
    num_tokens, num_neurons = len(x), len(ffn.up.matrix.values)
    counters.predicted += num_tokens * num_neurons if mask is None else int(mask.sum())
    wide = np.ones((num_tokens, 1)) if weights is None else weights.astype(np.float64)
    factors = np.repeat(wide, num_neurons // wide.shape[1], axis=1)
    if mask is None and not ffn.is_exact_sparse:
        return _dense(x, ffn, counters, factors)
    wanted = np.ones((num_tokens, num_neurons), bool) if mask is None else mask
    return _listed(x, ffn, wanted, counters, factors)


def _dense(
    x: FloatArray, ffn: ReferenceFFN, counters: FFNCounters, factors: DoubleArray
) -> DoubleArray:
    counters.active += len(x) * len(ffn.up.matrix.values)
    matrices = [linear.matrix for linear in (ffn.gate, ffn.up, ffn.down) if linear is not None]
    counters.bytes_read += sum(matrix.num_bytes for matrix in matrices)
    hidden = activate(
        ffn.activation, None if ffn.gate is None else product(x, ffn.gate), product(x, ffn.up)
    )
    hidden = hidden * factors
    down = ffn.down.matrix.values.astype(np.float64)
    return add_bias(hidden @ (down if ffn.is_down_transposed else down.T), ffn.down)


def _listed(
    x: FloatArray, ffn: ReferenceFFN, mask: Mask, counters: FFNCounters, factors: DoubleArray
) -> DoubleArray:
    """Use the deciding matrix for listed neurons, up if it fires, down if neither is zero."""
    decider = ffn.up if ffn.gate is None else ffn.gate
    scores = product(x, decider)
    firing = mask & fires(ffn.activation, scores)
    uses_down = np.zeros_like(mask)
    out = np.empty((len(x), hidden_size(ffn)))
    for token, token_fires in enumerate(firing):
        ids = np.flatnonzero(token_fires)
        up = scores[token, ids] if ffn.gate is None else _product_rows(x[token], ffn.up, ids)
        hidden = activate(ffn.activation, None if ffn.gate is None else scores[token, ids], up)
        hidden = hidden * factors[token, ids]
        # NaN is kept: it must reach the output, where the engine checks for it.
        is_used = hidden != 0
        ids, hidden = ids[is_used], hidden[is_used]
        uses_down[token, ids] = True
        out[token] = add_bias(hidden @ _down_rows(ffn, ids), ffn.down)
    counters.active += int(uses_down.sum())
    counters.bytes_read += bytes_of_rows(decider.matrix, mask)
    if ffn.gate is not None:
        counters.bytes_read += bytes_of_rows(ffn.up.matrix, firing)
    if ffn.is_down_transposed:
        down_bytes = bytes_of_rows(ffn.down.matrix, uses_down)
        counters.down_bytes += down_bytes
        counters.bytes_read += down_bytes
    else:
        counters.bytes_read += ffn.down.matrix.num_bytes
    return out


def neuron_values(x: FloatArray, ffn: ReferenceFFN) -> FloatArray:
    """Compute the factors of the rows of down, none skipped: f32[num_tokens, intermediate_size]."""
    gate = None if ffn.gate is None else product(x, ffn.gate)
    return narrow(activate(ffn.activation, gate, product(x, ffn.up)))


def mask_of_ids(active: ActiveIds, num_tokens: int, num_neurons: int) -> Mask:
    """Return bool[num_tokens, num_neurons], true for listed neurons.

    Raises:
        ShapeError: the number of lists is not that of the tokens.
        IndexError: ids are out of range or do not ascend.
    """
    if len(active.offsets) != num_tokens + 1:
        raise ShapeError(f"{len(active.offsets) - 1} lists of neurons for {num_tokens} tokens")
    for token in range(num_tokens):
        ids = active.of(token)
        if len(ids) and (ids[0] < 0 or ids[-1] >= num_neurons or (np.diff(ids) <= 0).any()):
            raise IndexError(
                f"neuron ids of token {token} must ascend strictly within [0, {num_neurons})"
            )
    return active.mask(num_neurons)


def fires(activation: Activation, scores: DoubleArray | FloatArray) -> Mask:
    """Test which neurons can contribute; NaN fires, so that skipping does not hide it.

    All can if none is ever exactly zero.

    `scores` are those of gate, or of up in an ungated block: [num_tokens, intermediate_size].
    """
    if activation.kind is ActivationKind.FATRELU:
        return ~(scores < activation.threshold)
    if activation.is_cuttable:
        values = activate(Activation(activation.kind), None, scores.astype(np.float64))
        return ~(np.abs(values) < activation.threshold)
    return ~(activation.is_sparse & (scores <= 0.0))


@ignore_float_errors
def _product_rows(x: FloatArray, layer: ReferenceLinear, ids: npt.NDArray[np.intp]) -> DoubleArray:
    """Compute chosen elements of the product of one token: f64[len(ids)]."""
    chosen: DoubleArray = layer.matrix.values[ids].astype(np.float64) @ x.astype(np.float64)
    return chosen if layer.bias is None else chosen + layer.bias[ids]


def _down_rows(ffn: ReferenceFFN, ids: npt.NDArray[np.intp]) -> DoubleArray:
    """Return rows of the transposed down projection: f64[len(ids), hidden_size]."""
    down = ffn.down.matrix.values
    return (down[ids] if ffn.is_down_transposed else down[:, ids].T).astype(np.float64)


def hidden_size(ffn: ReferenceFFN) -> int:
    """Return the width of the output of a block."""
    shape = ffn.down.matrix.values.shape
    return int(shape[1]) if ffn.is_down_transposed else int(shape[0]) // ffn.num_experts
