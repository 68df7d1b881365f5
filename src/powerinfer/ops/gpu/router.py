"""Routers on a device: masks and weights of the experts that tokens use."""

from dataclasses import dataclass

from torch import Tensor

from powerinfer.ops.gpu.kernels.route import choose_experts
from powerinfer.ops.gpu.linear import DeviceLinear, linear

__all__ = ["DeviceRouter", "Routing", "add_expert_biases", "route"]


@dataclass(frozen=True, slots=True)
class DeviceRouter:
    """A router on a device, see `powerinfer.ops.operands.Router`.

    Attributes:
        linear: [num_experts, hidden_size], with its bias.
        num_used: experts per token.
        is_sigmoid: weights are sigmoids, otherwise softmax.
        is_normalized: weights are divided by the sum of those chosen.
        down_bias: f32[num_experts, hidden_size] or None, multiplied by the expert's weight.
    """

    linear: DeviceLinear
    num_used: int
    is_sigmoid: bool
    is_normalized: bool
    down_bias: Tensor | None = None

    @property
    def num_experts(self) -> int:
        """Number of experts."""
        return self.linear.matrix.rows


@dataclass(frozen=True, slots=True)
class Routing:
    """The decision of a router.

    Attributes:
        weights: f32[num_tokens, num_experts], 0 for experts that are not chosen.
        chosen: u8[num_tokens, num_experts] of 0 and 1.
    """

    weights: Tensor
    chosen: Tensor

    def mask(self, num_neurons: int) -> Tensor:
        """Return u8[num_tokens, num_neurons], 1 for neurons of chosen experts.

        The neurons of expert e begin at e * num_neurons / num_experts.
        """
        num_tokens, num_experts = self.chosen.shape
        shape = num_tokens, num_experts, num_neurons // num_experts
        return self.chosen[:, :, None].expand(shape).reshape(num_tokens, num_neurons)


def route(x: Tensor, router: DeviceRouter) -> Routing:
    """Choose experts by contiguous f32[num_tokens, hidden_size]; launches depend on shapes."""
    (logits,) = linear(x, [router.linear])
    weights, chosen = choose_experts(
        logits,
        router.num_used,
        is_sigmoid=router.is_sigmoid,
        is_normalized=router.is_normalized,
    )
    return Routing(weights, chosen)


def add_expert_biases(y: Tensor, routing: Routing, router: DeviceRouter) -> Tensor:
    """Add the down biases of the chosen experts, times their weights, to y in place."""
    return y if router.down_bias is None else y.addmm_(routing.weights, router.down_bias)
