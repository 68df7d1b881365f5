"""Predictors of neurons in numpy."""

from typing import TypeAlias

import numpy as np

from powerinfer.errors import ShapeError
from powerinfer.ops.float_errors import ignore_float_errors
from powerinfer.ops.protocol import FFNCounters, Linear, NeuronPredictor, ScoreStage
from powerinfer.ops.reference.matrix import (
    DoubleArray,
    Mask,
    ReferenceMatrix,
    bytes_of_rows,
    narrow,
    product,
)
from powerinfer.values import FloatArray

__all__ = ["ReferencePredictor", "check_predictor", "predicted_mask"]

ReferencePredictor: TypeAlias = NeuronPredictor[ReferenceMatrix, FloatArray]


def check_predictor(predictor: ReferencePredictor) -> None:
    """Check that the matrices of a predictor fit each other.

    Raises:
        ShapeError: sizes differ, or there is no stage.
    """
    if not predictor.stages:
        raise ShapeError("a predictor needs at least one stage")
    rows = {len(stage.matrix.values) for stage in predictor.stages}
    if len(rows) != 1:
        raise ShapeError(
            f"the stages of a predictor have {sorted(rows)} neurons; expected one size"
        )
    num_experts = predictor.num_experts
    if rows.pop() % num_experts:
        raise ShapeError(f"the neurons of a predictor do not divide into {num_experts} experts")
    if predictor.fc1 is not None:
        if len(predictor.fc1.values) % num_experts:
            raise ShapeError(
                f"fc1 of {len(predictor.fc1.values)} rows does not divide into {num_experts} "
                "experts"
            )
        rank = len(predictor.fc1.values) // num_experts
        for stage in predictor.stages:
            if stage.matrix.values.shape[1] < rank:
                raise ShapeError(
                    f"fc2 of shape {stage.matrix.values.shape} does not fit rank {rank}"
                )


@ignore_float_errors
def predicted_mask(
    x: FloatArray,
    predictor: ReferencePredictor,
    counters: FFNCounters | None = None,
    allowed: Mask | None = None,
) -> Mask:
    """Find the neurons that pass every stage: bool[num_tokens, num_neurons].

    Args:
        x: f32[num_tokens, hidden_size], the predictor's input.
        counters: incremented by the bytes read; None to count nothing.
        allowed: bool[num_tokens, num_neurons], the neurons to test; None for all.
    """
    num_neurons = len(predictor.stages[0].matrix.values)
    mask = np.ones((len(x), num_neurons), bool) if allowed is None else allowed.copy()
    inputs = x if predictor.center is None else x - predictor.center
    num_bytes = 0
    if predictor.fc1 is not None:
        inputs = narrow(np.maximum(product(inputs, Linear(predictor.fc1)), 0.0))
        asked = mask.reshape(len(x), predictor.num_experts, -1).any(axis=2)
        rank = len(predictor.fc1.values) // predictor.num_experts
        num_bytes += bytes_of_rows(predictor.fc1, np.repeat(asked, rank, axis=1))
    for stage in predictor.stages:
        num_bytes += bytes_of_rows(stage.matrix, mask)
        mask &= ~(_scores(inputs, predictor, stage) < stage.threshold)
    if counters is not None:
        counters.bytes_read += num_bytes
        counters.predictor_bytes += num_bytes
    return mask


def _scores(
    inputs: FloatArray,
    predictor: ReferencePredictor,
    stage: ScoreStage[ReferenceMatrix, FloatArray],
) -> DoubleArray:
    """Score every neuron, by the hidden layer of its expert if there are hidden layers."""
    num_parts = 1 if predictor.fc1 is None else predictor.num_experts
    parts = [
        _product(seen, stage.matrix.part(number, num_parts))
        for number, seen in enumerate(np.split(inputs, num_parts, axis=1))
    ]
    scores = np.concatenate(parts, axis=1)
    return scores if stage.bias is None else scores + stage.bias


def _product(x: FloatArray, matrix: ReferenceMatrix) -> DoubleArray:
    padded = np.zeros((len(x), matrix.values.shape[1]), np.float32)
    padded[:, : x.shape[1]] = x
    return product(padded, Linear(matrix))
