"""Sparsity of models: the default of a file, and predictors attached to layers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from powerinfer.errors import ShapeError, UnsupportedError
from powerinfer.models.config import ModelConfig
from powerinfer.models.model import Model
from powerinfer.models.weights import LayerWeights
from powerinfer.ops.backend import Backend, SomeLinear
from powerinfer.predictors import LayerChoice, LayerSource, build_predictor, parse_kind
from powerinfer.values import Activation, FloatArray

__all__ = [
    "EXACT",
    "OFF",
    "InputStatistics",
    "check_is_cuttable",
    "check_is_sparse",
    "default_sparsity",
    "layer_source",
    "layers_to_count",
    "uniform",
    "with_predictors",
    "with_thresholds",
]

OFF, EXACT, MLP = "off", "exact", "mlp"

# Random inputs from which variances are estimated. Noise of a row is a mean over the columns, in
# which the errors of these estimates average out.
_NUM_PROBES = 32


@dataclass(frozen=True, slots=True)
class InputStatistics:
    """Statistics of one FFN's input over a text.

    Attributes:
        mean: f32[hidden_size].
        variance: f32[hidden_size].
    """

    mean: FloatArray
    variance: FloatArray


def default_sparsity(config: ModelConfig, magic: str, *, has_predictors: bool) -> str:
    """Choose the default: a PowerInfer file's own predictors, else exact sparsity if possible."""
    if not config.activation.is_sparse:
        return OFF
    return MLP if magic == "PWRI" and has_predictors else EXACT


def check_is_sparse(activation: Activation, sparsity: str) -> None:
    """Raise UnsupportedError if no neuron can be skipped: the activation is never zero."""
    if not activation.is_sparse:
        raise UnsupportedError(
            f"sparsity {sparsity!r} needs an activation of the ReLU family; this model runs "
            f"{activation}",
            remedy="if that is wrong, set the right one with {activation}, or use {sparsity='off'}",
        )


def check_is_cuttable(activation: Activation, option: str) -> None:
    """Raise UnsupportedError, which names the option, unless small values may count as zero."""
    if not activation.is_cuttable:
        raise UnsupportedError(
            f"{option} sets thresholds on silu and gelu; this model runs {activation}",
            remedy="leave {" + option + "} out",
        )


def layers_to_count(config: ModelConfig) -> list[int]:
    """Return `counted_layers`, or raise UnsupportedError if neurons cannot be counted in them."""
    if config.layers_differ:
        raise UnsupportedError(
            f"the layers of {config.architecture} models differ, and neurons are measured only in "
            "models whose layers are alike"
        )
    if config.layer_sizes:
        raise UnsupportedError(
            "FFNs of this model's layers have different sizes, and neurons are measured only in "
            "models whose layers are alike"
        )
    numbers = config.counted_layers
    if not numbers:
        raise UnsupportedError("no layer of this model has neurons that can be counted")
    return numbers


def with_thresholds(model: Model, thresholds: Sequence[float], *, name: str) -> Model:
    """Copy a model whose activations count as zero below a threshold per layer; weights are shared.

    A threshold of 0 leaves a layer as it is. Shared experts are computed whole. `thresholds` has
    one number for each layer, counted or not.
    """

    def cut(layer: LayerWeights, threshold: float) -> LayerWeights:
        if layer.own_ffn is None:
            return layer
        activation = replace(layer.ffn.activation, threshold=threshold)
        if not activation.is_cut:
            return layer
        ffn = replace(layer.ffn, activation=activation, is_exact_sparse=True)
        return replace(layer, own_ffn=model.ops.ffn_weights(ffn))

    layers = tuple(map(cut, model.weights.layers, thresholds))
    return replace(model, weights=replace(model.weights, layers=layers), sparsity=name)


def with_predictors(
    model: Model,
    choices: Sequence[LayerChoice],
    *,
    name: str,
    statistics: Sequence[InputStatistics] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Model:
    """Copy a model with other predictors; weights are shared.

    Args:
        model: loaded so that neurons can be skipped.
        name: name of the setting for reports: `exact`, `lowbit:2`, `calibrated`.
        choices: one per layer of `ModelConfig.counted_layers`; the others stay as they are.
        statistics: FFN input statistics, likewise; None derives them from the norms.
        progress: called with (layers done, layers in all).

    Raises:
        UnsupportedError: a kind is unknown or not available in this file, or the activation is
            never zero.
        ShapeError: the number of choices is not the number of layers.
    """
    numbers = model.config.counted_layers
    if len(choices) != len(numbers):
        raise ShapeError(f"{len(choices)} predictors for a model of {len(numbers)} layers")
    check_is_sparse(model.config.activation, name)
    layers = list(model.weights.layers)
    for place, (number, choice) in enumerate(zip(numbers, choices, strict=True)):
        known = None if statistics is None else statistics[place]
        built = build_predictor(model.ops, layer_source(model, number, known), choice)
        layers[number] = replace(layers[number], own_ffn=built.ffn, predictor=built.predictor)
        if progress is not None:
            progress(place + 1, len(choices))
    return replace(model, weights=replace(model.weights, layers=tuple(layers)), sparsity=name)


def uniform(kind: str, num_layers: int) -> tuple[LayerChoice, ...]:
    """Use the same kind with its default threshold in every layer.

    Raises:
        UnsupportedError: unknown kind.
    """
    name = "+".join(str(part) for part in parse_kind(kind))
    return (LayerChoice(name),) * num_layers


def layer_source(model: Model, number: int, statistics: InputStatistics | None) -> LayerSource:
    """Collect the inputs for building a layer's predictor."""
    layer = model.weights.layers[number]
    known = statistics or _implied_by_norm(model.ops, layer)
    return LayerSource(
        number=number,
        ffn=layer.ffn,
        mlp=model.weights.mlp.get(number),
        mlp_problem=model.weights.mlp_problem,
        mlp_input=model.architecture.predictor_input,
        mlp_threshold=model.mlp_threshold,
        mean=known.mean,
        variance=known.variance,
    )


def _implied_by_norm(ops: Backend, layer: LayerWeights) -> InputStatistics:
    """Statistics implied by the norm: mean 0 and variance 1, then scaled and shifted."""
    norm = layer.ffn_input_norm
    weight = ops.vector_values(norm.weight)
    mean = np.zeros_like(weight) if norm.bias is None else ops.vector_values(norm.bias)
    # A damaged norm may hold huge numbers; overflow to infinity is accepted.
    with np.errstate(over="ignore"):
        implied = InputStatistics(mean, weight * weight)
        return implied if layer.latent is None else _projected(ops, implied, layer.latent[0])


def _projected(ops: Backend, known: InputStatistics, into: SomeLinear) -> InputStatistics:
    """Statistics of a projection's output, if its input's components are independent.

    The variance is estimated from inputs of random signs: exact ones would cost a product with as
    many inputs as the matrix has columns.
    """
    width = len(known.mean)
    bits = np.random.PCG64(0).random_raw(-(-_NUM_PROBES * width // 64)).astype("<u8")
    signs = np.unpackbits(bits.view(np.uint8))[: _NUM_PROBES * width].reshape(_NUM_PROBES, width)
    deviations = (2.0 * signs - 1.0).astype(np.float32) * np.sqrt(known.variance)
    probes = np.concatenate([known.mean[None], known.mean + deviations])
    outputs = ops.to_host(ops.linear(probes, (into,))[0])
    return InputStatistics(outputs[0], np.square(outputs[1:] - outputs[0]).mean(axis=0))
