"""Two operations with hand-written gradients, for training on a CPU.

Torch's own attention gradient and the three-step dReLU spend more time moving memory than computing
at the sizes of small models; these keep fewer and smaller intermediates. Measured on one core
(Xeon with AMX, 16 rows of 256 tokens): attention 1.4 times faster, a training step 1.3 times.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.autograd import Function

__all__ = ["DualReLU", "GroupedAttention"]


class _Context(Protocol):
    """The context between torch's forward and backward pass."""

    # Torch declares it as a tuple of one tensor.
    saved_tensors: tuple[Tensor, ...]

    def save_for_backward(self, *tensors: Tensor) -> None:
        """Keep tensors; they become `saved_tensors`."""
        ...


class DualReLU(Function):
    """``relu(gate) * relu(up)``, element by element, keeping only the two clamped inputs."""

    @staticmethod
    def forward(ctx: _Context, gate: Tensor, up: Tensor) -> Tensor:
        """Return the neuron values, in the shape and dtype of the inputs."""
        gate, up = gate.clamp_min(0), up.clamp_min(0)
        ctx.save_for_backward(gate, up)
        return gate * up

    @staticmethod
    def backward(ctx: _Context, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of gate and up."""
        gate, up = ctx.saved_tensors
        (gradient,) = gradients
        through = torch.ops.aten.threshold_backward
        return through(gradient * up, gate, 0), through(gradient * gate, up, 0)


class GroupedAttention(Function):
    """Masked softmax attention over q[n, rows, head_dim], k and v[n, seq_len, head_dim].

    One of the ``n`` groups holds the query rows of all heads that share a key head, so that each
    product is one batched matrix product. ``mask`` [rows, seq_len] is added to the scores: 0 or
    minus infinity.
    """

    @staticmethod
    def forward(ctx: _Context, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """Return the mixed values, [n, rows, head_dim]."""
        scores = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=q.shape[-1] ** -0.5)
        shares = torch.softmax(scores, -1, dtype=scores.dtype)
        ctx.save_for_backward(q, k, v, shares)
        return torch.bmm(shares, v)

    @staticmethod
    def backward(ctx: _Context, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Return the gradients of q, k and v; the mask has none."""
        q, k, v, shares = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        scale = q.shape[-1] ** -0.5
        of_shares = torch.bmm(gradient, v.transpose(1, 2))
        of_scores = torch._softmax_backward_data(of_shares, shares, -1, shares.dtype)
        of_q = torch.bmm(of_scores, k).mul_(scale)
        of_k = torch.bmm(of_scores.transpose(1, 2), q).mul_(scale)
        return of_q, of_k, torch.bmm(shares.transpose(1, 2), gradient), None
