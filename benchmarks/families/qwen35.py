"""Sizes, tensors and keys of Qwen3.5, dense and with experts."""

from dataclasses import dataclass

import numpy as np

from families.family import FamilyShape, Tensors
from powerinfer.gguf import keys

__all__ = ["Qwen35Shape"]


@dataclass(frozen=True)
class Qwen35Shape(FamilyShape):
    """Qwen3.5; `num_experts` 0: one FFN, else experts and a shared one of the same size."""

    final_norm = "output_norm"
    has_head = True
    family = "qwen35"

    num_key_heads: int
    num_value_heads: int
    state_dim: int
    num_experts: int = 0
    num_used: int = 8
    interval: int = 4
    num_taps: int = 4

    @property
    def architecture(self) -> str:
        """With experts it has another name."""
        return "qwen35moe" if self.num_experts else "qwen35"

    def layer(self, number: int) -> Tensors:
        """A delta rule, or gated attention."""
        hidden = self.hidden_size
        yield "attn_norm.weight", (hidden,)
        if (number + 1) % self.interval:
            yield from self._delta_rule()
        else:
            yield from self._attention(2 * self.num_heads * self.head_dim)
        yield "post_attention_norm.weight", (hidden,)
        if not self.num_experts:
            yield from self._ffn()
            return
        yield "ffn_gate_inp.weight", (self.num_experts, hidden)
        yield from self._ffn((self.num_experts,), "_exps")
        yield "ffn_gate_inp_shexp.weight", (hidden,)
        yield from self._ffn(end="_shexp")

    def _delta_rule(self) -> Tensors:
        hidden, inner = self.hidden_size, self.num_value_heads * self.state_dim
        channels = 2 * self.num_key_heads * self.state_dim + inner
        yield "attn_qkv.weight", (channels, hidden)
        yield "attn_gate.weight", (inner, hidden)
        yield "ssm_conv1d.weight", (channels, self.num_taps)
        yield "ssm_dt.bias", (self.num_value_heads,)
        yield "ssm_a", (self.num_value_heads,)
        yield "ssm_beta.weight", (self.num_value_heads, hidden)
        yield "ssm_alpha.weight", (self.num_value_heads, hidden)
        yield "ssm_norm.weight", (self.state_dim,)
        yield "ssm_out.weight", (hidden, inner)

    def family_keys(self) -> dict[str, object]:
        """Sizes of heads, of states and of experts."""
        rotated = self.head_dim // 4
        found: dict[str, object] = {
            keys.HEAD_DIM: self.head_dim,
            keys.VALUE_DIM: self.head_dim,
            keys.RMS_NORM_EPSILON: np.float32(1e-6),
            keys.ROPE_DIMENSION_COUNT: rotated,
            keys.ROPE_DIMENSION_SECTIONS: np.array(
                [rotated // 2 - 2 * (rotated // 6), rotated // 6, rotated // 6, 0], np.int32
            ),
            keys.ROPE_FREQUENCY_BASE: np.float32(1e7),
            keys.FULL_ATTENTION_INTERVAL: self.interval,
            keys.SSM_CONV_KERNEL: self.num_taps,
            keys.SSM_STATE_SIZE: self.state_dim,
            keys.SSM_GROUP_COUNT: self.num_key_heads,
            keys.SSM_TIME_STEP_RANK: self.num_value_heads,
            keys.SSM_INNER_SIZE: self.num_value_heads * self.state_dim,
        }
        if self.num_experts:
            found |= {
                keys.NUM_EXPERTS: self.num_experts,
                keys.NUM_USED_EXPERTS: self.num_used,
                keys.EXPERT_SIZE: self.intermediate_size,
                keys.SHARED_EXPERT_SIZE: self.intermediate_size,
            }
        return found
