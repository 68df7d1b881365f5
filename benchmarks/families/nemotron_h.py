"""Sizes, tensors and keys of Nemotron-H, dense and with experts."""

from dataclasses import dataclass

import numpy as np

from families.family import FamilyShape, Tensors
from powerinfer.gguf import keys

__all__ = ["NemotronHShape"]


@dataclass(frozen=True)
class NemotronHShape(FamilyShape):
    """Nemotron-H: layers of a pattern are scans (M), attention (*), FFNs (-) or experts (E)."""

    final_norm = "output_norm"
    has_head = True
    has_head_norms = False
    family = "nemotron_h"

    pattern: str
    num_scan_heads: int
    scan_head_dim: int
    num_groups: int = 8
    state_dim: int = 128
    num_experts: int = 0
    num_used: int = 6
    shared_size: int = 0
    num_taps: int = 4

    @property
    def architecture(self) -> str:
        """With experts it has another name."""
        return "nemotron_h_moe" if self.num_experts else "nemotron_h"

    def layer(self, number: int) -> Tensors:
        """The only part of a layer."""
        yield "attn_norm.weight", (self.hidden_size,)
        kind = self.pattern[number]
        if kind == "M":
            yield from self._scan()
        elif kind == "*":
            yield from self._attention(self.num_heads * self.head_dim)
        elif kind == "-":
            yield from self._ungated((), "", self.intermediate_size)
        else:
            yield "ffn_gate_inp.weight", (self.num_experts, self.hidden_size)
            yield "exp_probs_b.bias", (self.num_experts,)
            yield from self._ungated((self.num_experts,), "_exps", self.intermediate_size)
            yield from self._ungated((), "_shexp", self.shared_size)

    def _scan(self) -> Tensors:
        hidden, inner = self.hidden_size, self.num_scan_heads * self.scan_head_dim
        channels = inner + 2 * self.num_groups * self.state_dim
        yield "ssm_in.weight", (inner + channels + self.num_scan_heads, hidden)
        yield "ssm_conv1d.weight", (channels, self.num_taps)
        yield "ssm_conv1d.bias", (channels,)
        yield "ssm_dt.bias", (self.num_scan_heads,)
        yield "ssm_a", (self.num_scan_heads, 1)
        yield "ssm_d", (self.num_scan_heads, 1)
        yield "ssm_norm.weight", (self.num_groups, inner // self.num_groups)
        yield "ssm_out.weight", (hidden, inner)

    def _ungated(self, count: tuple[int, ...], end: str, size: int) -> Tensors:
        yield f"ffn_up{end}.weight", (*count, size, self.hidden_size)
        yield f"ffn_down{end}.weight", (*count, self.hidden_size, size)

    def family_keys(self) -> dict[str, object]:
        """Sizes of layers, heads, states and experts."""
        pattern = self.pattern[: self.num_layers]
        found: dict[str, object] = {
            keys.NUM_KV_HEADS: np.array(
                [self.num_kv_heads * (kind == "*") for kind in pattern], np.int32
            ),
            keys.INTERMEDIATE_SIZE: np.array(
                [self.intermediate_size * (kind in "-E") for kind in pattern], np.int32
            ),
            keys.HEAD_DIM: self.head_dim,
            keys.VALUE_DIM: self.head_dim,
            keys.RMS_NORM_EPSILON: np.float32(1e-5),
            keys.LAYER_NORM_EPSILON: np.float32(1e-5),
            keys.SSM_CONV_KERNEL: self.num_taps,
            keys.SSM_STATE_SIZE: self.state_dim,
            keys.SSM_GROUP_COUNT: self.num_groups,
            keys.SSM_TIME_STEP_RANK: self.num_scan_heads,
            keys.SSM_INNER_SIZE: self.num_scan_heads * self.scan_head_dim,
        }
        if self.num_experts:
            found |= {
                keys.NUM_EXPERTS: self.num_experts,
                keys.NUM_USED_EXPERTS: self.num_used,
                keys.EXPERT_SIZE: self.intermediate_size,
                keys.SHARED_EXPERT_SIZE: self.shared_size,
                keys.EXPERT_WEIGHTS_NORMALIZED: True,
                keys.EXPERT_WEIGHTS_SCALE: np.float32(2.5),
            }
        return found
