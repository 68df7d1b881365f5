"""Building blocks of architectures: pure functions of a backend's operations.

Each layer makes nine calls of `ops`, plus one per further norm, to keep Python's share of a decode
step small.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum, StrEnum, auto
from functools import partial
from typing import TypeAlias

import numpy as np

from powerinfer.errors import GGUFError
from powerinfer.models.architecture import NormKind
from powerinfer.models.attention import AttentionOptions
from powerinfer.models.config import ModelConfig
from powerinfer.models.mixers import AttentionWeights
from powerinfer.models.scales import Scales
from powerinfer.models.weights import LayerWeights, ModelWeights, Norm
from powerinfer.ops.backend import Activations, Backend, KVLayer, SomeFFN, SomeLinear
from powerinfer.predictors import LayerPredictor
from powerinfer.values import Batch, BoolArray, ByteArray, FloatArray, IntArray

__all__ = [
    "NO_ROWS",
    "FiringObserver",
    "Observer",
    "Stage",
    "StepControl",
    "StepObserver",
    "attention_block",
    "embed_tokens",
    "end_of_layer",
    "final_states",
    "marks_of",
    "mixer_block",
    "normalize",
    "normalize_output",
    "output_logits",
    "scale_logits",
    "select_rows",
    "start_ffn_alone",
    "start_ffn_block",
]

NO_ROWS: IntArray = np.empty(0, np.int32)
"""Argument of `select_rows` that selects no token."""


class Stage(StrEnum):
    """Stages of a layer shown to observers, in this order; f32[num_tokens, hidden_size] each.

    Attributes:
        ATTENTION_INPUT: input of the mixer: of q, k and v, or of its first projections.
        ATTENTION_MIX: input of the mixer's output projection; f32[num_tokens, q_size].
        ATTENTION: residual stream after the mixer.
        FFN_INPUT: input of the FFN; of its experts, as wide as that, if they work in a latent
            space.
        ROUTER_INPUT: input of the router, if it is not that of the FFN.
        SHARED_INPUT: input of the shared expert, if it is not that of the FFN; before `FFN_INPUT`.
        PREDICTOR_INPUT: input of the architecture's own predictors.
        FFN_OUTPUT: output of the FFN, as wide as its input, without a shared expert and before a
            `post_ffw_norm`.
        PER_LAYER_INPUT: residual stream after the FFN, if what a per-layer embedding lets pass
            follows.
        PER_LAYER_MIX: input of that embedding's output projection; f32[num_tokens, size].
        FFN: residual stream at the end of the layer.
    """

    ATTENTION_INPUT = "attention input"
    ATTENTION_MIX = "attention mix"
    ATTENTION = "attention"
    FFN_INPUT = "FFN input"
    ROUTER_INPUT = "router input"
    SHARED_INPUT = "shared input"
    PREDICTOR_INPUT = "predictor input"
    FFN_OUTPUT = "FFN output"
    PER_LAYER_INPUT = "per-layer input"
    PER_LAYER_MIX = "per-layer mix"
    FFN = "FFN"


class StepControl(Enum):
    """Answers of an observer to `Stage.FFN`; None means go on.

    STOP: end the step without later layers, output head and logits.
    """

    STOP = auto()


Observer: TypeAlias = Callable[[Stage, int, FloatArray], StepControl | None]
"""Called with (stage, layer number, f32[num_tokens, hidden_size]).

The array may be overwritten after the call: copy it to keep it. Falcon's layers run attention and
FFN in parallel, so their attention stages come after the FFN's inputs. In the last layer only the
first two stages include tokens whose logits are not wanted.
"""


class FiringObserver(ABC):
    """Observer of prompts that also sees which neurons fire: their FFNs run without predictors.

    Raises UnsupportedError on backends that do not report it.
    """

    @abstractmethod
    def __call__(self, stage: Stage, number: int, x: FloatArray) -> StepControl | None:
        """See a stage, as every `Observer`."""

    @abstractmethod
    def fired(self, number: int, bits: ByteArray) -> None:
        """Receive the neurons that fired in a layer, before its `Stage.FFN_OUTPUT`.

        Args:
            bits: u8[num_tokens, ceil(num_neurons / 8)], see `Ops.ffn_firing`; they may be
                kept. Neurons of a shared expert have none.
        """


class StepObserver(ABC):
    """Factory of observers, one per step, that needs to know the step's tokens.

    State of a step belongs to its observer, so that several threads may run steps of one model.
    """

    @abstractmethod
    def of_step(self, batch: Batch, logits_for: IntArray | None) -> Observer:
        """Make the observer of a step.

        Args:
            logits_for: i32[num_selected], tokens that the last layer's FFN computes; None for all.
        """


def embed_tokens(
    ops: Backend,
    config: ModelConfig,
    weights: ModelWeights,
    batch: Batch,
    position_offset: int | None,
) -> FloatArray:
    """Compute the start of the residual stream: f32[num_tokens, hidden_size].

    Position p has row p + `position_offset` of the learned table; None without one.
    """
    x = ops.embed(weights.embedding, batch.token_ids)
    scale = config.scales.embedding / config.scales.residual
    if scale != 1.0:
        x = x * np.float32(scale)
    if position_offset is None:
        return x
    table = weights.position_embedding
    if table is None:
        raise GGUFError("learned positions have no table; the file was loaded without one")
    ops.add(x, ops.embed(table, batch.positions + position_offset))
    return x


def normalize(ops: Backend, x: Activations, norm: Norm) -> Activations:
    """Normalize each row of f32[num_tokens, columns]."""
    if norm.kind is NormKind.RMS:
        return ops.rms_norm(x, norm.weight, norm.eps)
    return ops.layer_norm(x, norm.weight, norm.bias, norm.eps)


def normalize_output(ops: Backend, x: Activations, norm: Norm | None) -> Activations:
    """Normalize the output of attention or FFN in architectures that do."""
    return x if norm is None else normalize(ops, x, norm)


def attention_block(  # noqa: PLR0913  observers need the layer number
    ops: Backend,
    layer: LayerWeights,
    number: int,
    x: Activations,
    cache: KVLayer,
    batch: Batch,
    options: AttentionOptions,
    observe: Observer | None = None,
) -> Activations:
    """Attention with projections, norms, rotation and cache write, in a layer that has one.

    Args:
        x: f32[num_tokens, hidden_size], normalized.
        cache: keys and values of this layer; the step's own are appended.

    Returns:
        f32[num_tokens, hidden_size], to be added to the residual stream.
    """
    mixer = layer.own_mixer
    if not isinstance(mixer, AttentionWeights):
        raise TypeError(f"layer {number} has no attention but {type(mixer).__name__}")
    if observe is not None:
        observe(Stage.ATTENTION_INPUT, number, ops.to_host(x))
    linears = mixer.qkv if mixer.gate is None else (*mixer.qkv, mixer.gate)
    projected = ops.linear(x, linears, batch.is_prompt)
    (q, *kv), gates = projected[: len(mixer.qkv)], projected[len(mixer.qkv) :]
    q = normalize_output(ops, q, layer.norms.get("attn_q_norm"))
    if kv:
        k, v = normalize_output(ops, kv[0], layer.norms.get("attn_k_norm")), kv[-1]
        ops.rope_and_store(q, k, v, cache, batch, options.rope, mixer.head_norms)
    else:
        _rotate_queries(ops, q, mixer, batch, options)
    mixed = ops.attention(
        q, cache, batch, options.scale, options.window, sinks=mixer.sinks, soft_cap=options.soft_cap
    )
    for gate in gates:
        ops.gate(mixed, gate)
    if observe is not None:
        observe(Stage.ATTENTION_MIX, number, ops.to_host(mixed))
    (output,) = ops.linear(mixed, (mixer.attn_output,), batch.is_prompt)
    return normalize_output(ops, output, layer.norms.get("post_attention_norm"))


def _rotate_queries(
    ops: Backend, q: Activations, mixer: AttentionWeights, batch: Batch, options: AttentionOptions
) -> None:
    """Normalize and rotate q in a layer that reads keys and values of another one."""
    norm, eps = (
        (None, 0.0) if mixer.head_norms is None else (mixer.head_norms.q, mixer.head_norms.eps)
    )
    ops.rotate_queries(q, options.head_dim, batch, options.rope, norm, eps)


def mixer_block(  # noqa: PLR0913  observers need the layer number
    ops: Backend,
    layer: LayerWeights,
    number: int,
    x: Activations,
    cache: KVLayer,
    batch: Batch,
    options: AttentionOptions,
    observe: Observer | None = None,
) -> Activations:
    """Attention, or the mixer with state that the layer has instead; see `attention_block`."""
    mixer = layer.own_mixer
    if isinstance(mixer, AttentionWeights):
        return attention_block(ops, layer, number, x, cache, batch, options, observe)
    if mixer is None:
        raise TypeError(f"layer {number} has no mixer")
    if observe is not None:
        observe(Stage.ATTENTION_INPUT, number, ops.to_host(x))
    mixed = mixer.mix(ops, x, cache, batch)
    if observe is not None:
        observe(Stage.ATTENTION_MIX, number, ops.to_host(mixed))
    (output,) = ops.linear(mixed, mixer.linears[-1:], batch.is_prompt)
    return normalize_output(ops, output, layer.norms.get("post_attention_norm"))


def start_ffn_block(  # noqa: PLR0913  routers may have their own input
    ops: Backend,
    layer: LayerWeights,
    number: int,
    x: Activations,
    *,
    raw: Activations,
    is_prompt: BoolArray | None,
    observe: Observer | None,
    router_input: Activations | None = None,
) -> Callable[[], Activations]:
    """Start a feed-forward block, dense or over what its router and predictor select.

    A shared expert is computed, too. Arguments are those of `start_ffn_alone`.

    Returns:
        A function that finishes it and returns f32[num_tokens, hidden_size], to be added to the
        residual stream.
    """
    finish = start_ffn_alone(
        ops,
        layer,
        number,
        x,
        raw=raw,
        is_prompt=is_prompt,
        observe=observe,
        router_input=router_input,
    )
    if layer.shared_ffn is None:
        return finish
    return partial(_add_shared, ops, layer.shared_ffn, x, is_prompt, finish)


def start_ffn_alone(  # noqa: PLR0913  routers may have their own input
    ops: Backend,
    layer: LayerWeights,
    number: int,
    x: Activations,
    *,
    raw: Activations,
    is_prompt: BoolArray | None,
    observe: Observer | None,
    router_input: Activations | None = None,
) -> Callable[[], Activations]:
    """Start a feed-forward block without its shared expert.

    Args:
        x: f32[num_tokens, hidden_size], normalized.
        raw: f32[num_tokens, hidden_size], input of the architecture's own predictors: the
            unnormalized stream after attention or before the layer.
        is_prompt: bool[num_tokens], see `marks_of`.
        router_input: f32[num_tokens, hidden_size], input of the router; None for `x`.

    Returns:
        A function that finishes it and returns f32[num_tokens, hidden_size].
    """
    if layer.latent is not None:
        router_input = x if router_input is None else router_input
        (x,) = ops.linear(x, layer.latent[:1], is_prompt)
    if observe is not None:
        observe(Stage.FFN_INPUT, number, ops.to_host(x))
        if router_input is not None:
            observe(Stage.ROUTER_INPUT, number, ops.to_host(router_input))
        observe(Stage.PREDICTOR_INPUT, number, ops.to_host(raw))
    finish: Callable[[], Activations]
    ffn = layer.own_ffn
    if ffn is None:
        raise TypeError(f"layer {number} has no FFN")
    if isinstance(observe, FiringObserver):

        def show_firing() -> Activations:
            output, bits = ops.ffn_firing(x, ffn, is_prompt, router_input)
            observe.fired(number, bits)
            return output

        finish = show_firing
    else:
        finish = _start(ops, ffn, layer.predictor, x, raw, is_prompt, router_input)
    if observe is not None:
        finish = partial(_finish, ops, number, finish, observe)
    if layer.latent is None:
        return finish
    return partial(_leave_latent, ops, layer.latent[1], is_prompt, finish)


def _start(
    ops: Backend,
    ffn: SomeFFN,
    predictor: LayerPredictor | None,
    x: Activations,
    raw: Activations,
    is_prompt: BoolArray | None,
    router_input: Activations | None,
) -> Callable[[], Activations]:
    """Start the block with its predictor, or without one."""
    if predictor is None:
        return ops.start_ffn(x, ffn, None, is_prompt, router_input)
    if predictor.active_ids is None:
        seen = predictor.select_input(x, raw)
        return ops.start_ffn(x, ffn, seen, is_prompt, router_input)
    active = predictor.select(ops, ffn, x, raw, is_prompt)
    return partial(ops.ffn_active, x, ffn, active, is_prompt, router_input)


def _finish(
    ops: Backend, number: int, finish: Callable[[], Activations], observe: Observer
) -> Activations:
    output = finish()
    observe(Stage.FFN_OUTPUT, number, ops.to_host(output))
    return output


def _leave_latent(
    ops: Backend,
    out_of: SomeLinear,
    is_prompt: BoolArray | None,
    finish: Callable[[], Activations],
) -> Activations:
    """Finish the block of experts and project its output to the hidden size."""
    return ops.linear(finish(), (out_of,), is_prompt)[0]


def _add_shared(
    ops: Backend,
    shared: SomeFFN,
    x: Activations,
    is_prompt: BoolArray | None,
    finish: Callable[[], Activations],
) -> Activations:
    """Finish the block and add the output of the shared expert."""
    # Run it first, while another device may compute its part of the block.
    own = ops.ffn(x, shared, None, is_prompt)
    output = finish()
    ops.add(output, own)
    return output


def end_of_layer(ops: Backend, number: int, x: Activations, observe: Observer) -> Activations:
    """Show the end of a layer; returns no rows if the observer ends the step."""
    control = observe(Stage.FFN, number, ops.to_host(x))
    return ops.take_rows(x, NO_ROWS) if control is StepControl.STOP else x


def select_rows(ops: Backend, x: Activations, rows: IntArray | None) -> Activations:
    """Select rows; all of them for None."""
    return x if rows is None else ops.take_rows(x, rows)


def marks_of(batch: Batch, rows: IntArray | None) -> BoolArray | None:
    """Flag the prompt tokens among the rows that `select_rows` selects."""
    marks = batch.is_prompt
    return marks if marks is None or rows is None else marks[rows]


def final_states(
    ops: Backend,
    config: ModelConfig,
    weights: ModelWeights,
    x: Activations,
    is_prompt: BoolArray | None = None,
) -> Activations:
    """Apply the final norm, if the model has one: f32[num_selected, hidden_size].

    Args:
        x: f32[num_selected, hidden_size], end of the residual stream.
        is_prompt: bool[num_selected], unused: norms do not depend on it.
    """
    if not len(x):
        return np.empty((0, config.hidden_size), np.float32)
    norm = weights.output_norm
    return x if norm is None else normalize(ops, x, norm)


def output_logits(
    ops: Backend,
    config: ModelConfig,
    weights: ModelWeights,
    x: Activations,
    is_prompt: BoolArray | None = None,
) -> Activations:
    """Final norm and output head: f32[num_selected, vocab_size]; arguments as `final_states`."""
    if not len(x):
        return np.empty((0, config.vocab_size), np.float32)
    return ops.linear(final_states(ops, config, weights, x), (weights.output,), is_prompt)[0]


def scale_logits(scales: Scales, logits: FloatArray) -> FloatArray:
    """Scale and cap the output of the head to the model's logits."""
    if scales.logits == 1.0 and scales.logit_soft_cap is None:
        return logits
    with np.errstate(all="ignore"):  # NaN of damaged models is reported elsewhere
        if scales.logits != 1.0:
            logits = logits / np.float32(scales.logits)
        if scales.logit_soft_cap is not None:
            cap = np.float32(scales.logit_soft_cap)
            logits = np.tanh(logits / cap) * cap
    return logits
