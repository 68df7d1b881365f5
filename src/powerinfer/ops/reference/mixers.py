"""Operations of mixers with a state, as part of the numpy reference.

States are rounded to f32 after every token, which makes the rounding a part of the result: a
sequence may be cut into steps anywhere.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerinfer.errors import PowerInferError
from powerinfer.ops.float_errors import ignore_float_errors
from powerinfer.ops.operands import DeltaRule, RopeTable, SelectiveScan, ShortConv
from powerinfer.ops.reference.ffn import activate
from powerinfer.ops.reference.matrix import DoubleArray, narrow
from powerinfer.values import Activation, ActivationKind, Batch, FloatArray, IntArray

__all__ = ["ReferenceMixers", "ReferenceState", "rotate"]

# Added to the sum of squares of a query or key.
_NORM_EPS = 1e-6
# Above this softplus is the identity, to the last bit of f32.
_LINEAR_SOFTPLUS = 20.0
_GELU = Activation(ActivationKind.GELU)


@dataclass(frozen=True, slots=True)
class ReferenceState:
    """States of one layer: f32[num_slots, size]."""

    slots: FloatArray

    def before(self, source: int) -> FloatArray:
        """Copy a slot; -1: zeros."""
        return np.zeros_like(self.slots[0]) if source < 0 else self.slots[source].copy()


@dataclass(frozen=True, slots=True)
class _Span:
    """The tokens of one sequence in a batch, and its slots."""

    rows: npt.NDArray[np.intp]
    source: int
    target: int


class ReferenceMixers:
    """`powerinfer.ops.mixer_ops.MixerOps` in numpy; see there for shapes."""

    __slots__ = ()

    def new_state_layers(self, sizes: Sequence[int], num_slots: int) -> list[ReferenceState]:
        """Allocate without touching: the pages of a slot take memory once it is written."""
        return [ReferenceState(np.zeros((num_slots, size), np.float32)) for size in sizes]

    @ignore_float_errors
    def short_conv(
        self, x: FloatArray, conv: ShortConv[FloatArray], state: ReferenceState, batch: Batch
    ) -> FloatArray:
        """Convolve b * u and scale the result by c, one sequence after the other."""
        b, c, u = np.split(x, 3, axis=1)
        out = np.empty_like(c)
        for span in _spans(batch):
            columns = state.before(span.source)
            convolved = _convolve((b * u)[span.rows], conv.weight, columns)
            out[span.rows] = narrow(c[span.rows] * convolved)
            state.slots[span.target] = columns
        return out

    @ignore_float_errors
    def delta_rule(
        self,
        mixed: FloatArray,
        gate: FloatArray,
        beta: FloatArray,
        alpha: FloatArray,
        rule: DeltaRule[FloatArray],
        state: ReferenceState,
        batch: Batch,
    ) -> FloatArray:
        """Run the recurrence of all heads, token by token."""
        out = np.empty_like(gate)
        decay = np.exp(rule.a * _softplus(alpha.astype(np.float64) + rule.dt_bias))
        split = (rule.num_taps - 1) * rule.num_channels
        for span in _spans(batch):
            slot = state.before(span.source)
            convolved = _convolve(mixed[span.rows], rule.conv, slot[:split])
            q, k, v = _heads(convolved * _sigmoid(convolved), rule)
            matrices = slot[split:].reshape(-1, rule.value_dim, rule.key_dim)
            heads = _scan(q, k, v, decay[span.rows], _sigmoid(beta[span.rows]), matrices)
            heads /= np.sqrt(np.mean(heads * heads, axis=-1, keepdims=True) + rule.eps)
            z = gate[span.rows].astype(np.float64)
            out[span.rows] = narrow((heads * rule.norm).reshape(z.shape) * z * _sigmoid(z))
            state.slots[span.target] = slot
        return out

    @ignore_float_errors
    def selective_scan(
        self, x: FloatArray, scan: SelectiveScan[FloatArray], state: ReferenceState, batch: Batch
    ) -> FloatArray:
        """Run the recurrence of all heads, token by token."""
        ends = [scan.num_inner, scan.num_inner + scan.num_channels]
        gate, mixed, dt = np.split(x, ends, axis=1)
        steps = _softplus(dt.astype(np.float64) + scan.dt_bias)
        split = (scan.num_taps - 1) * scan.num_channels
        out = np.empty_like(gate)
        for span in _spans(batch):
            slot = state.before(span.source)
            convolved = _convolve(mixed[span.rows], scan.conv, slot[:split])
            convolved += 0.0 if scan.conv_bias is None else scan.conv_bias
            matrices = slot[split:].reshape(-1, scan.head_dim, scan.state_dim)
            heads = _selective(
                convolved * _sigmoid(convolved), steps[span.rows], scan, matrices
            ).reshape(len(span.rows), -1)
            z = gate[span.rows].astype(np.float64)
            groups = (heads * z * _sigmoid(z)).reshape(len(z), scan.num_groups, -1)
            groups /= np.sqrt(np.mean(groups * groups, axis=-1, keepdims=True) + scan.eps)
            out[span.rows] = narrow(groups.reshape(z.shape) * scan.norm)
            state.slots[span.target] = slot
        return out

    @ignore_float_errors
    def gate(self, x: FloatArray, g: FloatArray) -> None:
        """Multiply x by sigmoid(g) in place."""
        x[:] = narrow(x * _sigmoid(g))

    @ignore_float_errors
    def gelu_gate(self, x: FloatArray, y: FloatArray) -> None:
        """Replace x by gelu(x) * y."""
        x[:] = narrow(activate(_GELU, x.astype(np.float64), y.astype(np.float64)))

    @ignore_float_errors
    def scale(self, x: FloatArray, factor: float) -> None:
        """Multiply x by a number in place."""
        x *= np.float32(factor)

    @ignore_float_errors
    def rms_norm(self, x: FloatArray, weight: FloatArray, eps: float) -> FloatArray:
        """Root mean square normalisation (arXiv 1910.07467)."""
        wide = x.astype(np.float64)
        scale = 1.0 / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + eps)
        return narrow(wide * scale * weight)

    def rotate_queries(
        self,
        q: FloatArray,
        head_dim: int,
        batch: Batch,
        rope: RopeTable | None,
        norm: FloatArray | None,
        eps: float,
    ) -> None:
        """Normalise and rotate q in place."""
        heads = q.reshape(len(q), -1, head_dim)
        if norm is not None:
            heads[:] = self.rms_norm(heads, norm, eps)
        if rope is not None:
            rotate(heads, batch.positions, rope)


@ignore_float_errors
def rotate(heads: FloatArray, positions: IntArray, rope: RopeTable) -> None:
    """Rotate pairs of f32[num_tokens, heads, head_dim] in place."""
    half = rope.rotary_dim // 2
    cos = rope.cos[positions, None, :].astype(np.float64)
    sin = rope.sin[positions, None, :].astype(np.float64)
    if rope.is_interleaved:
        left, right = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    else:
        left, right = slice(0, half), slice(half, 2 * half)
    a, b = heads[..., left].astype(np.float64), heads[..., right].astype(np.float64)
    heads[..., left] = a * cos - b * sin
    heads[..., right] = a * sin + b * cos


def _spans(batch: Batch) -> Iterator[_Span]:
    if batch.state_sources is None or batch.state_targets is None:
        raise PowerInferError("the batch names no slots of state; allocate them before the step")
    for sequence in np.unique(batch.sequences):
        rows = np.flatnonzero(batch.sequences == sequence)
        source, target = batch.state_sources[sequence], batch.state_targets[sequence]
        yield _Span(rows, int(source), int(target))


def _convolve(x: FloatArray, weight: FloatArray, columns: FloatArray) -> DoubleArray:
    """Convolve f32[num_tokens, num_channels]; replaces the columns before x by its last ones."""
    taps = weight.reshape(x.shape[1], -1).T.astype(np.float64)
    joined = np.concatenate([columns.reshape(-1, x.shape[1]), x])
    columns[:] = joined[len(x) :].reshape(-1)
    out: DoubleArray = sum(tap * joined[i : i + len(x)] for i, tap in enumerate(taps))
    return out


def _heads(x: DoubleArray, rule: DeltaRule[FloatArray]) -> tuple[DoubleArray, ...]:
    """Split into q, k, v, f64[num_tokens, num_value_heads, key_dim or value_dim]; q, k normed."""
    num_keys = rule.num_key_heads * rule.key_dim
    q, k, v = np.split(x, [num_keys, 2 * num_keys], axis=1)
    key_heads = np.arange(rule.num_value_heads) % rule.num_key_heads

    def normed(rows: DoubleArray) -> DoubleArray:
        heads = rows.reshape(len(x), -1, rule.key_dim)[:, key_heads]
        squares = (heads * heads).sum(axis=-1, keepdims=True)
        unit: DoubleArray = heads / np.sqrt(squares + _NORM_EPS)
        return unit

    values = v.reshape(len(x), -1, rule.value_dim)
    return normed(q) / np.sqrt(rule.key_dim), normed(k), values


def _scan(
    q: DoubleArray,
    k: DoubleArray,
    v: DoubleArray,
    decay: DoubleArray,
    beta: DoubleArray,
    matrices: FloatArray,
) -> DoubleArray:
    """Run tokens through f32[num_value_heads, value_dim, key_dim], in place.

    Returns:
        f64[num_tokens, num_value_heads, value_dim].
    """
    out = np.empty_like(v)
    for t in range(len(v)):
        decayed = decay[t, :, None, None] * matrices.astype(np.float64)
        delta = beta[t, :, None] * (v[t] - np.einsum("hvk,hk->hv", decayed, k[t]))
        matrices[:] = narrow(decayed + delta[:, :, None] * k[t, :, None, :])
        out[t] = np.einsum("hvk,hk->hv", matrices.astype(np.float64), q[t])
    return out


def _selective(
    x: DoubleArray, steps: DoubleArray, scan: SelectiveScan[FloatArray], matrices: FloatArray
) -> DoubleArray:
    """Run tokens through f32[num_heads, head_dim, state_dim], in place.

    Args:
        x: f64[num_tokens, num_channels], rows of x, b and c.
        steps: f64[num_tokens, num_heads].

    Returns:
        f64[num_tokens, num_heads, head_dim].
    """
    width = scan.num_groups * scan.state_dim
    values, b, c = np.split(x, [scan.num_inner, scan.num_inner + width], axis=1)
    values = values.reshape(len(x), scan.num_heads, scan.head_dim)
    groups = np.arange(scan.num_heads) // (scan.num_heads // scan.num_groups)
    b, c = (part.reshape(len(x), -1, scan.state_dim)[:, groups] for part in (b, c))
    out = scan.skip[:, None] * values
    for t, step in enumerate(steps):
        decayed = np.exp(scan.a * step)[:, None, None] * matrices.astype(np.float64)
        added = (step[:, None] * values[t])[:, :, None] * b[t, :, None, :]
        matrices[:] = narrow(decayed + added)
        out[t] += np.einsum("hpn,hn->hp", matrices.astype(np.float64), c[t])
    return out


def _sigmoid(x: FloatArray | DoubleArray) -> DoubleArray:
    result: DoubleArray = 1.0 / (1.0 + np.exp(-x.astype(np.float64)))
    return result


def _softplus(x: DoubleArray) -> DoubleArray:
    result: DoubleArray = np.where(x > _LINEAR_SOFTPLUS, x, np.log1p(np.exp(x)))
    return result
