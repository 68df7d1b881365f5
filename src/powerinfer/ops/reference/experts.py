"""Mixtures of experts in numpy: the choice of experts and their combined output."""

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from powerinfer.errors import ShapeError, UnsupportedError
from powerinfer.ops.float_errors import ignore_float_errors
from powerinfer.ops.protocol import FFNCounters, Router, RouterRule
from powerinfer.ops.reference.ffn import ReferenceFFN, ffn_values, hidden_size
from powerinfer.ops.reference.matrix import (
    DoubleArray,
    Mask,
    ReferenceLinear,
    ReferenceMatrix,
    narrow,
    product,
)
from powerinfer.values import FloatArray, IntArray

__all__ = [
    "ChosenExperts",
    "ReferenceRouter",
    "check_experts",
    "choose_experts",
    "router_of",
    "run_experts",
]

ReferenceRouter: TypeAlias = Router[ReferenceMatrix, FloatArray]

# Sums of sigmoids below this are not divided by: the smallest normal number of f16.
_LEAST_SUM = 6.1e-5


@dataclass(frozen=True, slots=True)
class ChosenExperts:
    """The experts of several tokens.

    Attributes:
        ids: i32[num_tokens, num_used], ascending.
        weights: f32[num_tokens, num_used].
    """

    ids: IntArray
    weights: FloatArray

    def neurons(self, num_experts: int, num_neurons: int) -> Mask:
        """Return a mask of the experts' neurons: bool[num_tokens, num_neurons]."""
        chosen = np.zeros((len(self.ids), num_experts), bool)
        np.put_along_axis(chosen, self.ids, values=True, axis=1)
        return np.repeat(chosen, num_neurons // num_experts, axis=1)


def router_of(ffn: ReferenceFFN) -> ReferenceRouter:
    """Return the router of a block.

    Raises:
        UnsupportedError: the block has no router.
    """
    if ffn.router is None:
        raise UnsupportedError("an FFN without a router has no experts to choose")
    return ffn.router


@ignore_float_errors
def choose_experts(x: FloatArray, router: ReferenceRouter) -> ChosenExperts:
    """Choose the experts with the largest scores for each token; among equals, the lower id."""
    logits = narrow(product(x, router.linear))
    is_nan, scores = np.isnan(logits), logits
    if router.selection_bias is not None:
        scores = narrow(_sigmoid(logits.astype(np.float64))) + router.selection_bias
    # A stable sort keeps equal scores in the order of ids.
    order = np.argsort(np.where(is_nan, np.inf, -scores), axis=1, kind="stable")
    ids = np.sort(order[:, : router.num_used], axis=1).astype(np.int32)
    weights = router.scale * _weights(logits.astype(np.float64), ids, router)
    if router.expert_scale is not None:
        weights *= router.expert_scale[ids]
    weights[is_nan.any(axis=1)] = np.nan
    return ChosenExperts(ids, narrow(weights))


def _weights(logits: DoubleArray, ids: IntArray, router: ReferenceRouter) -> DoubleArray:
    """Compute the weights of the chosen experts before scaling: f64[num_tokens, num_used]."""
    chosen: DoubleArray = np.take_along_axis(logits, ids, axis=1)
    if router.rule is RouterRule.SIGMOID:
        weights: DoubleArray = _sigmoid(chosen)
        if router.is_normalized:
            weights /= np.maximum(weights.sum(axis=1, keepdims=True), _LEAST_SUM)
        return weights
    largest = chosen.max(axis=1, keepdims=True)
    over = chosen if router.is_normalized else logits
    weights = np.exp(chosen - largest)
    weights /= np.exp(over - largest).sum(axis=1, keepdims=True)
    return weights


def _sigmoid(logits: DoubleArray) -> DoubleArray:
    sigmoids: DoubleArray = 1.0 / (1.0 + np.exp(-logits))
    return sigmoids


def run_experts(
    x: FloatArray,
    ffn: ReferenceFFN,
    chosen: ChosenExperts,
    mask: Mask | None,
    counters: FFNCounters,
) -> FloatArray:
    """Run the chosen experts on f32[num_tokens, hidden_size]; adds to `counters`.

    `mask`, bool[num_tokens, num_neurons], selects neurons of the chosen experts; None for all.
    """
    router = router_of(ffn)
    num_neurons = len(ffn.up.matrix.values)
    width = num_neurons // router.num_experts
    counters.total += len(x) * num_neurons
    counters.bytes_read += router.linear.matrix.num_bytes
    out = np.zeros((len(x), hidden_size(ffn)))
    for expert in np.unique(chosen.ids):
        tokens, places = np.nonzero(chosen.ids == expert)
        own = None if mask is None else mask[tokens, expert * width : (expert + 1) * width]
        values = ffn_values(x[tokens], _expert(ffn, expert), own, counters)
        out[tokens] += chosen.weights[tokens, places, None].astype(np.float64) * values
    return narrow(out)


def _expert(ffn: ReferenceFFN, number: int) -> ReferenceFFN:
    """Extract one expert as a dense block."""
    count = ffn.num_experts
    return replace(
        ffn,
        gate=None if ffn.gate is None else _part(ffn.gate, number, count),
        up=_part(ffn.up, number, count),
        down=_part(ffn.down, number, count),
        router=None,
        predictor=None,
    )


def _part(linear: ReferenceLinear, number: int, count: int) -> ReferenceLinear:
    bias = None if linear.bias is None else np.split(linear.bias, count)[number]
    return replace(linear, matrix=linear.matrix.part(number, count), bias=bias)


def check_experts(ffn: ReferenceFFN) -> None:
    """Check that a router fits its block.

    Raises:
        ShapeError: sizes differ.
    """
    router = router_of(ffn)
    count, rows = router.num_experts, len(router.linear.matrix.values)
    if rows != count:
        raise ShapeError(f"a router of {rows} rows does not fit {count} experts")
    if not 1 <= router.num_used <= count:
        raise ShapeError(f"a router cannot choose {router.num_used} of {count} experts")
    for name, linear in (("gate", ffn.gate), ("up", ffn.up), ("down", ffn.down)):
        if linear is not None and len(linear.matrix.values) % count:
            raise ShapeError(
                f"{name} of {len(linear.matrix.values)} rows does not divide into {count} experts"
            )
        if linear is not None and linear.bias is not None and len(linear.bias) % count:
            raise ShapeError(
                f"the bias of {name} has {len(linear.bias)} numbers, which do not divide into "
                f"{count} experts"
            )
