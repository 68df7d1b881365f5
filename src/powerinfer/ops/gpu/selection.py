"""Choice of the neurons that tokens use: predictors, and routers of experts."""

from dataclasses import dataclass
from typing import TypeAlias, cast

import torch
from torch import Tensor

from powerinfer.ops.gpu.kernels import MAX_TOKENS
from powerinfer.ops.gpu.kernels.matvec import matvec
from powerinfer.ops.gpu.kernels.predict import score_mask
from powerinfer.ops.gpu.kernels.route import choose_experts
from powerinfer.ops.gpu.linear import linear, product
from powerinfer.ops.gpu.matrix import DeviceMatrix
from powerinfer.ops.operands import NeuronPredictor, Router, RouterRule

__all__ = [
    "DevicePredictor",
    "DeviceRouter",
    "Routing",
    "predict",
    "route",
]

DevicePredictor: TypeAlias = NeuronPredictor[DeviceMatrix, Tensor]


def predict(x: Tensor, predictor: DevicePredictor, earlier: Tensor | None = None) -> Tensor:
    """Find the neurons that pass every stage: u8[num_tokens, intermediate_size] of 0 and 1.

    Up to 8 tokens run as kernels that skip rows and sum in f32. More are dense products, one per
    matrix; activations are rounded to the type of the weights (`linear.rounded`), so that the two
    paths differ only for scores within rounding of a threshold.

    Args:
        x: f32[num_tokens, hidden_size], contiguous, on the device of the predictor.
        earlier: u8[num_tokens, intermediate_size], neurons that may pass, or None for all; reused
            for the result.
    """
    return (_predict_few if len(x) <= MAX_TOKENS else _predict_many)(x, predictor, earlier)


def _predict_few(x: Tensor, predictor: DevicePredictor, mask: Tensor | None) -> Tensor:
    center = predictor.center
    if predictor.fc1 is not None:
        x, center = matvec(x, predictor.fc1, is_relu=True, center=center), None
    for stage in predictor.stages:
        mask = score_mask(x, stage.matrix, stage.bias, stage.threshold, center=center, earlier=mask)
    # There is at least one stage.
    return cast("Tensor", mask)


def _predict_many(x: Tensor, predictor: DevicePredictor, mask: Tensor | None) -> Tensor:
    if predictor.center is not None:
        x = x - predictor.center
    if predictor.fc1 is not None:
        x = product(x, predictor.fc1).relu_()
    for stage in predictor.stages:
        scores = product(x, stage.matrix)
        if stage.bias is not None:
            scores.add_(stage.bias)
        # NaN is not below the threshold.
        passed = (scores < stage.threshold).logical_not_().view(torch.uint8)
        mask = passed if mask is None else mask.mul_(passed)
    return cast("Tensor", mask)


@dataclass(frozen=True, slots=True)
class DeviceRouter(Router[DeviceMatrix, Tensor]):
    """A router on a device.

    Attributes:
        down_bias: f32[num_experts, hidden_size] or None, multiplied by the expert's weight.
    """

    down_bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Routing:
    """The decision of a router.

    Attributes:
        weights: f32[num_tokens, num_experts], 0 for experts that are not chosen.
        chosen: u8[num_tokens, num_experts] of 0 and 1.
        down_bias: see `DeviceRouter`.
    """

    weights: Tensor
    chosen: Tensor
    down_bias: Tensor | None = None

    def mask(self, num_neurons: int) -> Tensor:
        """Return u8[num_tokens, num_neurons], 1 for neurons of chosen experts.

        The neurons of expert e begin at e * num_neurons / num_experts.
        """
        num_tokens, num_experts = self.chosen.shape
        shape = num_tokens, num_experts, num_neurons // num_experts
        return self.chosen[:, :, None].expand(shape).reshape(num_tokens, num_neurons)

    def add_biases(self, y: Tensor) -> Tensor:
        """Add the down biases of the chosen experts, times their weights, to y in place."""
        return y if self.down_bias is None else y.addmm_(self.weights, self.down_bias)


def route(x: Tensor, router: DeviceRouter) -> Routing:
    """Choose experts by contiguous f32[num_tokens, hidden_size]; launches depend on shapes."""
    (logits,) = linear(x, [router.linear])
    is_sigmoid = router.rule is RouterRule.SIGMOID
    weights, chosen = choose_experts(
        logits, router.num_used, is_sigmoid=is_sigmoid, is_normalized=router.is_normalized
    )
    if router.scale != 1.0:
        weights.mul_(router.scale)
    return Routing(weights, chosen, router.down_bias)
