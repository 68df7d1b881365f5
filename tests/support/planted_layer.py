"""A small made-up layer that a predictor can learn: neurons fire beyond planes in its inputs."""

import dataclasses
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from powerinfer.train.predictors.layer_data import LayerData

__all__ = [
    "HIDDEN",
    "NEURONS",
    "TOKENS",
    "TRAIN",
    "planted_experts",
    "planted_layer",
    "with_fires",
]

HIDDEN, NEURONS, TOKENS, TRAIN = 24, 72, 6000, 4800

Fires: TypeAlias = npt.NDArray[np.bool_]


def planted_layer(seed: int = 0, *, density: float = 0.1, scale: float = 1.0) -> LayerData:
    """A layer whose neurons fire where the sum along one direction is high."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((TOKENS, HIDDEN)) + 0.5).astype(np.float16)
    sums = x.astype(np.float32) @ rng.standard_normal((HIDDEN, NEURONS)).astype(np.float32)
    fires = sums > np.quantile(sums, 1 - density, axis=0)
    return LayerData(
        number=3,
        inputs=x,
        fired=np.packbits(fires, axis=1, bitorder="little"),
        num_neurons=NEURONS,
        num_train=TRAIN,
        weights=rng.exponential(size=NEURONS).astype(np.float32),
        scale=scale,
    )


def planted_experts(num_experts: int, num_used: int, expert_size: int) -> LayerData:
    """A layer with experts whose neurons fire as those above; the last expert is never chosen."""
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((TOKENS, HIDDEN)) + 0.5).astype(np.float16)
    seen = x.astype(np.float32)
    liking = seen @ rng.standard_normal((HIDDEN, num_experts - 1)).astype(np.float32)
    experts = np.sort(np.argsort(liking, axis=1)[:, :num_used], axis=1)
    sums = seen @ rng.standard_normal((HIDDEN, num_experts * expert_size)).astype(np.float32)
    fires = (sums > np.quantile(sums, 0.9, axis=0)).reshape(TOKENS, num_experts, expert_size)
    own = fires[np.arange(TOKENS)[:, np.newaxis], experts]
    return LayerData(
        number=4,
        inputs=x,
        fired=np.packbits(own, axis=2, bitorder="little").reshape(TOKENS, -1),
        num_neurons=num_experts * expert_size,
        num_train=TRAIN,
        weights=rng.exponential(size=num_experts * expert_size).astype(np.float32),
        experts=experts.astype(np.int16),
        num_experts=num_experts,
    )


def with_fires(data: LayerData, change: Callable[[Fires], None]) -> LayerData:
    """The layer with other neurons firing; `change` writes into bool[num_tokens, num_neurons]."""
    bits = np.unpackbits(data.fired, axis=1, count=data.num_neurons, bitorder="little")
    fires = bits.astype(bool)
    change(fires)
    return dataclasses.replace(data, fired=np.packbits(fires, axis=1, bitorder="little"))
