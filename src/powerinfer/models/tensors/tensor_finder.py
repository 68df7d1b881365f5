"""Lookup of a model's tensors by name and shape, before a byte is prepared.

Everything missing or misshapen is listed in one error.
"""

from powerinfer.errors import UnsupportedError
from powerinfer.gguf import GGUFFile, Tensor
from powerinfer.models.architecture import Architecture, NormKind, QKNorm
from powerinfer.models.config import EMBEDDING, POSITION_EMBEDDING, QK_NORMS, ModelConfig
from powerinfer.models.tensors.ffn_tensors import find_ffn
from powerinfer.models.tensors.tensor_lookup import TensorLookup, rows_of

__all__ = ["TensorFinder"]


class TensorFinder:
    """Looks tensors up, collecting problems instead of stopping at the first."""

    def __init__(self, file: GGUFFile, config: ModelConfig, architecture: Architecture) -> None:
        self._file = file
        self._config = config
        self._architecture = architecture
        self.lookup = TensorLookup(file, architecture.required_biases)

    def all(self) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
        """Tensors outside the blocks, and those of each block."""
        return self.outer(), [self.layer(number) for number in range(self._config.num_layers)]

    def outer(self) -> dict[str, Tensor]:
        """Tensors outside the blocks, by full name."""
        config = self._config
        vocab_shape = (config.vocab_size, config.hidden_size)
        tensors: dict[str, Tensor] = {}
        self.lookup.need(tensors, EMBEDDING, vocab_shape)
        self._positions(tensors)
        # With post-norm the last block already ends with a norm.
        self._norm(tensors, "output_norm", is_optional=config.is_post_norm)
        # Files with a tied output head leave it out.
        self.lookup.take(tensors, "output.weight", vocab_shape)
        if EMBEDDING in tensors:
            tensors.setdefault("output.weight", tensors[EMBEDDING])
        self.lookup.take(tensors, "output.bias", (config.vocab_size,))
        if config.rope is not None:
            self.lookup.take(tensors, "rope_freqs.weight", (config.rope.rotary_dim // 2,))
        return tensors

    def layer(self, number: int) -> dict[str, Tensor]:
        """Tensors of one block, by name without the `blk.<number>.` prefix."""
        config, prefix = self._config, f"blk.{number}."
        tensors: dict[str, Tensor] = {}
        hidden = config.hidden_size
        for norm in self._architecture.layer_norms:
            self._norm(tensors, norm, prefix)
        for norm in self._architecture.optional_layer_norms:
            self._norm(tensors, norm, prefix, is_optional=True)
        self._attention_inputs(tensors, prefix)
        self._attention_extras(tensors, prefix)
        self.lookup.linear(tensors, "attn_output", (hidden, config.q_size), prefix)
        find_ffn(self.lookup, tensors, config, prefix, is_gated=self._architecture.is_gated)
        return tensors

    def _positions(self, tensors: dict[str, Tensor]) -> None:
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
        self.lookup.need(tensors, POSITION_EMBEDDING, (num_rows, config.hidden_size))

    def _norm(
        self, tensors: dict[str, Tensor], name: str, prefix: str = "", *, is_optional: bool = False
    ) -> None:
        """Add the weight of a norm and, for a LayerNorm, its bias."""
        stored = self._architecture.norm_names.get(name, name)
        if is_optional and f"{prefix}{stored}.weight" not in self._file.tensors:
            return
        parts = ("weight", "bias") if self._architecture.norm is NormKind.LAYER else ("weight",)
        found: dict[str, Tensor] = {}
        for part in parts:
            self.lookup.need(found, f"{stored}.{part}", (self._config.hidden_size,), prefix)
            if f"{stored}.{part}" in found:
                tensors[f"{name}.{part}"] = found[f"{stored}.{part}"]

    def _attention_inputs(self, tensors: dict[str, Tensor], prefix: str) -> None:
        """Add attn_q, attn_k, attn_v, or split attn_qkv, their rows stacked in this order."""
        config = self._config
        sizes = {"attn_q": config.q_size, "attn_k": config.kv_size, "attn_v": config.kv_size}
        if f"{prefix}attn_qkv.weight" not in self._file.tensors:
            for name, size in sizes.items():
                self.lookup.linear(tensors, name, (size, config.hidden_size), prefix)
            return
        fused: dict[str, Tensor] = {}
        self.lookup.linear(fused, "attn_qkv", (sum(sizes.values()), config.hidden_size), prefix)
        start = 0
        for name, size in sizes.items():
            for part in ("weight", "bias"):
                whole = fused.get(f"attn_qkv.{part}")
                if whole is not None:
                    tensors[f"{name}.{part}"] = rows_of(whole, start, size, f"{prefix}{name}")
            start += size

    def _attention_extras(self, tensors: dict[str, Tensor], prefix: str) -> None:
        """Add norms of q and k, and sinks, if the architecture has them."""
        config, architecture = self._config, self._architecture
        if architecture.qk_norm is not None:
            is_of_heads = architecture.qk_norm is QKNorm.HEAD
            sizes = (config.head_dim,) * 2 if is_of_heads else (config.q_size, config.kv_size)
            for name, size in zip(QK_NORMS, sizes, strict=True):
                self.lookup.need(tensors, f"{name}.weight", (size,), prefix)
        if architecture.has_attention_sinks:
            self.lookup.need(tensors, "attn_sinks.weight", (config.num_heads,), prefix)
