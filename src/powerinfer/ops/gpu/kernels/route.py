"""Choosing experts: one program per token, which holds its logits in registers.

Bound by the launch. Of equal logits the lower id is chosen; see `powerinfer.ops.operands.Router`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from powerinfer.ops.gpu.kernels.overlap import begin_small, overlapping

__all__ = ["choose_experts", "route_kernel"]

# Routers that divide sigmoids by their sum divide by at least this.
SMALLEST_SUM = tl.constexpr(6.103515625e-5)
SMALLEST_LOGIT = tl.constexpr(-3e38)


@overlapping
def route_kernel(
    logits,
    weights,
    chosen,
    num_experts,
    num_used,
    IS_SIGMOID: tl.constexpr,
    IS_NORMALIZED: tl.constexpr,
    EXPERTS: tl.constexpr,
):
    """Weights and choice of token `program_id(0)`."""
    begin_small()
    experts = tl.arange(0, EXPERTS)
    inside = experts < num_experts
    at = tl.program_id(0) * num_experts + experts
    scores = tl.load(logits + at, mask=inside, other=float("-inf"))
    is_damaged = tl.max((scores != scores).to(tl.int32), axis=0) != 0
    order = tl.where(scores != scores, float("-inf"), scores)
    is_chosen = experts < 0
    for _ in range(num_used):
        is_left = inside & ~is_chosen
        best = tl.max(tl.where(is_left, order, float("-inf")), axis=0)
        candidates = tl.where(is_left & (order == best), experts, EXPERTS)
        is_chosen = is_chosen | (experts == tl.min(candidates, axis=0))
    counted = is_chosen if IS_NORMALIZED else inside
    if IS_SIGMOID:
        shares = tl.where(is_chosen, 1.0 / (1.0 + tl.exp(-order)), 0.0)
        total = tl.maximum(tl.sum(shares, axis=0), SMALLEST_SUM) if IS_NORMALIZED else 1.0
    else:
        # Finite, so that the difference of two infinities never arises.
        top = tl.max(tl.where(inside, order, SMALLEST_LOGIT), axis=0)
        parts = tl.where(counted, tl.exp(order - top), 0.0)
        total = tl.sum(parts, axis=0)
        shares = tl.where(is_chosen, parts, 0.0)
    total = tl.where(is_damaged | ~(total > 0.0), float("nan"), total)
    tl.store(weights + at, tl.where(is_chosen, shares / total, 0.0), mask=inside)
    tl.store(chosen + at, is_chosen.to(tl.uint8), mask=inside)


def choose_experts(
    logits: Tensor, num_used: int, *, is_sigmoid: bool, is_normalized: bool
) -> tuple[Tensor, Tensor]:
    """Which experts a token uses, and how much: f32 and u8[num_tokens, num_experts].

    Args:
        logits: f32[num_tokens, num_experts], contiguous.
        is_sigmoid: an expert's share is the sigmoid of its logit, else the softmax.
        is_normalized: shares are divided by the sum of those chosen.

    Returns:
        Shares, 0 where an expert is not chosen (NaN for all that are, if a logit is NaN), and 1
        where one is.
    """
    num_tokens, num_experts = logits.shape
    weights = torch.empty_like(logits)
    chosen = torch.empty(logits.shape, dtype=torch.uint8, device=logits.device)
    route_kernel[(num_tokens,)](
        logits,
        weights,
        chosen,
        num_experts,
        num_used,
        IS_SIGMOID=is_sigmoid,
        IS_NORMALIZED=is_normalized,
        EXPERTS=int(triton.next_power_of_2(num_experts)),
        num_warps=1,
    )
    return weights, chosen
