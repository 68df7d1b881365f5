"""Sizes, tensors and keys of models with state: LFM2, Qwen3.5, Nemotron-H, some with experts.

Values are those of the published configurations. Files written from them have what llama.cpp's
Q4_0 has: matrices in Q4_0, a head (or an embedding that is also the head) in Q6_K, or in Q8_0 if
its rows are no whole blocks. `ssm_alpha` and
`ssm_beta`, which llama.cpp quantizes, are F32, as `powerinfer convert` and `quantize` leave them.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from powerinfer.gguf import keys
from stateful.vocabulary import byte_level_vocabulary

__all__ = ["STATE_SHAPES", "LFM2Shape", "NemotronHShape", "Qwen35Shape", "StateShape"]

Tensors = Iterator[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class StateShape(ABC):
    """Sizes of a model.

    Attributes:
        intermediate_size: neurons of the FFN; with experts, of one of them.
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int

    final_norm: ClassVar[str]
    has_head: ClassVar[bool]
    has_head_norms: ClassVar[bool] = True
    family: ClassVar[str]

    @property
    def architecture(self) -> str:
        """`general.architecture`."""
        return self.family

    @abstractmethod
    def layer(self, number: int) -> Tensors:
        """Names in a layer, and shapes, outermost dimension first."""

    @abstractmethod
    def family_keys(self) -> dict[str, object]:
        """Keys of the architecture besides the common ones."""

    def tensors(self) -> Tensors:
        """All tensors of the file."""
        yield "token_embd.weight", (self.vocab_size, self.hidden_size)
        for number in range(self.num_layers):
            for name, dims in self.layer(number):
                yield f"blk.{number}.{name}", dims
        yield f"{self.final_norm}.weight", (self.hidden_size,)
        if self.has_head:
            yield "output.weight", (self.vocab_size, self.hidden_size)

    def metadata(self, name: str) -> dict[str, object]:
        """All keys of the file."""
        sizes: dict[str, object] = {
            keys.CONTEXT_LENGTH: 32768,
            keys.HIDDEN_SIZE: self.hidden_size,
            keys.NUM_LAYERS: self.num_layers,
            keys.INTERMEDIATE_SIZE: self.intermediate_size,
            keys.NUM_HEADS: self.num_heads,
            keys.NUM_KV_HEADS: self.num_kv_heads,
        }
        own = sizes | self.family_keys()
        return {
            keys.ARCHITECTURE: self.architecture,
            keys.NAME: name,
            **{f"{self.architecture}.{key}": value for key, value in own.items()},
            **byte_level_vocabulary(self.family, self.vocab_size),
        }

    def _attention(self, q_size: int) -> Tensors:
        attended, kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        yield "attn_q.weight", (q_size, self.hidden_size)
        yield "attn_k.weight", (kv_size, self.hidden_size)
        yield "attn_v.weight", (kv_size, self.hidden_size)
        yield "attn_output.weight", (self.hidden_size, attended)
        if self.has_head_norms:
            yield "attn_q_norm.weight", (self.head_dim,)
            yield "attn_k_norm.weight", (self.head_dim,)

    def _ffn(self, count: tuple[int, ...] = (), end: str = "") -> Tensors:
        yield f"ffn_gate{end}.weight", (*count, self.intermediate_size, self.hidden_size)
        yield f"ffn_up{end}.weight", (*count, self.intermediate_size, self.hidden_size)
        yield f"ffn_down{end}.weight", (*count, self.hidden_size, self.intermediate_size)


@dataclass(frozen=True)
class LFM2Shape(StateShape):
    """LFM2; `attending` lists the layers with attention."""

    final_norm = "token_embd_norm"
    has_head = False
    family = "lfm2"

    attending: tuple[int, ...]
    num_taps: int = 3

    def layer(self, number: int) -> Tensors:
        """A short convolution, or attention."""
        hidden = self.hidden_size
        yield "attn_norm.weight", (hidden,)
        if number in self.attending:
            yield from self._attention(self.num_heads * self.head_dim)
        else:
            yield "shortconv.in_proj.weight", (3 * hidden, hidden)
            yield "shortconv.conv.weight", (hidden, self.num_taps)
            yield "shortconv.out_proj.weight", (hidden, hidden)
        yield "ffn_norm.weight", (hidden,)
        yield from self._ffn()

    def family_keys(self) -> dict[str, object]:
        """Heads of keys of each layer, taps, rotation."""
        counts = [
            self.num_kv_heads if number in self.attending else 0
            for number in range(self.num_layers)
        ]
        return {
            keys.NUM_KV_HEADS: np.array(counts, np.int32),
            keys.VOCAB_SIZE: self.vocab_size,
            keys.SHORT_CONV_TAPS: self.num_taps,
            keys.RMS_NORM_EPSILON: np.float32(1e-5),
            keys.ROPE_FREQUENCY_BASE: np.float32(1e6),
        }


@dataclass(frozen=True)
class Qwen35Shape(StateShape):
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


@dataclass(frozen=True)
class NemotronHShape(StateShape):
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


_NEMOTRON_H_8B = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
_NEMOTRON_3_NANO = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"


STATE_SHAPES: dict[str, StateShape] = {
    "lfm2-1.2b": LFM2Shape(2048, 8192, 16, 32, 8, 64, 65536, (2, 5, 8, 10, 12, 14)),
    "qwen35-9b": Qwen35Shape(4096, 12288, 32, 16, 4, 256, 248320, 16, 32, 128),
    "qwen35-35b-a3b": Qwen35Shape(2048, 512, 40, 16, 2, 256, 248320, 16, 32, 128, 256),
    "nemotron-h-8b": NemotronHShape(
        *(4096, 21504, 52, 32, 8, 128, 131072, _NEMOTRON_H_8B, 128, 64),
    ),
    "nemotron-3-nano-30b": NemotronHShape(
        *(2688, 1856, 52, 32, 2, 128, 131072, _NEMOTRON_3_NANO, 64, 64),
        num_experts=128,
        shared_size=3712,
    ),
    "tiny-nemotron-h": NemotronHShape(256, 512, 4, 4, 2, 64, 512, "M*M-", 4, 64, 2, 32),
    "tiny-nemotron-h-moe": NemotronHShape(
        *(256, 256, 4, 4, 2, 64, 512, "ME*E", 4, 64, 2, 32),
        num_experts=8,
        num_used=2,
        shared_size=256,
    ),
    "tiny-lfm2": LFM2Shape(256, 512, 2, 4, 2, 64, 512, (1,)),
    "tiny-qwen35": Qwen35Shape(256, 512, 4, 4, 2, 64, 512, 2, 4, 32),
    "tiny-qwen35moe": Qwen35Shape(256, 256, 4, 4, 2, 64, 512, 2, 4, 32, 8, 2),
}
