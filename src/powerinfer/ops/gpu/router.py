"""Routers on a device: which experts a token uses, as masks and weights of their neurons."""

from dataclasses import dataclass

from torch import Tensor

from powerinfer.ops.gpu.kernels.route import choose_experts
from powerinfer.ops.gpu.linear import DeviceLinear, linear

__all__ = ["DeviceRouter", "Routing", "add_expert_biases", "route"]


@dataclass(frozen=True, slots=True)
class DeviceRouter:
    """See `powerinfer.ops.operands.Router`.

    Attributes:
        linear: [num_experts, hidden_size], with its bias.
        num_used: experts of a token.
        is_sigmoid: shares are sigmoids, else softmax.
        is_normalized: shares are divided by the sum of those chosen.
        down_bias: f32[num_experts, hidden_size] or None, weighted as the expert's output is.
    """

    linear: DeviceLinear
    num_used: int
    is_sigmoid: bool
    is_normalized: bool
    down_bias: Tensor | None = None

    @property
    def num_experts(self) -> int:
        """How many there are."""
        return self.linear.matrix.rows


@dataclass(frozen=True, slots=True)
class Routing:
    """What a router decided.

    Attributes:
        weights: f32[num_tokens, num_experts], 0 where an expert is not chosen.
        chosen: u8[num_tokens, num_experts] of 0 and 1.
    """

    weights: Tensor
    chosen: Tensor

    def mask(self, num_neurons: int) -> Tensor:
        """u8[num_tokens, num_neurons], 1 for neurons of chosen experts.

        Args:
            num_neurons: of all experts; expert e has those from e * num_neurons / num_experts on.
        """
        num_tokens, num_experts = self.chosen.shape
        shape = num_tokens, num_experts, num_neurons // num_experts
        return self.chosen[:, :, None].expand(shape).reshape(num_tokens, num_neurons)


def route(x: Tensor, router: DeviceRouter) -> Routing:
    """Choose experts; launches depend on shapes alone.

    Args:
        x: f32[num_tokens, hidden_size], contiguous, what the router sees.
        router: on the device of x.
    """
    (logits,) = linear(x, [router.linear])
    weights, chosen = choose_experts(
        logits,
        router.num_used,
        is_sigmoid=router.is_sigmoid,
        is_normalized=router.is_normalized,
    )
    return Routing(weights, chosen)


def add_expert_biases(y: Tensor, routing: Routing, router: DeviceRouter) -> Tensor:
    """Add the biases of down of the chosen experts, times their weights, to y in place.

    Args:
        y: f32[num_tokens, hidden_size].
        routing: of these tokens.
        router: that made it.
    """
    return y if router.down_bias is None else y.addmm_(routing.weights, router.down_bias)
