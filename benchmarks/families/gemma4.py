"""Sizes, tensors and keys of Gemma 4, with per-layer embeddings or with experts."""

from dataclasses import dataclass

import numpy as np

from families.family import FamilyShape, Tensors
from powerinfer.gguf import keys

__all__ = ["Gemma4Shape"]


@dataclass(frozen=True)
class Gemma4Shape(FamilyShape):
    """Gemma 4; every sixth layer, and the last, has no window but wider heads.

    Attributes:
        full_head_dim: width of heads in layers without a window.
        num_full_kv_heads: KV heads there; if they differ in number, values are keys.
        window: positions that the other layers see.
        num_shared: layers at the end that read keys and values of earlier ones.
        per_layer_size: columns of a layer in the per-layer embedding; 0 for none.
        num_experts: beside the FFN; 0 for none.
        num_used: experts of a token.
        expert_size: neurons of an expert.
    """

    final_norm = "output_norm"
    has_head = False
    has_head_norms = False
    family = "gemma4"

    full_head_dim: int
    num_full_kv_heads: int
    window: int
    num_shared: int = 0
    per_layer_size: int = 0
    num_experts: int = 0
    num_used: int = 8
    expert_size: int = 0

    def _has_window(self, number: int) -> bool:
        return bool((number + 1) % 6) and number != self.num_layers - 1

    def tensors(self) -> Tensors:
        """Those of every family, divisors of the rotation and the per-layer embedding."""
        yield from super().tensors()
        yield "rope_freqs.weight", (self.full_head_dim // 2,)
        columns = self.num_layers * self.per_layer_size
        if columns:
            yield "per_layer_token_embd.weight", (self.vocab_size, columns)
            yield "per_layer_model_proj.weight", (columns, self.hidden_size)
            yield "per_layer_proj_norm.weight", (self.per_layer_size,)

    def layer(self, number: int) -> Tensors:
        """Attention with a window or without, an FFN, and experts beside it."""
        hidden = self.hidden_size
        yield from self._heads(number)
        for norm in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            yield f"{norm}.weight", (hidden,)
        yield from self._ffn()
        yield "layer_output_scale.weight", (1,)
        if self.per_layer_size:
            yield "inp_gate.weight", (self.per_layer_size, hidden)
            yield "proj.weight", (hidden, self.per_layer_size)
            yield "post_norm.weight", (hidden,)
        if self.num_experts:
            yield from self._experts()

    def _heads(self, number: int) -> Tensors:
        is_full, hidden = not self._has_window(number), self.hidden_size
        width = self.full_head_dim if is_full else self.head_dim
        kv_size = (self.num_full_kv_heads if is_full else self.num_kv_heads) * width
        yield "attn_q.weight", (self.num_heads * width, hidden)
        yield "attn_q_norm.weight", (width,)
        yield "attn_output.weight", (hidden, self.num_heads * width)
        if number < self.num_layers - self.num_shared:
            yield "attn_k.weight", (kv_size, hidden)
            yield "attn_k_norm.weight", (width,)
            if not is_full or self.num_full_kv_heads == self.num_kv_heads:
                yield "attn_v.weight", (kv_size, hidden)

    def _experts(self) -> Tensors:
        count, size, hidden = self.num_experts, self.expert_size, self.hidden_size
        yield "ffn_gate_inp.weight", (count, hidden)
        yield "ffn_gate_inp.scale", (hidden,)
        yield "ffn_gate_up_exps.weight", (count, 2 * size, hidden)
        yield "ffn_down_exps.weight", (count, hidden, size)
        yield "ffn_down_exps.scale", (count,)
        for norm in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"):
            yield f"{norm}.weight", (hidden,)

    def family_keys(self) -> dict[str, object]:
        """Sizes of heads, windows, and of experts."""
        windows = [self._has_window(number) for number in range(self.num_layers)]
        heads = [self.num_kv_heads if it else self.num_full_kv_heads for it in windows]
        found: dict[str, object] = {
            keys.NUM_KV_HEADS: np.array(heads, np.int32),
            keys.HEAD_DIM: self.full_head_dim,
            keys.VALUE_DIM: self.full_head_dim,
            keys.HEAD_DIM_SWA: self.head_dim,
            keys.VALUE_DIM_SWA: self.head_dim,
            keys.ROPE_DIMENSION_COUNT: self.full_head_dim,
            keys.ROPE_DIMENSION_COUNT_SWA: self.head_dim,
            keys.ROPE_FREQUENCY_BASE: np.float32(1e6),
            keys.ROPE_FREQUENCY_BASE_SWA: np.float32(1e4),
            keys.RMS_NORM_EPSILON: np.float32(1e-6),
            keys.SLIDING_WINDOW: self.window,
            keys.SLIDING_WINDOW_PATTERN: np.array(windows),
            keys.NUM_SHARED_KV_LAYERS: self.num_shared,
            keys.PER_LAYER_SIZE: self.per_layer_size,
            keys.LOGIT_SOFT_CAP: np.float32(30.0),
        }
        if self.num_experts:
            found |= {
                keys.NUM_EXPERTS: self.num_experts,
                keys.NUM_USED_EXPERTS: self.num_used,
                keys.EXPERT_SIZE: self.expert_size,
            }
        return found
