"""Placing a loaded model: its weights go to the hybrid backend, which uploads what a plan says.

The loaded model stays as it is and can still run on the CPU. If the device runs out of memory, the
model is placed again by a smaller plan.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import numpy as np

from powerinfer.errors import PlacementError, PowerInferError
from powerinfer.models.model import Model
from powerinfer.models.weights import LayerWeights, ModelWeights, Norm
from powerinfer.ops.cpu.handles import NativeFFN, NativeLinear, NativeVector
from powerinfer.ops.gpu.memory import Arena, naming_exhaustion
from powerinfer.ops.hybrid.decode import HandedFFN, SplitFFN
from powerinfer.ops.hybrid.ops import HybridOps
from powerinfer.ops.hybrid.plan import LayerPlan
from powerinfer.ops.hybrid.upload import HandedBlock, PlacedBlock, Placer
from powerinfer.ops.some_backend import SomeFFN, SomeLinear, Vector, some_ops

__all__ = ["count_bytes", "place_model"]


def place_model(model: Model, ops: HybridOps) -> Model:
    """The same model on both devices, by the plan of `ops`.

    Args:
        model: loaded on `ops.cpu`, its predictors attached.
        ops: the hybrid backend, new: it serves one placed model.

    Raises:
        PlacementError: the plan is for a model of other sizes.
        OutOfDeviceMemoryError: the device has no room; what was uploaded is let go.
        NumericsError: a weight is too large for the f16 that the device would keep it in.
    """
    _check_sizes(model, ops)
    try:
        with naming_exhaustion("the placed weights", ops.plan.budget_bytes):
            weights = _place_weights(model, ops)
    except PowerInferError as error:
        ops.release()
        # Frames of the traceback hold what was uploaded.
        raise error.with_traceback(None) from None
    return replace(model, weights=weights, ops=some_ops(ops))


def count_bytes(model: Model, ops: HybridOps) -> int:
    """Bytes of the device that everything takes which `place_model` copies or makes room for."""
    arena = Arena.counting()
    _copy(model, ops, arena)
    return arena.used_bytes


def _check_sizes(model: Model, ops: HybridOps) -> None:
    config, plan = model.config, ops.plan
    if len(plan.layers) != config.num_layers or plan.num_neurons != model.config.num_neurons:
        raise PlacementError(
            f"the plan is for {len(plan.layers)} layers of {plan.num_neurons} neurons, the model "
            f"has {config.num_layers} of {model.config.num_neurons}; solve the placement anew"
        )


def _place_weights(model: Model, ops: HybridOps) -> ModelWeights:
    """Find out what everything takes, take it at once, copy everything into it."""
    arena = Arena.allocate(ops.gpu.device, count_bytes(model, ops), "the placed weights")
    copied = _copy(model, ops, arena)
    config = model.config
    ops.blocks.prepare(
        config.num_layers,
        config.hidden_size,
        config.num_neurons,
        config.num_experts,
    )
    layers = [
        _add_shared(
            layer if block is None else _split(layer, number, block, ops), number, shared, ops
        )
        for number, (layer, block, shared) in enumerate(
            zip(copied.weights.layers, copied.blocks, copied.shared, strict=True)
        )
    ]
    ops.blocks.finish()
    return replace(copied.weights, layers=tuple(layers))


@dataclass(frozen=True, slots=True)
class _Copied:
    """What lies on the device.

    Attributes:
        weights: with its handles, but for feed-forward blocks.
        blocks: one per layer; None where the CPU computes all of it.
        shared: likewise, its shared expert; None where there is none, too.
    """

    weights: ModelWeights
    blocks: list[PlacedBlock | HandedBlock | None]
    shared: list[PlacedBlock | None]


def _copy(model: Model, ops: HybridOps, arena: Arena) -> _Copied:
    """Everything that the plan names, into an arena; if that only counts, nothing is copied."""
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
    split = [
        _native(layer)
        for (layer, _), block in zip(pairs, blocks, strict=True)
        if isinstance(block, PlacedBlock) and not block.slots.is_full
    ]
    ops.blocks.place_chunks(split, placer)
    return _Copied(weights, blocks, shared)


def _place_layer(layer: LayerWeights, plan: LayerPlan, placer: Placer) -> LayerWeights:
    """All but its feed-forward block."""
    if not plan.has_attention:
        return layer
    norms = {name: _place_norm(norm, placer) for name, norm in layer.norms.items()}
    names = {id(norm): name for name, norm in layer.norms.items()}
    head_norms, sinks = layer.head_norms, layer.sinks
    q, k, v = _place_joined(layer.qkv, placer)
    return replace(
        layer,
        norms=norms,
        ffn_input_norm=norms[names[id(layer.ffn_input_norm)]],
        qkv=(q, k, v),
        attn_output=_place_linear(layer.attn_output, placer),
        sinks=None if sinks is None else _place_vector(sinks, placer),
        head_norms=None
        if head_norms is None
        else head_norms.map(partial(_place_vector, placer=placer)),
    )


def _place_norm(norm: Norm, placer: Placer) -> Norm:
    bias = None if norm.bias is None else _place_vector(norm.bias, placer)
    return replace(norm, weight=_place_vector(norm.weight, placer), bias=bias)


def _place_block(
    layer: LayerWeights, plan: LayerPlan, ops: HybridOps, placer: Placer
) -> PlacedBlock | HandedBlock | None:
    """On both devices if the GPU decides which neurons run, even if it holds none of them."""
    if not plan.has_attention:
        return None
    if layer.predictor is not None and layer.predictor.active_ids is not None:
        # The host computes the active ids in the middle of the step.
        ops.blocks.are_recordable = False
    predictor = layer.ffn.predictor
    # The GPU has no kernel for hidden layers of single experts.
    is_handed = predictor is not None and (not plan.has_predictor or predictor.num_experts > 1)
    if is_handed:
        return placer.handed_block(_native(layer))
    return ops.blocks.place(_native(layer), plan.hot, placer)


def _place_shared(
    layer: LayerWeights, plan: LayerPlan, ops: HybridOps, placer: Placer
) -> PlacedBlock | None:
    """All neurons of the shared expert, which runs for every token."""
    if layer.shared_ffn is None or not plan.has_attention:
        return None
    shared = cast("NativeFFN", layer.shared_ffn)
    num_neurons = ops.matrix_shape(shared.up.matrix)[0]
    return ops.blocks.place(shared, np.arange(num_neurons, dtype=np.int32), placer)


def _add_shared(
    layer: LayerWeights, number: int, placed: PlacedBlock | None, ops: HybridOps
) -> LayerWeights:
    if placed is None:
        return layer
    on_cpu = cast("NativeFFN", layer.shared_ffn)
    added = ops.blocks.add_shared(number, on_cpu, placed)
    return replace(layer, shared_ffn=cast("SomeFFN", on_cpu.prepared(added)))


def _split(
    layer: LayerWeights, number: int, block: PlacedBlock | HandedBlock, ops: HybridOps
) -> LayerWeights:
    on_cpu = _native(layer)
    added: SplitFFN | HandedFFN
    if isinstance(block, PlacedBlock):
        added = ops.blocks.add(number, on_cpu, block)
    else:
        added = ops.blocks.add_handed(number, on_cpu, block)
    return replace(layer, ffn=cast("SomeFFN", on_cpu.prepared(added)))


# A model does not say of which backend its handles are. Those of one that was loaded on `ops.cpu`
# are that backend's, and those that come back are for `ops`: casts say so, here and above.


def _native(layer: LayerWeights) -> NativeFFN:
    return cast("NativeFFN", layer.ffn)


def _place_vector(vector: Vector, placer: Placer) -> Vector:
    return cast("Vector", placer.vector(cast("NativeVector", vector)))


def _place_linear(linear: SomeLinear, placer: Placer) -> SomeLinear:
    return cast("SomeLinear", placer.linear(cast("NativeLinear", linear)))


def _place_joined(linears: Sequence[SomeLinear], placer: Placer) -> Sequence[SomeLinear]:
    joined = placer.joined(cast("Sequence[NativeLinear]", linears))
    return cast("Sequence[SomeLinear]", joined)
