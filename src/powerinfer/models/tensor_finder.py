"""Finding a model's tensors by name and checking their shapes, before a byte is prepared.

Everything missing or misshapen is listed in one error.
"""

from dataclasses import replace

from powerinfer.errors import GGUFError, UnsupportedError
from powerinfer.gguf import GGUFFile, Tensor
from powerinfer.models.architecture import Architecture, NormKind, QKNorm
from powerinfer.models.config import EMBEDDING, POSITION_EMBEDDING, QK_NORMS, ModelConfig

__all__ = ["TensorFinder"]

_MAX_LISTED = 8


class TensorFinder:
    """Looks tensors up and collects what is wrong instead of stopping at the first."""

    def __init__(self, file: GGUFFile, config: ModelConfig, architecture: Architecture) -> None:
        self._file = file
        self._config = config
        self._architecture = architecture
        self._missing: list[str] = []
        self._misshapen: list[str] = []

    def raise_problems(self) -> None:
        """Raise one error for everything that was missing or misshapen, if anything was."""
        path = self._file.paths[0]
        if self._file.missing_weights is not None:
            raise GGUFError(f"{path}: {self._file.missing_weights}")
        if self._missing:
            raise GGUFError(f"{path}: missing tensors: {_listed(self._missing)}")
        if self._misshapen:
            raise GGUFError(f"{path}: tensors of the wrong shape: {_listed(self._misshapen)}")

    def outer(self) -> dict[str, Tensor]:
        """Tensors outside the blocks, by full name."""
        config = self._config
        vocab_shape = (config.vocab_size, config.hidden_size)
        tensors: dict[str, Tensor] = {}
        self._need(tensors, EMBEDDING, vocab_shape)
        self._positions(tensors)
        # With post-norm the last block ends with a norm already.
        self._norm(tensors, "output_norm", is_optional=config.is_post_norm)
        # A file that ties the output head to the embedding leaves it out.
        self._take(tensors, "output.weight", vocab_shape)
        if EMBEDDING in tensors:
            tensors.setdefault("output.weight", tensors[EMBEDDING])
        self._take(tensors, "output.bias", (config.vocab_size,))
        if config.rope is not None:
            self._take(tensors, "rope_freqs.weight", (config.rope.rotary_dim // 2,))
        return tensors

    def layer(self, number: int) -> dict[str, Tensor]:
        """Tensors of one block, by name without the `blk.<number>.` prefix."""
        config, prefix = self._config, f"blk.{number}."
        tensors: dict[str, Tensor] = {}
        hidden, neurons = config.hidden_size, config.intermediate_size
        for norm in self._architecture.layer_norms:
            self._norm(tensors, norm, prefix)
        for norm in self._architecture.optional_layer_norms:
            self._norm(tensors, norm, prefix, is_optional=True)
        self._attention_inputs(tensors, prefix)
        self._attention_extras(tensors, prefix)
        self._linear(tensors, "attn_output", (hidden, config.q_size), prefix)
        if self._architecture.is_gated:
            self._linear(tensors, "ffn_gate", (neurons, hidden), prefix)
        self._linear(tensors, "ffn_up", (neurons, hidden), prefix)
        if f"{prefix}ffn_down_t.weight" in self._file.tensors:
            # Its bias, which has nothing to transpose, is renamed all the same; one under the old
            # name must not go unnoticed.
            self._need(tensors, "ffn_down_t.weight", (neurons, hidden), prefix)
            has_bias = f"{prefix}ffn_down.bias" in self._file.tensors
            self._bias(tensors, "ffn_down_t", hidden, prefix, is_required=has_bias)
        else:
            self._linear(tensors, "ffn_down", (hidden, neurons), prefix)
        return tensors

    def _positions(self, tensors: dict[str, Tensor]) -> None:
        """The table of learned positions, where the architecture has one."""
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
        self._need(tensors, POSITION_EMBEDDING, (num_rows, config.hidden_size))

    def _norm(
        self,
        tensors: dict[str, Tensor],
        name: str,
        prefix: str = "",
        *,
        is_optional: bool = False,
    ) -> None:
        """Weight of a norm and, for a LayerNorm, its bias."""
        stored = self._architecture.norm_names.get(name, name)
        if is_optional and f"{prefix}{stored}.weight" not in self._file.tensors:
            return
        parts = ("weight", "bias") if self._architecture.norm is NormKind.LAYER else ("weight",)
        found: dict[str, Tensor] = {}
        for part in parts:
            self._need(found, f"{stored}.{part}", (self._config.hidden_size,), prefix)
            if f"{stored}.{part}" in found:
                tensors[f"{name}.{part}"] = found[f"{stored}.{part}"]

    def _attention_inputs(self, tensors: dict[str, Tensor], prefix: str) -> None:
        """attn_q, attn_k, attn_v, or their rows stacked in that order as attn_qkv."""
        config = self._config
        sizes = {
            "attn_q": config.q_size,
            "attn_k": config.kv_size,
            "attn_v": config.kv_size,
        }
        if f"{prefix}attn_qkv.weight" not in self._file.tensors:
            for name, size in sizes.items():
                self._linear(tensors, name, (size, config.hidden_size), prefix)
            return
        fused: dict[str, Tensor] = {}
        self._linear(fused, "attn_qkv", (sum(sizes.values()), config.hidden_size), prefix)
        start = 0
        for name, size in sizes.items():
            for part in ("weight", "bias"):
                whole = fused.get(f"attn_qkv.{part}")
                if whole is not None:
                    tensors[f"{name}.{part}"] = _rows_of(whole, start, size, f"{prefix}{name}")
            start += size

    def _attention_extras(self, tensors: dict[str, Tensor], prefix: str) -> None:
        """Norms of q and k, and sinks, in architectures that have them."""
        config, architecture = self._config, self._architecture
        if architecture.qk_norm is not None:
            is_of_heads = architecture.qk_norm is QKNorm.HEAD
            sizes = (config.head_dim,) * 2 if is_of_heads else (config.q_size, config.kv_size)
            for name, size in zip(QK_NORMS, sizes, strict=True):
                self._need(tensors, f"{name}.weight", (size,), prefix)
        if architecture.has_attention_sinks:
            self._need(tensors, "attn_sinks.weight", (config.num_heads,), prefix)

    def _linear(
        self, tensors: dict[str, Tensor], name: str, shape: tuple[int, int], prefix: str
    ) -> None:
        """A weight, and its bias where the file has or must have one."""
        self._need(tensors, f"{name}.weight", shape, prefix)
        self._bias(tensors, name, shape[0], prefix)

    def _bias(
        self,
        tensors: dict[str, Tensor],
        name: str,
        size: int,
        prefix: str,
        *,
        is_required: bool = False,
    ) -> None:
        is_required |= name.removesuffix("_t") in self._architecture.required_biases
        look_up = self._need if is_required else self._take
        look_up(tensors, f"{name}.bias", (size,), prefix)

    def _need(
        self,
        tensors: dict[str, Tensor],
        name: str,
        shape: tuple[int, ...],
        prefix: str = "",
    ) -> None:
        if prefix + name not in self._file.tensors:
            self._missing.append(prefix + name)
        self._take(tensors, name, shape, prefix)

    def _take(
        self,
        tensors: dict[str, Tensor],
        name: str,
        shape: tuple[int, ...],
        prefix: str = "",
    ) -> None:
        tensor = self._file.tensors.get(prefix + name)
        if tensor is None:
            return
        if tuple(tensor.shape) != shape:
            self._misshapen.append(f"{prefix}{name} {list(tensor.shape)}, not {list(shape)}")
            return
        tensors[name] = tensor


def _rows_of(tensor: Tensor, start: int, count: int, name: str) -> Tensor:
    """Rows [start, start + count) of a tensor: rows are contiguous in every format."""
    row_bytes = len(tensor.data) // tensor.shape[0]
    return replace(
        tensor,
        name=name,
        shape=(count, *tensor.shape[1:]),
        data=tensor.data[start * row_bytes : (start + count) * row_bytes],
    )


def _listed(names: list[str]) -> str:
    more = len(names) - _MAX_LISTED
    return ", ".join(names[:_MAX_LISTED]) + (f" and {more} more" if more > 0 else "")
