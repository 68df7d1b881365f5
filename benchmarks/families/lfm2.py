"""Sizes, tensors and keys of LFM2."""

from dataclasses import dataclass

import numpy as np

from families.family import FamilyShape, Tensors
from powerinfer.gguf import keys

__all__ = ["LFM2Shape"]


@dataclass(frozen=True)
class LFM2Shape(FamilyShape):
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
