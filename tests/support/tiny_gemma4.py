"""Keys and tensors of tiny Gemma 4 models, whose layers differ; see tiny_models.py."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from powerinfer.gguf import TensorSpec

__all__ = ["SMALL_NORMS", "Gemma4Layers", "Shapes", "with_small_scores"]

Shapes = Iterator[tuple[str, tuple[int, ...]]]
"""Names without the block's prefix, shapes; matrices, whose format is the model's, among them."""


SMALL_NORMS = ("attn_q_norm.weight", "attn_k_norm.weight")


def with_small_scores(norm: Any) -> TensorSpec:
    """A norm of q or k whose scores are of the usual size: nothing else scales them."""
    name, shape, format_name, data = norm
    values = np.frombuffer(data, "<f4") * np.float32(shape[0] ** -0.25)
    return name, shape, format_name, values.astype("<f4").tobytes()


@dataclass(frozen=True)
class Gemma4Layers:
    """How the layers of a model differ; those without a window have the last heads of each pair.

    Attributes:
        windows: of each layer, whether it has one.
        head_dims: widths of heads, with a window and without.
        num_kv_heads: the same of the number of KV heads.
        has_full_values: layers without a window have `attn_v`; else values are keys.
        num_shared: layers at the end that read keys and values of earlier ones.
        per_layer_size: columns of a layer in the per-layer embedding; 0 for none.
        is_wide_when_shared: FFNs of layers that share are twice as wide.
        has_experts: beside the FFN.
    """

    windows: tuple[bool, ...] = (True, True, False, True, False)
    head_dims: tuple[int, int] = (8, 16)
    num_kv_heads: tuple[int, int] = (2, 2)
    has_full_values: bool = True
    num_shared: int = 0
    per_layer_size: int = 0
    is_wide_when_shared: bool = False
    has_experts: bool = False

    def is_shared(self, layer: int) -> bool:
        """Whether a layer reads keys and values of an earlier one."""
        return layer >= len(self.windows) - self.num_shared

    def ffn_size(self, layer: int, size: int) -> int:
        """Neurons of the FFN of a layer."""
        return 2 * size if self.is_wide_when_shared and self.is_shared(layer) else size

    def keys(self, intermediate_size: int) -> dict[str, Any]:
        """Keys without the architecture's prefix."""
        width, full_width = self.head_dims
        count = range(len(self.windows))
        heads = [self.num_kv_heads[not window] for window in self.windows]
        sizes = [self.ffn_size(layer, intermediate_size) for layer in count]
        return {
            "attention.key_length": full_width,
            "attention.value_length": full_width,
            "attention.key_length_swa": width,
            "attention.value_length_swa": width,
            "attention.head_count_kv": np.array(heads, np.int32),
            "attention.sliding_window": 7,
            "attention.sliding_window_pattern": np.array(self.windows),
            "attention.shared_kv_layers": self.num_shared,
            "embedding_length_per_layer_input": self.per_layer_size,
            "feed_forward_length": np.array(sizes, np.int32)
            if self.is_wide_when_shared
            else intermediate_size,
            "rope.dimension_count": full_width,
            "rope.dimension_count_swa": width,
            "rope.freq_base": 1e6,
            "rope.freq_base_swa": 500.0,
        }

    def outer(self, hidden: int, vocab_size: int) -> Shapes:
        """Tensors outside the blocks, by full name."""
        columns = len(self.windows) * self.per_layer_size
        if columns:
            yield "per_layer_token_embd.weight", (vocab_size, columns)
            yield "per_layer_model_proj.weight", (columns, hidden)
            yield "per_layer_proj_norm.weight", (self.per_layer_size,)

    def divisors(self) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        """Of `rope_freqs`: a quarter of the pairs rotates."""
        pairs = np.arange(self.head_dims[1] // 2)
        return np.where(pairs < len(pairs) // 4, 1.0, 1e30).astype(np.float32)

    def block(self, layer: int, hidden: int, num_heads: int, neurons: int) -> Shapes:
        """Tensors of a block without its experts."""
        is_full = not self.windows[layer]
        width = self.head_dims[is_full]
        size = self.num_kv_heads[is_full] * width
        yield "attn_norm.weight", (hidden,)
        yield "attn_q.weight", (num_heads * width, hidden)
        yield "attn_q_norm.weight", (width,)
        if not self.is_shared(layer):
            yield "attn_k.weight", (size, hidden)
            yield "attn_k_norm.weight", (width,)
            if self.has_full_values or not is_full:
                yield "attn_v.weight", (size, hidden)
        yield "attn_output.weight", (hidden, num_heads * width)
        for norm in ("post_attention_norm", "ffn_norm", "post_ffw_norm"):
            yield f"{norm}.weight", (hidden,)
        own = self.ffn_size(layer, neurons)
        yield "ffn_gate.weight", (own, hidden)
        yield "ffn_up.weight", (own, hidden)
        yield "ffn_down.weight", (hidden, own)
        yield "layer_output_scale.weight", (1,)
        if self.per_layer_size:
            yield "inp_gate.weight", (self.per_layer_size, hidden)
            yield "proj.weight", (hidden, self.per_layer_size)
            yield "post_norm.weight", (hidden,)

    def beside_experts(self, hidden: int, num_experts: int) -> Shapes:
        """Tensors of a block with experts besides their matrices."""
        yield "ffn_gate_inp.scale", (hidden,)
        yield "ffn_down_exps.scale", (num_experts,)
        for norm in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"):
            yield f"{norm}.weight", (hidden,)
