"""A loaded model: configuration, weights, step functions and bytes per step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import groupby
from typing import TypeAlias

import numpy as np

from powerinfer.errors import UnsupportedError
from powerinfer.kvcache.kv_cache import BLOCK_SIZE, KVCache
from powerinfer.kvcache.state_slots import SLOTS_PER_SEQUENCE, StateSlots
from powerinfer.models.architecture import Architecture
from powerinfer.models.attention import AttentionOptions, LayerAttention
from powerinfer.models.blocks import (
    Observer,
    StepObserver,
    embed_tokens,
    final_states,
    marks_of,
    output_logits,
    scale_logits,
)
from powerinfer.models.config import ModelConfig
from powerinfer.models.paused_step import PausedStep
from powerinfer.models.tensors.screened_head import ScreenedHead
from powerinfer.models.weights import LayerWeights, ModelWeights, Norm
from powerinfer.ops.backend import Activations, Backend, KVLayer, SomeFFN
from powerinfer.ops.protocol import KVType, LayerProgram, NeuronShares, RopeTable, WantedLogits
from powerinfer.predictors.kind import THRESHOLD
from powerinfer.quant import get_format
from powerinfer.values import Batch, BoolArray, FloatArray, IntArray

__all__ = ["LayerShares", "Model", "kv_bytes_per_position", "layer_kv_bytes", "sequence_bytes"]

_End: TypeAlias = Callable[
    [Backend, ModelConfig, ModelWeights, Activations, BoolArray | None], Activations
]
"""End of a step: `blocks.output_logits` or `blocks.final_states`."""


@dataclass(frozen=True, slots=True)
class LayerShares:
    """Share of each layer's neurons needed by a decode step, see `NeuronShares`.

    Attributes:
        active: f32[num_layers].
        union: f32[num_layers].
    """

    active: FloatArray
    union: FloatArray


@dataclass(frozen=True, slots=True)
class Model:
    """A model on a backend, without the state of any sequence.

    Attributes:
        attention: attention settings per layer, with angles for `context_length` positions.
        context_length: longest sequence it was loaded for.
        sparsity: `off` if all neurons run, `exact` if inactive ones are skipped without loss, else
            the name of the predictors' or thresholds' setting.
        mlp_threshold: score from which the file's predictors call a neuron active.
        observer: default observer of steps.
        screened_head: computes the logits that choices want; None computes all.
    """

    config: ModelConfig
    architecture: Architecture
    weights: ModelWeights
    ops: Backend
    attention: tuple[AttentionOptions, ...]
    context_length: int
    sparsity: str
    mlp_threshold: float = 0.0
    observer: Observer | StepObserver | None = None
    screened_head: ScreenedHead | None = None

    @property
    def rope_tables(self) -> list[RopeTable]:
        """Distinct tables of angles."""
        tables = [options.rope for options in self.attention if options.rope is not None]
        return list({id(table): table for table in tables}.values())

    @property
    def layer_kinds(self) -> tuple[str, ...]:
        """Selection in each layer: `off`, `exact`, `threshold` or a predictor kind."""
        if self.sparsity == "off":
            return ("off",) * self.config.num_layers
        return tuple(map(_kind, self.weights.layers))

    def layer_shares(self) -> LayerShares | None:
        """Shares of the last decode step on any cache; None if the backend does not count them."""
        shares = [
            NeuronShares(0.0, 0.0)
            if layer.own_ffn is None
            else self.ops.neuron_shares(layer.own_ffn)
            for layer in self.weights.layers
        ]
        known = [share for share in shares if share is not None]
        if len(known) < len(shares):
            return None
        return LayerShares(
            np.array([share.active for share in known], np.float32),
            np.array([share.union for share in known], np.float32),
        )

    def new_cache(
        self,
        num_positions: int | None = None,
        kv_type: KVType = KVType.F16,
        *,
        block_size: int = BLOCK_SIZE,
        num_slots: int = SLOTS_PER_SEQUENCE,
    ) -> KVCache:
        """Allocate a cache, rounded up to whole blocks; None takes one full context.

        Layers with state get `num_slots` states each: a sequence needs two.

        Raises:
            UnsupportedError: head_dim is not a multiple of the Q8_0 block.
        """
        ops, config = self.ops, self.config
        wanted = self.context_length if num_positions is None else num_positions
        bytes_per_position = kv_bytes_per_position(config, kv_type)
        num_blocks = max(1, -(-wanted // block_size))
        attention: list[KVLayer] = []
        # Layers of equal sizes, one after the other, in one call: all of them in most models.
        for sizes, alike in groupby(
            (each.num_kv_heads, each.head_dim) for each in config.kv_layers
        ):
            num_alike = sum(1 for _ in alike)
            attention += ops.new_kv_layers(num_alike, num_blocks, block_size, *sizes, kv_type)
        state_sizes = [mixer.state_size for mixer in config.state_mixers.values()]
        states = iter(ops.new_state_layers(state_sizes, num_slots) if state_sizes else [])
        keys, layers = iter(attention), list[KVLayer]()
        for number, layer in enumerate(config.attention):
            if number in config.absent.mixers:
                layers.append(KVLayer(None))
            elif layer.kv_layer is not None:
                layers.append(layers[layer.kv_layer])
            else:
                layers.append(next(states if number in config.state_mixers else keys))
        return KVCache(
            layers=layers,
            num_blocks=num_blocks,
            block_size=block_size,
            kv_type=kv_type,
            bytes_per_position=bytes_per_position,
            copy_blocks=partial(ops.copy_kv_blocks, attention),
            states=StateSlots(num_slots, config.state_bytes) if state_sizes else None,
        )

    def forward(
        self,
        batch: Batch,
        cache: KVCache,
        *,
        logits_for: IntArray | None = None,
        observe: Observer | None = None,
        wanted: Sequence[WantedLogits | None] | None = None,
    ) -> FloatArray:
        """Run one step and return logits: f32[num_selected, vocab_size].

        Args:
            cache: keys and values; those of the step are appended.
            logits_for: i32[num_selected], tokens of the batch whose logits are wanted; None for
                all.
            observe: receives the stages of each layer, see `blocks.Observer`.
            wanted: for each row of a decode step, the logits that a screened head must compute;
                None for all.
        """
        x = self.embed(batch)
        head = self.screened_head
        if head is not None and batch.is_prompt is None:
            program = self._program(x, batch, cache, final_states, logits_for, observe)
            states = self.ops.step(x, batch, program)
            return head.logits(self.ops, self.weights.output, states, wanted)
        program = self._program(x, batch, cache, output_logits, logits_for, observe)
        return scale_logits(self.config.scales, self.ops.step(x, batch, program))

    def begin(
        self,
        batch: Batch,
        cache: KVCache,
        *,
        rows_for: IntArray | None = None,
        wants_states: bool = False,
        observe: Observer | None = None,
    ) -> PausedStep:
        """Prepare a step that pauses between layers, with the rows of `forward`.

        Only for backends that run layers apart (`StepRunner.runs_layers_apart`).

        Args:
            rows_for: tokens of the batch whose rows are wanted; None for all.
            wants_states: make the rows those of `hidden_states`.
        """
        x = self.embed(batch)
        end, scales = (final_states, None) if wants_states else (output_logits, self.config.scales)
        program = self._program(x, batch, cache, end, rows_for, observe)
        return PausedStep(program, batch, scales, x)

    def hidden_states(
        self,
        batch: Batch,
        cache: KVCache,
        *,
        states_for: IntArray | None = None,
        observe: Observer | None = None,
    ) -> FloatArray:
        """Run one step and return the input of the output head, after the final norm.

        Returns:
            f32[num_selected, hidden_size]; arguments as for `forward`.
        """
        x = self.embed(batch)
        program = self._program(x, batch, cache, final_states, states_for, observe)
        return self.ops.step(x, batch, program)

    def _program(
        self,
        x: FloatArray,
        batch: Batch,
        cache: KVCache,
        end: _End,
        wanted: IntArray | None,
        observe: Observer | None,
    ) -> LayerProgram[Activations]:
        observer = self.observer if observe is None else observe
        if wanted is not None and np.array_equal(wanted, np.arange(batch.num_tokens)):
            wanted = None
        if isinstance(observer, StepObserver):
            observer = observer.of_step(batch, wanted)
        # A recorded program depends on the cache's identity only, so prompt flags, a selection or
        # an observer rule recording out.
        is_plain = wanted is None and batch.is_prompt is None and observer is None
        # A cache has records of one kind: of logits, or of the input of a screened head.
        recorded = output_logits if self.screened_head is None else final_states
        may_record = end is recorded and is_plain
        marks = marks_of(batch, wanted)
        table = self.weights.per_layer
        inputs = () if table is None else (table.inputs(self.ops, batch, x),)
        return LayerProgram(
            self.config.num_layers,
            partial(self._run_layers, cache=cache, inputs=inputs, wanted=wanted, observe=observer),
            lambda x: end(self.ops, self.config, self.weights, x, marks),
            cache if may_record else None,
            inputs,
        )

    def embed(self, batch: Batch) -> FloatArray:
        """Embed the tokens of a step: f32[num_tokens, hidden_size]."""
        offset = self.architecture.position_offset
        return embed_tokens(self.ops, self.config, self.weights, batch, offset)

    def _run_layers(  # noqa: PLR0913  what a step depends on
        self,
        x: Activations,
        batch: Batch,
        first: int,
        last: int,
        *,
        cache: KVCache,
        inputs: tuple[FloatArray, ...],
        wanted: IntArray | None,
        observe: Observer | None,
    ) -> Activations:
        """Run layers [first, last), stopping after one that returns no rows.

        `inputs` holds those of per-layer embeddings, if the model has some.
        """
        run_layer, end = self.architecture.run_layer, self.config.num_layers - 1
        for number in range(first, last):
            rows = wanted if number == end else None
            more = {"per_layer": inputs[0][number]} if inputs else {}
            x = run_layer(self, number, x, batch, cache, wanted=rows, observe=observe, **more)
            if not len(x):
                break
        return x

    def bytes_per_token(
        self, seq_len: int, *, ffn_bytes: float | None = None, kv_type: KVType = KVType.F16
    ) -> float:
        """Bytes read to decode one token of one sequence.

        Args:
            seq_len: positions the token sees, itself included.
            ffn_bytes: FFN weight bytes actually read per token (from `ops.counters`); None for all
                rows of the token's experts.
            kv_type: element type of the cache.
        """
        ffn = self.used_ffn_bytes if ffn_bytes is None else ffn_bytes
        return self.dense_bytes + ffn + sequence_bytes(self.config, seq_len, kv_type)

    @property
    def dense_bytes(self) -> int:
        """Bytes read by every token: attention, norms, output head, one embedding row."""
        weights, ops = self.weights, self.ops
        head = self.screened_head
        total = ops.matrix_bytes(weights.output.matrix) if head is None else head.num_bytes(ops)
        total += ops.matrix_bytes(weights.embedding) // self.config.vocab_size
        if weights.output_norm is not None:
            total += _bytes_of_norm(self.config, "output_norm", weights.output_norm)
        for layer in weights.layers:
            total += sum(
                _bytes_of_norm(self.config, name, norm) for name, norm in layer.norms.items()
            )
            linears = list(layer.latent or ())
            if layer.own_mixer is not None:
                total += 4 * sum(len(ops.vector_values(part)) for part in layer.mixer.vectors)
                linears += layer.mixer.linears
            if layer.per_layer is not None:
                linears += [layer.per_layer.gate, layer.per_layer.output]
            total += sum(ops.matrix_bytes(linear.matrix) for linear in linears)
        if weights.per_layer is not None:
            total += weights.per_layer.num_bytes(ops, self.config.vocab_size)
        return total

    @property
    def ffn_bytes(self) -> int:
        """Bytes of all FFN matrices, with all experts, shared ones and routers."""
        return sum(
            _bytes_of_ffn(self.ops, layer.ffn) + _always_read(self.ops, layer)
            for layer in self.weights.layers
            if layer.own_ffn is not None
        )

    @property
    def used_ffn_bytes(self) -> int:
        """Part of `ffn_bytes` that a token reads if none of its neurons is skipped."""
        total = Fraction()
        for layer in self.weights.layers:
            if layer.own_ffn is None:
                continue
            router = layer.ffn.router
            share = Fraction(1) if router is None else Fraction(router.num_used, router.num_experts)
            total += share * _bytes_of_ffn(self.ops, layer.ffn) + _always_read(self.ops, layer)
        return int(total)


def kv_bytes_per_position(config: ModelConfig, kv_type: KVType) -> int:
    """Bytes of one position's keys and values in all layers that have them.

    Raises:
        UnsupportedError: head_dim is not a multiple of the Q8_0 block.
    """
    return sum(layer_kv_bytes(layer, kv_type) for layer in config.kv_layers)


def layer_kv_bytes(layer: LayerAttention, kv_type: KVType) -> int:
    """Bytes of one position's keys and values that a layer reads; errors as above."""
    known = get_format(kv_type.value)
    if layer.head_dim % known.block_size:
        raise UnsupportedError(
            f"a KV cache of type {kv_type} needs heads whose width is a multiple of "
            f"{known.block_size}; this model's are {layer.head_dim} wide: use f16"
        )
    return 2 * layer.num_kv_heads * known.num_bytes(layer.head_dim)


def sequence_bytes(config: ModelConfig, seq_len: int, kv_type: KVType) -> int:
    """Bytes of keys, values and states that the last of `seq_len` tokens reads."""
    layers = config.attention_layers
    attended = sum(layer_kv_bytes(each, kv_type) * each.num_attended(seq_len) for each in layers)
    return attended + config.state_bytes


def _bytes_of_norm(config: ModelConfig, name: str, norm: Norm) -> int:
    size = {"attn_q_norm": config.q_size, "attn_k_norm": config.kv_size}.get(name)
    return 4 * norm.num_vectors * (size or config.hidden_size)


def _bytes_of_ffn(ops: Backend, ffn: SomeFFN) -> int:
    linears = [linear for linear in (ffn.gate, ffn.up, ffn.down) if linear is not None]
    return sum(ops.matrix_bytes(linear.matrix) for linear in linears)


def _always_read(ops: Backend, layer: LayerWeights) -> int:
    """Bytes of a layer's routers and shared expert, which every token reads."""
    blocks = (layer.ffn, layer.shared_ffn)
    routers = [block.router.linear.matrix for block in blocks if block and block.router]
    shared = 0 if layer.shared_ffn is None else _bytes_of_ffn(ops, layer.shared_ffn)
    return shared + sum(map(ops.matrix_bytes, routers))


def _kind(layer: LayerWeights) -> str:
    if layer.predictor is not None:
        return layer.predictor.kind
    if layer.own_ffn is None:
        return "off"
    if layer.ffn.activation.is_cut:
        return THRESHOLD
    return "exact" if layer.ffn.is_exact_sparse else "off"
