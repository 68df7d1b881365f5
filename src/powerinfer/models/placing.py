"""Placing a loaded model: its weights go to the hybrid backend, which uploads what a plan says.

The loaded model stays as it is and can still run on the CPU. If the device runs out of memory, the
model is placed again by a smaller plan.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from powerinfer.errors import PlacementError, PowerInferError
from powerinfer.models.model import Model
from powerinfer.models.weights import LayerWeights, ModelWeights, Norm
from powerinfer.ops.cpu.handles import NativeFFN, NativeLinear, NativeVector
from powerinfer.ops.gpu.memory import naming_exhaustion
from powerinfer.ops.hybrid.decode import HandedFFN, SplitFFN
from powerinfer.ops.hybrid.ops import HybridOps
from powerinfer.ops.hybrid.plan import LayerPlan
from powerinfer.ops.some_backend import SomeFFN, SomeLinear, Vector, some_ops

__all__ = ["place_model"]


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


def _check_sizes(model: Model, ops: HybridOps) -> None:
    config, plan = model.config, ops.plan
    if len(plan.layers) != config.num_layers or plan.num_neurons != config.intermediate_size:
        raise PlacementError(
            f"the plan is for {len(plan.layers)} layers of {plan.num_neurons} neurons, the model "
            f"has {config.num_layers} of {config.intermediate_size}; solve the placement anew"
        )


def _place_weights(model: Model, ops: HybridOps) -> ModelWeights:
    config, weights = model.config, model.weights
    ops.blocks.prepare(config.num_layers, config.hidden_size, config.intermediate_size)
    layers = tuple(
        _place_layer(layer, number, plan, ops)
        for number, (layer, plan) in enumerate(zip(weights.layers, ops.plan.layers, strict=True))
    )
    ops.blocks.finish()
    if not ops.plan.has_output:
        return replace(weights, layers=layers)
    norm = weights.output_norm
    return replace(
        weights,
        layers=layers,
        output_norm=None if norm is None else _place_norm(norm, ops),
        output=_place_linear(weights.output, ops),
    )


def _place_layer(layer: LayerWeights, number: int, plan: LayerPlan, ops: HybridOps) -> LayerWeights:
    if not plan.has_attention:
        return layer
    norms = {name: _place_norm(norm, ops) for name, norm in layer.norms.items()}
    names = {id(norm): name for name, norm in layer.norms.items()}
    q, k, v = _place_joined(layer.qkv, ops)
    return replace(
        layer,
        norms=norms,
        ffn_input_norm=norms[names[id(layer.ffn_input_norm)]],
        qkv=(q, k, v),
        attn_output=_place_linear(layer.attn_output, ops),
        ffn=_place_ffn(layer, number, plan, ops),
    )


def _place_norm(norm: Norm, ops: HybridOps) -> Norm:
    bias = None if norm.bias is None else _place_vector(norm.bias, ops)
    return replace(norm, weight=_place_vector(norm.weight, ops), bias=bias)


def _place_ffn(layer: LayerWeights, number: int, plan: LayerPlan, ops: HybridOps) -> SomeFFN:
    """On both devices if the GPU decides which neurons run, even if it holds none of them."""
    on_cpu = cast("NativeFFN", layer.ffn)
    block: SplitFFN | HandedFFN
    if on_cpu.predictor is not None and not plan.has_predictor:
        block = ops.blocks.add_handed(number, on_cpu)
    else:
        block = ops.blocks.add(number, on_cpu, plan.hot)
    if layer.predictor is not None and layer.predictor.active_ids is not None:
        # The host computes the active ids in the middle of the step.
        ops.blocks.are_recordable = False
    return cast("SomeFFN", on_cpu.prepared(block))


# A model does not say of which backend its handles are. Those of one that was loaded on `ops.cpu`
# are that backend's, and those that come back are for `ops`: casts say so, here and above.


def _place_vector(vector: Vector, ops: HybridOps) -> Vector:
    return cast("Vector", ops.uploads.vector(cast("NativeVector", vector)))


def _place_linear(linear: SomeLinear, ops: HybridOps) -> SomeLinear:
    return cast("SomeLinear", ops.uploads.linear(cast("NativeLinear", linear)))


def _place_joined(linears: Sequence[SomeLinear], ops: HybridOps) -> Sequence[SomeLinear]:
    joined = ops.uploads.joined(cast("Sequence[NativeLinear]", linears))
    return cast("Sequence[SomeLinear]", joined)
