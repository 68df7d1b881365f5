"""Operands of operations: weights, their combinations, and counters of the work done with them.

Operands are generic over a backend's handles of matrices and vectors, so that the type checker
keeps the handles of one backend from another. They are covariant: an operand whose handles are all
of one kind serves wherever that kind is one of several.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt

from powerinfer.values import Activation, FloatArray, IntArray

__all__ = [
    "FFN",
    "ActiveIds",
    "DeltaRule",
    "FFNCounters",
    "HeadNorms",
    "KVType",
    "Linear",
    "MatrixT",
    "MatrixUse",
    "NeuronPredictor",
    "NeuronShares",
    "RopeTable",
    "Router",
    "RouterRule",
    "ScoreStage",
    "SelectiveScan",
    "ShortConv",
    "VectorT",
]

MatrixT = TypeVar("MatrixT")
MatrixT_co = TypeVar("MatrixT_co", covariant=True)
VectorT = TypeVar("VectorT")
VectorT_co = TypeVar("VectorT_co", covariant=True)


class KVType(StrEnum):
    """Element type of the KV cache."""

    F16 = "f16"
    Q8_0 = "q8_0"


class MatrixUse(StrEnum):
    """Access pattern of a matrix; a backend chooses its memory layout by it.

    DENSE: every row for every token (attention, output head, predictors): any layout will do.
    NEURONS: rows are neurons, of which any may be skipped: each row must stay readable on its own.
    EMBEDDING: a few rows are looked up: copying the matrix would cost more than it saves.

    The native backend treats DENSE and NEURONS alike: its superblocks keep rows whole, so it
    repacks every quantized matrix of rows of 256 weights or more, except MXFP4, and if it may not
    work in place, it copies all others too. An EMBEDDING stays in the file.
    """

    DENSE = "dense"
    NEURONS = "neurons"
    EMBEDDING = "embedding"


@dataclass(frozen=True, slots=True)
class Linear(Generic[MatrixT_co, VectorT_co]):
    """y = x @ matrix.T + bias; matrix is [out_features, in_features]."""

    matrix: MatrixT_co
    bias: VectorT_co | None = None


@dataclass(frozen=True, slots=True)
class ActiveIds:
    """Neuron ids of several tokens.

    Attributes:
        offsets: i64[num_tokens + 1]; token t has ids[offsets[t]:offsets[t + 1]].
        ids: i32[offsets[-1]], strictly increasing within a token.
    """

    offsets: npt.NDArray[np.int64]
    ids: IntArray

    def of(self, token: int) -> IntArray:
        """Return the ids of one token."""
        chosen: IntArray = self.ids[self.offsets[token] : self.offsets[token + 1]]
        return chosen

    def mask(self, num_neurons: int) -> npt.NDArray[np.bool_]:
        """Return bool[num_tokens, num_neurons], true for listed ids; the inverse of `of_mask`."""
        num_tokens = len(self.offsets) - 1
        mask = np.zeros((num_tokens, num_neurons), bool)
        mask[np.repeat(np.arange(num_tokens), np.diff(self.offsets)), self.ids] = True
        return mask

    @classmethod
    def of_mask(cls, mask: npt.NDArray[np.bool_]) -> Self:
        """List the ids for which a bool[num_tokens, intermediate_size] is true."""
        offsets = np.zeros(len(mask) + 1, np.int64)
        np.cumsum(mask.sum(axis=1), out=offsets[1:])
        return cls(offsets, np.nonzero(mask)[1].astype(np.int32))


@dataclass(frozen=True, slots=True)
class ScoreStage(Generic[MatrixT_co, VectorT_co]):
    """One test of a predictor: neuron i passes iff matrix[i] . input + bias[i] >= threshold.

    A score that is NaN passes, so that damage is not hidden by skipping.

    Attributes:
        matrix: [intermediate_size, columns]; columns beyond the input's meet zeros.
        bias: f32[intermediate_size] or None.
        threshold: score at or above which a neuron may fire.
    """

    matrix: MatrixT_co
    bias: VectorT_co | None
    threshold: float


@dataclass(frozen=True, slots=True)
class NeuronPredictor(Generic[MatrixT_co, VectorT_co]):
    """Predictor of the neurons of an FFN that fire; the FFN call runs it first.

    The input, minus `center`, goes through ``relu(fc1 @ input)`` if there is `fc1`, then through
    the stages in order; a later stage sees only neurons that passed the earlier ones. With
    `num_experts` and `fc1` each expert has its own hidden layer, the input of the stages' rows for
    its neurons.

    Attributes:
        fc1: [num_experts * rank, hidden_size] or None.
        center: f32[hidden_size] or None.
        num_experts: experts with a hidden layer each; the rows of the stages are grouped by expert.
            1 for a dense FFN, or one hidden layer for all.
        native: the backend's own form, set by `Ops.neuron_predictor`; its type is not checked.
    """

    fc1: MatrixT_co | None
    center: VectorT_co | None
    stages: tuple[ScoreStage[MatrixT_co, VectorT_co], ...]
    num_experts: int = field(default=1, kw_only=True)
    native: Any = field(default=None, kw_only=True)


class RouterRule(StrEnum):
    """Function from the logits of a router to the weights of the experts that it chooses.

    SOFTMAX: over the logits of all experts; if normalised, over those of the chosen experts only.
    SIGMOID: of each logit separately.
    """

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"


@dataclass(frozen=True, slots=True)
class Router(Generic[MatrixT_co, VectorT_co]):
    """Choice of a token's experts: those with the largest logits; among equals, the lower id.

    A logit that is NaN counts as the smallest, and makes the token's weights NaN, so that damage
    reaches the output.

    Attributes:
        linear: [num_experts, hidden_size], with its bias f32[num_experts] or None.
        num_used: experts per token.
        is_normalized: weights are divided by their sum, sigmoids by at least 6.1e-5.
        selection_bias: f32[num_experts], added to the sigmoids to choose experts, but not to their
            weights; None for none.
        scale: factor of the weights.
        expert_scale: f32[num_experts], factors of the weights, applied last; None for none.
    """

    linear: Linear[MatrixT_co, VectorT_co]
    num_experts: int
    num_used: int
    rule: RouterRule
    is_normalized: bool
    selection_bias: VectorT_co | None = None
    scale: float = 1.0
    expert_scale: VectorT_co | None = None


@dataclass(frozen=True, slots=True)
class FFN(Generic[MatrixT_co, VectorT_co]):
    """One feed-forward block, or with a router a mixture of experts.

    A mixture is a block of num_experts * intermediate_size neurons of which a token runs those of
    its experts. Its matrices and biases hold all experts, one after the other: gate, up and
    transposed down are [num_experts * intermediate_size, hidden_size], plain down is
    [num_experts * hidden_size, intermediate_size], the bias of down is f32[num_experts *
    hidden_size]. The output of an expert, its bias included, is multiplied by its weight.

    Attributes:
        gate: [intermediate_size, hidden_size] or None for an ungated FFN.
        up: [intermediate_size, hidden_size].
        down: [intermediate_size, hidden_size] if `is_down_transposed` (neuron i is row i), else
            [hidden_size, intermediate_size] (neuron i is column i).
        is_exact_sparse: skip the rows of neurons that do not fire (activation must be sparse); the
            result equals the dense one up to rounding.
        predictor: decides which neurons are computed; None computes the gate of all.
        router: chooses the experts of each token; None for a dense block.
        native: the backend's own form, set by `Ops.ffn_weights`; its type is not checked.
    """

    gate: Linear[MatrixT_co, VectorT_co] | None
    up: Linear[MatrixT_co, VectorT_co]
    down: Linear[MatrixT_co, VectorT_co]
    activation: Activation
    is_down_transposed: bool
    is_exact_sparse: bool
    predictor: NeuronPredictor[MatrixT_co, VectorT_co] | None = None
    router: Router[MatrixT_co, VectorT_co] | None = None
    native: Any = field(default=None, kw_only=True)

    @property
    def num_experts(self) -> int:
        """Number of experts; 1 without a router."""
        return 1 if self.router is None else self.router.num_experts


@dataclass(frozen=True, slots=True)
class HeadNorms(Generic[VectorT_co]):
    """RMS norms of the single heads of q and k, before they are rotated (QK-norm).

    Attributes:
        q: f32[head_dim], shared by all heads of q.
        k: f32[head_dim], shared by all heads of k.
        eps: added to the mean square.
        v: f32[head_dim], of values, which are not rotated; None leaves them as they are.
    """

    q: VectorT_co
    k: VectorT_co
    eps: float
    v: VectorT_co | None = None

    def map(self, change: Callable[[VectorT_co], VectorT]) -> "HeadNorms[VectorT]":
        """Convert the handles of the weights."""
        v = None if self.v is None else change(self.v)
        return HeadNorms(change(self.q), change(self.k), self.eps, v)


@dataclass(frozen=True, slots=True)
class ShortConv(Generic[VectorT_co]):
    """Causal convolution of each channel over the last tokens.

    Attributes:
        weight: f32[num_channels * num_taps], the taps of a channel side by side; the last one meets
            the newest token.
    """

    weight: VectorT_co
    num_taps: int


@dataclass(frozen=True, slots=True)
class DeltaRule(Generic[VectorT_co]):
    """Weights and sizes of a gated delta rule, see `MixerOps.delta_rule`.

    Attributes:
        conv: f32[num_channels * num_taps], as `ShortConv.weight`; a channel is a column of `mixed`.
        a: f32[num_value_heads], at most 0.
        dt_bias: f32[num_value_heads].
        norm: f32[value_dim], weight of the RMS norm of each head's output.
        eps: added to its mean square.
        num_key_heads: heads of q and k; divides `num_value_heads`.
    """

    conv: VectorT_co
    a: VectorT_co
    dt_bias: VectorT_co
    norm: VectorT_co
    eps: float
    num_taps: int
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int

    @property
    def num_channels(self) -> int:
        """Columns of q, k and v together."""
        return 2 * self.num_key_heads * self.key_dim + self.num_value_heads * self.value_dim


@dataclass(frozen=True, slots=True)
class SelectiveScan(Generic[VectorT_co]):
    """Weights and sizes of a selective scan, see `MixerOps.selective_scan`.

    Attributes:
        conv: f32[num_channels * num_taps], as `ShortConv.weight`; a channel is a column of x, b or
            c.
        conv_bias: f32[num_channels] or None.
        a: f32[num_heads], at most 0.
        skip: f32[num_heads].
        dt_bias: f32[num_heads].
        norm: f32[num_inner], weights of the RMS norm of each group of heads.
        eps: added to its mean square.
        num_groups: groups of heads, which share b and c; divides `num_heads`.
    """

    conv: VectorT_co
    conv_bias: VectorT_co | None
    a: VectorT_co
    skip: VectorT_co
    dt_bias: VectorT_co
    norm: VectorT_co
    eps: float
    num_taps: int
    num_groups: int
    num_heads: int
    head_dim: int
    state_dim: int

    @property
    def num_inner(self) -> int:
        """Columns of all heads."""
        return self.num_heads * self.head_dim

    @property
    def num_channels(self) -> int:
        """Columns of x, b and c together."""
        return self.num_inner + 2 * self.num_groups * self.state_dim


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Rotation angles of rotary position embedding (RoFormer, arXiv 2104.09864).

    Attributes:
        cos: f32[context_length, rotary_dim // 2], already scaled by YaRN's magnitude if any.
        sin: f32[context_length, rotary_dim // 2].
        is_interleaved: pairs are (2i, 2i+1) (GGUF `llama`); else (i, i + rotary_dim/2) (NeoX).
    """

    cos: FloatArray
    sin: FloatArray
    is_interleaved: bool

    @property
    def rotary_dim(self) -> int:
        """Leading dimensions of a head that rotate; the rest pass through."""
        return 2 * int(self.cos.shape[1])


@dataclass(frozen=True, slots=True)
class NeuronShares:
    """Shares of an FFN's neurons, counting those of all experts, that decode rows needed.

    Attributes:
        active: neurons that fired, on average over the rows.
        union: neurons that fired for any row of a batch, or that were computed if none is skipped.
    """

    active: float
    union: float


@dataclass(slots=True)
class FFNCounters:
    """Running counts of the work of FFN calls; a backend adds to them.

    Numbers of neurons are summed over tokens and layers. Seconds, and the bytes of routers, stay 0
    if the backend does not measure them.

    Attributes:
        active: neurons whose result was used.
        predicted: neurons that a predictor let pass; without a predictor, all neurons of the dense
            block or of the chosen experts.
        total: all neurons, those of all experts included.
        bytes_read: weight bytes read by FFN calls, including those of predictors and routers.
        predictor_bytes: bytes of predictors among `bytes_read`.
        down_bytes: bytes of gathered rows of down among them.
        router_bytes: bytes of routers among them.
        predictor_s: seconds in predictors.
        down_s: seconds gathering rows of down.
        router_s: seconds choosing experts.
    """

    active: int = 0
    predicted: int = 0
    total: int = 0
    bytes_read: int = 0
    predictor_bytes: int = 0
    down_bytes: int = 0
    router_bytes: int = field(default=0, compare=False)
    predictor_s: float = field(default=0.0, compare=False)
    down_s: float = field(default=0.0, compare=False)
    router_s: float = field(default=0.0, compare=False)

    def add(self, other: "FFNCounters") -> None:
        """Add the counts of another."""
        for count in fields(self):
            setattr(self, count.name, getattr(self, count.name) + getattr(other, count.name))
