"""Causal attention for the models that transformers builds, with or without a sliding window."""

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (torch's own convention)

from powerinfer.train.fused import GroupedAttention

__all__ = ["ATTENTION", "attend", "register_attention"]

ATTENTION = "powerinfer_grouped"
"""Name of `attend` in a configuration of transformers."""

# Longer sequences would hold too many scores at once.
_LONGEST_GROUPED = 1024


def register_attention() -> None:
    """Let transformers find `attend` under the name `ATTENTION`."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, attend)


def attend(
    module: nn.Module,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    _mask: Tensor | None,
    *,
    sliding_window: int | None = None,
    **_more: object,
) -> tuple[Tensor, None]:
    """Mix the values of whole sequences, in the dtype of `v`; dropout is left out.

    The three are [batch, num_heads, seq_len, head_dim], k and v with num_kv_heads. A token sees
    `sliding_window` tokens, itself among them; with None all before it.

    Returns:
        [batch, seq_len, num_heads, head_dim], and no shares.
    """
    q, k = q.to(v.dtype), k.to(v.dtype)
    seq_len = q.shape[2]
    window = None if sliding_window is None or sliding_window >= seq_len else sliding_window
    if q.is_cuda or seq_len > _LONGEST_GROUPED:
        mask = None if window is None else _mask_of(q, seq_len, window)
        mixed = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=q.shape[1] != k.shape[1]
        )
    else:
        mixed = _grouped(q, k, v, _mask_of(q, seq_len, window))
    return mixed.transpose(1, 2), None


def _mask_of(like: Tensor, seq_len: int, window: int | None) -> Tensor:
    """The mask to add to scores: 0, or minus infinity for tokens that must not be seen."""
    mask = like.new_full((seq_len, seq_len), float("-inf"))
    mask = mask.triu(1)
    if window is not None:
        mask = mask + like.new_full((seq_len, seq_len), float("-inf")).tril(-window)
    return mask


def _grouped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    batch, num_heads, seq_len, head_dim = q.shape
    groups, sharing = batch * k.shape[1], num_heads // k.shape[1]
    mixed: Tensor = GroupedAttention.apply(  # type: ignore[no-untyped-call]
        q.reshape(groups, -1, head_dim),
        k.reshape(groups, seq_len, head_dim),
        v.reshape(groups, seq_len, head_dim),
        mask.repeat(sharing, 1),
    )
    return mixed.view(batch, num_heads, seq_len, head_dim)
