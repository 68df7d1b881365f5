"""A loaded model: configuration, weights and the step function, with what a step costs."""

import logging
from dataclasses import dataclass

import numpy as np

from powerinfer import _plugins
from powerinfer.errors import GGUFError, PromptError, UnsupportedError
from powerinfer.gguf import GGUFFile, keys
from powerinfer.models.architecture import Architecture, get_architecture
from powerinfer.models.blocks import Observer
from powerinfer.models.config import ModelConfig, read_config
from powerinfer.models.kv_cache import KVCache, kv_bytes_per_position
from powerinfer.models.rope import build_rope_table
from powerinfer.models.weights import ModelWeights, Progress, load_weights
from powerinfer.ops.protocol import FFN, KVType, Ops, RopeTable
from powerinfer.values import Activation, Batch, FloatArray, IntArray

__all__ = ["DEFAULT_CONTEXT_LENGTH", "SPARSITY_MODES", "Model", "load_model"]

DEFAULT_CONTEXT_LENGTH = 4096
"""Context where nobody asks for one and the model allows more."""

SPARSITY_MODES = ("exact", "off")
"""How FFNs may run: neurons that do not fire skipped without loss, or all computed."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Model:
    """A model on a backend; holds no state of a sequence.

    Attributes:
        config: sizes and constants.
        architecture: facts of its family and the step function.
        weights: prepared by `ops`.
        ops: the backend.
        rope: angles for `context_length` positions, or None.
        context_length: longest sequence it was loaded for.
        sparsity: `exact` where inactive neurons are skipped without loss, `off` where all run.
    """

    config: ModelConfig
    architecture: Architecture
    weights: ModelWeights
    ops: Ops
    rope: RopeTable | None
    context_length: int
    sparsity: str

    def new_cache(self, num_positions: int | None = None, kv_type: KVType = KVType.F16) -> KVCache:
        """Make a KV cache for `num_positions` positions in all (default: one full context)."""
        wanted = self.context_length if num_positions is None else num_positions
        return KVCache.create(self.ops, self.config, wanted, kv_type=kv_type)

    def forward(
        self,
        batch: Batch,
        cache: KVCache,
        *,
        logits_for: IntArray | None = None,
        observe: Observer | None = None,
    ) -> FloatArray:
        """Run one step: f32[num_selected, vocab_size], see the architecture's `forward`."""
        return self.architecture.forward(
            self.ops, self, batch, cache, logits_for=logits_for, observe=observe
        )

    def bytes_per_token(
        self,
        seq_len: int,
        *,
        ffn_bytes: float | None = None,
        kv_type: KVType = KVType.F16,
    ) -> float:
        """Bytes read to decode one token of one sequence.

        Args:
            seq_len: positions the token sees, itself included.
            ffn_bytes: FFN weight bytes really read per token (from `ops.counters`); None counts
                every row.
            kv_type: element type of the cache.
        """
        seen = min(seq_len, self.config.sliding_window or seq_len)
        ffn = self.ffn_bytes if ffn_bytes is None else ffn_bytes
        return self.dense_bytes + ffn + seen * kv_bytes_per_position(self.config, kv_type)

    @property
    def dense_bytes(self) -> int:
        """Bytes read per token whatever fires: attention, norms, output head, one embedding row."""
        weights, ops = self.weights, self.ops
        norm_bytes = 4 * self.config.hidden_size
        total = norm_bytes + ops.matrix_bytes(weights.output.matrix)
        total += ops.matrix_bytes(weights.embedding) // self.config.vocab_size
        for layer in weights.layers:
            total += 2 * norm_bytes
            for linear in (*layer.qkv, layer.attn_output):
                total += ops.matrix_bytes(linear.matrix)
        return total

    @property
    def ffn_bytes(self) -> int:
        """Bytes of all FFN matrices."""
        return sum(_bytes_of_ffn(self.ops, layer.ffn) for layer in self.weights.layers)


def load_model(
    file: GGUFFile,
    ops: Ops,
    *,
    activation: Activation | str | None = None,
    sparsity: str | None = None,
    context_length: int | None = None,
    progress: Progress | None = None,
) -> Model:
    """Read, check and prepare a model.

    Args:
        file: an open model file; must stay open as long as the model is used.
        ops: the backend.
        activation: overrides the activation the file implies, for example `fatrelu:0.01`.
        sparsity: `exact` or `off`; None chooses `exact` where the activation allows it.
        context_length: positions to prepare for; None takes min(the model's, 4096).
        progress: called with (bytes prepared, bytes in all).

    Raises:
        GGUFError: the file lacks something or contradicts itself.
        UnsupportedError: its architecture, a tensor's format or an option is not implemented.
        PromptError: `context_length` is not positive.
    """
    architecture = get_architecture(file.get_str(keys.ARCHITECTURE))
    config = read_config(file, architecture, activation)
    chosen = _choose_sparsity(sparsity, config.activation)
    length = _choose_context_length(context_length, config)
    weights = load_weights(
        file,
        ops,
        config,
        architecture,
        is_exact_sparse=chosen == "exact",
        progress=progress,
    )
    return Model(
        config=config,
        architecture=architecture,
        weights=weights,
        ops=ops,
        rope=_rope_table(file, config, weights, length),
        context_length=length,
        sparsity=chosen,
    )


def _choose_sparsity(asked: str | None, activation: Activation) -> str:
    if asked is None:
        return "exact" if activation.is_sparse else "off"
    if asked not in SPARSITY_MODES:
        raise _plugins.unsupported("sparsity", asked, SPARSITY_MODES)
    if asked == "exact" and not activation.is_sparse:
        raise UnsupportedError(
            f"sparsity 'exact' needs an activation of the ReLU family; this model runs "
            f"{activation}. Use --activation if that is wrong, or --sparsity off."
        )
    return asked


def _choose_context_length(asked: int | None, config: ModelConfig) -> int:
    if asked is None:
        return min(config.context_length, DEFAULT_CONTEXT_LENGTH)
    if asked < 1:
        raise PromptError(f"the context must be at least 1 token, got {asked}")
    if asked > config.context_length:
        _logger.warning(
            "a context of %d was asked for; the model was made for %d and may lose track beyond",
            asked,
            config.context_length,
        )
    return asked


def _rope_table(
    file: GGUFFile, config: ModelConfig, weights: ModelWeights, context_length: int
) -> RopeTable | None:
    if config.rope is None:
        return None
    divisors = None if weights.rope_divisors is None else weights.rope_divisors.decode()
    if divisors is not None and not (np.isfinite(divisors) & (divisors > 0)).all():
        raise GGUFError(f"{file.paths[0]}: rope_freqs.weight must hold positive finite numbers")
    return build_rope_table(config.rope, context_length, divisors)


def _bytes_of_ffn(ops: Ops, ffn: FFN) -> int:
    linears = [linear for linear in (ffn.gate, ffn.up, ffn.down) if linear is not None]
    return sum(ops.matrix_bytes(linear.matrix) for linear in linears)
