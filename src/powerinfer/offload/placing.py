"""Placing of a loaded model: the hybrid backend uploads the weights that a plan names.

The loaded model stays as it is and can still run on the CPU. If the device runs out of memory, the
model is placed again by a smaller plan.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np

from powerinfer.errors import PlacementError, PowerInferError
from powerinfer.models.mixers import AttentionWeights, Mixer
from powerinfer.models.model import Model
from powerinfer.models.weights import LayerWeights, ModelWeights, Norm
from powerinfer.ops.backend import SomeFFN, SomeLinear, Vector, as_backend
from powerinfer.ops.cpu.handles import NativeFFN, NativeLinear, NativeVector
from powerinfer.ops.gpu.formats import WIDEST_PIECE
from powerinfer.ops.gpu.memory import Arena, naming_exhaustion
from powerinfer.ops.hybrid.decode import HandedFFN, SplitFFN
from powerinfer.ops.hybrid.ops import HybridOps
from powerinfer.ops.hybrid.upload import Placer
from powerinfer.placement.plan import LayerPlacement

__all__ = ["count_bytes", "place_model"]


def place_model(model: Model, ops: HybridOps) -> Model:
    """Place a model on both devices, by the plan of `ops`.

    Args:
        model: loaded on `ops.cpu`, its predictors attached.
        ops: a new hybrid backend: it serves one placed model.

    Raises:
        PlacementError: the plan is for a model of other sizes.
        OutOfDeviceMemoryError: the device has no room; uploaded weights are released.
        NumericsError: a weight exceeds f16, the format that the device would keep it in.
    """
    ops.plan.check_shape(model.config.num_layers, model.config.num_neurons)
    try:
        with naming_exhaustion("the placed weights", ops.plan.budget_bytes):
            weights = _place_weights(model, ops)
    except PowerInferError as error:
        ops.release()
        # Frames of the traceback hold what was uploaded.
        raise error.with_traceback(None) from None
    return replace(model, weights=weights, ops=as_backend(ops))


def count_bytes(model: Model, ops: HybridOps) -> int:
    """Count the device bytes of everything that `place_model` copies or allocates."""
    arena = Arena.counting()
    _copy(model, ops, arena)
    return arena.used_bytes


def _place_weights(model: Model, ops: HybridOps) -> ModelWeights:
    """Allocate memory for everything at once, then copy everything into it."""
    arena = Arena.allocate(ops.gpu.device, count_bytes(model, ops), "the placed weights")
    weights, blocks, shared = _copy(model, ops, arena)
    config = model.config
    ops.blocks.prepare(
        config.num_layers, config.hidden_size, config.num_neurons, config.num_experts
    )
    layers = [
        _add_blocks(number, *parts, ops)
        for number, parts in enumerate(zip(weights.layers, blocks, shared, strict=True))
    ]
    ops.blocks.finish()
    return replace(weights, layers=tuple(layers))


def _copy(
    model: Model, ops: HybridOps, arena: Arena
) -> tuple[ModelWeights, list[SplitFFN | HandedFFN | None], list[SplitFFN | None]]:
    """Copy everything that the plan names into an arena, or count its bytes.

    Returns:
        Weights on the device but feed-forward blocks, those blocks by layer, and shared experts by
        layer; None for a block that the CPU computes.
    """
    placer, weights = ops.placer(arena), model.weights
    pairs = list(zip(weights.layers, ops.plan.layers, strict=True))
    layers = tuple(_place_layer(layer, plan, placer) for layer, plan in pairs)
    blocks = [_place_block(layer, plan, ops, placer) for layer, plan in pairs]
    shared = [_place_shared(layer, plan, ops, placer) for layer, plan in pairs]
    if any(plan.has_attention for plan in ops.plan.layers):
        for table in model.rope_tables:
            cos, sin = placer.array(table.cos), placer.array(table.sin)
            if not arena.is_counting:
                ops.gpu.keep_angles(table, cos, sin)
    weights = replace(weights, layers=layers)
    if ops.plan.has_output:
        norm = weights.output_norm
        weights = replace(
            weights,
            output_norm=None if norm is None else _place_norm(norm, placer),
            output=_place_linear(weights.output, placer),
        )
    sent = [
        _native(layer.ffn)
        for (layer, _), block in zip(pairs, blocks, strict=True)
        if isinstance(block, SplitFFN) and not block.slots.is_full
    ]
    config = model.config
    ops.blocks.are_streamable = not config.num_experts and config.num_neurons <= WIDEST_PIECE
    if ops.blocks.are_streamable:
        on_cpu = zip(pairs, blocks, strict=True)
        sent += [_native(layer.ffn) for (layer, _), b in on_cpu if not isinstance(b, SplitFFN)]
    ops.blocks.place_chunks(sent, placer)
    return weights, blocks, shared


def _place_layer(layer: LayerWeights, plan: LayerPlacement, placer: Placer) -> LayerWeights:
    """Place all of a layer but its feed-forward blocks."""
    if not plan.has_attention:
        return layer
    norms = {name: _place_norm(norm, placer) for name, norm in layer.norms.items()}
    names = {id(norm): name for name, norm in layer.norms.items()}
    return replace(
        layer,
        norms=norms,
        ffn_input_norm=norms[names[id(layer.ffn_input_norm)]],
        own_mixer=_place_attention(layer.mixer, placer),
    )


def _place_attention(mixer: Mixer, placer: Placer) -> AttentionWeights:
    if not isinstance(mixer, AttentionWeights) or mixer.gate is not None:
        raise PlacementError(f"{type(mixer).__name__} cannot be placed on a GPU")
    head_norms, sinks = mixer.head_norms, mixer.sinks
    q, k, v = _place_joined(mixer.qkv, placer)
    return replace(
        mixer,
        qkv=(q, k, v),
        attn_output=_place_linear(mixer.attn_output, placer),
        sinks=None if sinks is None else _place_vector(sinks, placer),
        head_norms=None
        if head_norms is None
        else head_norms.map(partial(_place_vector, placer=placer)),
    )


def _place_norm(norm: Norm, placer: Placer) -> Norm:
    bias = None if norm.bias is None else _place_vector(norm.bias, placer)
    return replace(norm, weight=_place_vector(norm.weight, placer), bias=bias)


def _place_block(
    layer: LayerWeights, plan: LayerPlacement, ops: HybridOps, placer: Placer
) -> SplitFFN | HandedFFN | None:
    """Place a block if the GPU decides which neurons run, even if it holds none of them."""
    if not plan.has_attention:
        return None
    if layer.predictor is not None and layer.predictor.active_ids is not None:
        # The host computes the active ids in the middle of the step.
        ops.blocks.are_recordable = False
    predictor = layer.ffn.predictor
    # The GPU has no kernel for hidden layers of single experts.
    is_handed = predictor is not None and (not plan.has_predictor or predictor.num_experts > 1)
    if is_handed:
        return placer.handed_block(_native(layer.ffn))
    return ops.blocks.place(_native(layer.ffn), plan.hot, placer)


def _place_shared(
    layer: LayerWeights, plan: LayerPlacement, ops: HybridOps, placer: Placer
) -> SplitFFN | None:
    """Place all neurons of the shared expert, which runs for every token."""
    if layer.shared_ffn is None or not plan.has_attention:
        return None
    shared = _native(layer.shared_ffn)
    num_neurons = ops.matrix_shape(shared.up.matrix)[0]
    return ops.blocks.place(shared, np.arange(num_neurons, dtype=np.int32), placer)


def _add_blocks(
    number: int,
    layer: LayerWeights,
    block: SplitFFN | HandedFFN | None,
    shared: SplitFFN | None,
    ops: HybridOps,
) -> LayerWeights:
    """Let the blocks of a layer run on both devices."""
    ffn, shared_ffn = layer.ffn, layer.shared_ffn
    if block is not None:
        ffn = replace(ffn, native=ops.blocks.add(number, block))
    if shared is not None and shared_ffn is not None:
        shared_ffn = replace(shared_ffn, native=ops.blocks.add_shared(number, shared))
    return replace(layer, own_ffn=ffn, shared_ffn=shared_ffn)


# The types of a model do not tell the backend of its handles. Those of a model that was loaded on
# `ops.cpu` are that backend's, and those of the placed model belong to `ops`, as these casts say.


def _native(ffn: SomeFFN) -> NativeFFN:
    return cast("NativeFFN", ffn)


def _place_vector(vector: Vector, placer: Placer) -> Vector:
    return cast("Vector", placer.vector(cast("NativeVector", vector)))


def _place_linear(linear: SomeLinear, placer: Placer) -> SomeLinear:
    return cast("SomeLinear", placer.linear(cast("NativeLinear", linear)))


def _place_joined(linears: Sequence[SomeLinear], placer: Placer) -> Sequence[SomeLinear]:
    joined = placer.joined(cast("Sequence[NativeLinear]", linears))
    return cast("Sequence[SomeLinear]", joined)
