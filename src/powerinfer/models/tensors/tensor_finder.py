"""Lookup of a model's tensors by name and shape, before a byte is prepared.

Everything missing or misshapen is listed in one error.
"""

from powerinfer.errors import UnsupportedError
from powerinfer.gguf import GGUFFile, Tensor
from powerinfer.models.architecture import Architecture, NormKind, QKNorm
from powerinfer.models.attention import LayerAttention
from powerinfer.models.config import EMBEDDING, POSITION_EMBEDDING, QK_NORMS, ModelConfig
from powerinfer.models.per_layer import find_per_layer_embedding, find_per_layer_gate
from powerinfer.models.tensors.ffn_tensors import find_ffn
from powerinfer.models.tensors.tensor_lookup import Section, TensorLookup, rows_of

__all__ = ["OUTPUT_SCALE", "TensorFinder"]

OUTPUT_SCALE = "layer_output_scale.weight"
"""Factor of the residual stream at the end of a layer; optional."""


class TensorFinder:
    """Looks tensors up, collecting problems instead of stopping at the first."""

    def __init__(self, file: GGUFFile, config: ModelConfig, architecture: Architecture) -> None:
        self._file = file
        self._config = config
        self._architecture = architecture
        self.lookup = TensorLookup(file, architecture.required_biases)

    def all(self) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
        """Tensors outside the blocks, by full name; those of each block, by name in the block."""
        return self._outer(), [self._layer(number) for number in range(self._config.num_layers)]

    def _outer(self) -> dict[str, Tensor]:
        config, outer = self._config, Section(self.lookup)
        vocab_shape = (config.vocab_size, config.hidden_size)
        outer.need(EMBEDDING, vocab_shape)
        self._positions(outer)
        # With post-norm the last block already ends with a norm.
        self._norm(outer, "output_norm", is_optional=config.is_post_norm)
        # Files with a tied output head leave it out.
        outer.take("output.weight", vocab_shape)
        if EMBEDDING in outer.tensors:
            outer.tensors.setdefault("output.weight", outer.tensors[EMBEDDING])
        outer.take("output.bias", (config.vocab_size,))
        if config.rope is not None:
            divisors = outer.need if self._architecture.needs_rope_divisors else outer.take
            divisors("rope_freqs.weight", (config.rope.rotary_dim // 2,))
        find_per_layer_embedding(outer, config)
        return outer.tensors

    def _layer(self, number: int) -> dict[str, Tensor]:
        config, block = self._config, Section(self.lookup, f"blk.{number}.")
        for norm in self._architecture.layer_norms:
            self._norm(block, norm)
        for norm in self._architecture.optional_layer_norms:
            self._norm(block, norm, is_optional=True)
        if number in config.absent.mixers:
            pass
        elif number in config.state_mixers:
            config.state_mixers[number].find(block, config.hidden_size)
        else:
            layer = config.attention[number]
            self._attention_inputs(block, layer)
            self._attention_extras(block, layer)
            q_size = config.num_heads * layer.head_dim
            block.linear("attn_output", (config.hidden_size, q_size))
        if number not in config.absent.ffns:
            find_ffn(block, config.of_layer(number), number, is_gated=self._architecture.is_gated)
        find_per_layer_gate(block, config)
        block.take(OUTPUT_SCALE, (1,))
        return block.tensors

    def _positions(self, outer: Section) -> None:
        config, offset = self._config, self._architecture.position_offset
        if offset is None:
            return
        embedding = self._file.tensors.get(EMBEDDING)
        width = embedding.shape[-1] if embedding is not None and embedding.shape else 0
        if 0 < width < config.hidden_size:
            raise UnsupportedError(
                f"{self._file.paths[0]}: {EMBEDDING} has {width} columns, embedding_length is "
                f"{config.hidden_size}: models that project their embeddings (as OPT-350m does) "
                "are not supported; both must be equal"
            )
        num_rows = (config.max_positions or 1) + offset
        outer.need(POSITION_EMBEDDING, (num_rows, config.hidden_size))

    def _norm(self, section: Section, name: str, *, is_optional: bool = False) -> None:
        """Add the weight of a norm and, for a LayerNorm, its bias."""
        stored = self._architecture.norm_names.get(name, name)
        if is_optional and not section.has(f"{stored}.weight"):
            return
        found = Section(self.lookup, section.prefix)
        parts = ("weight", "bias") if self._architecture.norm is NormKind.LAYER else ("weight",)
        for part in parts:
            found.need(f"{stored}.{part}", (self._config.hidden_size,))
            if f"{stored}.{part}" in found.tensors:
                section.tensors[f"{name}.{part}"] = found.tensors[f"{stored}.{part}"]

    def _attention_inputs(self, block: Section, layer: LayerAttention) -> None:
        """Add attn_q, attn_k, attn_v, or split attn_qkv, their rows stacked in this order."""
        config, architecture = self._config, self._architecture
        q_size = config.num_heads * layer.head_dim * (2 if architecture.has_attention_gate else 1)
        sizes = {"attn_q": q_size}
        if layer.kv_layer is None:
            sizes |= {"attn_k": layer.kv_size, "attn_v": layer.kv_size}
        if architecture.layers_differ and not block.has("attn_v.weight"):
            sizes.pop("attn_v", None)  # values are keys
        if not block.has("attn_qkv.weight"):
            for name, size in sizes.items():
                block.linear(name, (size, config.hidden_size))
            return
        fused = Section(self.lookup, block.prefix)
        fused.linear("attn_qkv", (sum(sizes.values()), config.hidden_size))
        start = 0
        for name, size in sizes.items():
            for part in ("weight", "bias"):
                whole = fused.tensors.get(f"attn_qkv.{part}")
                if whole is not None:
                    own = rows_of(whole, start, size, f"{block.prefix}{name}")
                    block.tensors[f"{name}.{part}"] = own
            start += size

    def _attention_extras(self, block: Section, layer: LayerAttention) -> None:
        """Add norms of q and k, and sinks, if the architecture has them."""
        config, architecture = self._config, self._architecture
        if architecture.qk_norm is not None:
            is_of_heads = architecture.qk_norm is QKNorm.HEAD
            sizes = (layer.head_dim,) * 2 if is_of_heads else (config.q_size, config.kv_size)
            num_norms = 2 if layer.kv_layer is None else 1
            for name, size in list(zip(QK_NORMS, sizes, strict=True))[:num_norms]:
                block.need(f"{name}.weight", (size,))
        if architecture.has_attention_sinks:
            block.need("attn_sinks.weight", (config.num_heads,))
