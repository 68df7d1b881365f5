"""The feed-forward block on a device: predictors, and the block for few tokens and for many.

Few tokens: `neurons`. Many tokens run as dense products with a mask of what counts.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from powerinfer.ops.gpu.kernels import MAX_TOKENS
from powerinfer.ops.gpu.kernels.matvec import matvec
from powerinfer.ops.gpu.kernels.predict import score_mask
from powerinfer.ops.gpu.linear import half_product, halved, product
from powerinfer.ops.gpu.matrix import DeviceMatrix, decoded
from powerinfer.ops.gpu.neurons import HotNeurons, hot_ffn, write_cold
from powerinfer.values import Activation, ActivationKind

__all__ = [
    "DevicePredictor",
    "DeviceStage",
    "HotNeurons",
    "hot_ffn",
    "masked_ffn",
    "predict",
    "write_cold",
]

# Numbers of down that are decoded at a time: 64 MiB of f16.
_PIECE = 1 << 25


@dataclass(frozen=True, slots=True)
class DeviceStage:
    """One test of a predictor, see `powerinfer.ops.operands.ScoreStage`.

    Attributes:
        matrix: [intermediate_size, columns]; columns beyond the input's meet zeros.
        bias: f32[intermediate_size] or None.
        threshold: score at or above which a neuron passes.
    """

    matrix: DeviceMatrix
    bias: Tensor | None
    threshold: float


@dataclass(frozen=True, slots=True)
class DevicePredictor:
    """A predictor on a device, see `powerinfer.ops.operands.NeuronPredictor`.

    Attributes:
        fc1: [rank, hidden_size] or None.
        center: f32[hidden_size] or None.
        stages: at least one.
    """

    fc1: DeviceMatrix | None
    center: Tensor | None
    stages: tuple[DeviceStage, ...]


def predict(x: Tensor, predictor: DevicePredictor) -> Tensor:
    """Which neurons pass every stage: u8[num_tokens, intermediate_size] of 0 and 1.

    Args:
        x: f32[num_tokens, hidden_size], contiguous; any number of tokens, 8 at a time.
        predictor: on the device of x.

    Raises:
        ShapeError: x does not fit the predictor.
    """
    if len(x) > MAX_TOKENS:
        return torch.cat([predict(some, predictor) for some in x.split(MAX_TOKENS)])
    seen, center = x, predictor.center
    if predictor.fc1 is not None:
        seen, center = matvec(x, predictor.fc1, is_relu=True, center=center), None

    def passed(stage: DeviceStage, earlier: Tensor | None) -> Tensor:
        return score_mask(
            seen, stage.matrix, stage.bias, stage.threshold, center=center, earlier=earlier
        )

    first, *others = predictor.stages
    mask = passed(first, None)
    for stage in others:
        mask = passed(stage, mask)
    return mask


def masked_ffn(
    x: Tensor,
    hot: HotNeurons,
    mask: Tensor | None = None,
    *,
    has_down_bias: bool = True,
    num_neurons: int | None = None,
) -> Tensor:
    """The block over a device's neurons for any number of tokens: f32[num_tokens, hidden_size].

    All rows are multiplied, those of free slots by zero: they must be finite. f16 and packed
    weights meet activations rounded to f16.

    Args:
        x: f32[num_tokens, hidden_size], contiguous.
        hot: the neurons.
        mask: u8[num_tokens, intermediate_size], neurons that count; None for all.
        has_down_bias: add the bias of down.
        num_neurons: the first so many slots hold neurons, whatever the tables say, and are the
            columns of `mask`; None: as the tables say.

    Raises:
        ShapeError: x does not fit the matrices.
    """
    num_slots = hot.num_slots if num_neurons is None else num_neurons
    y = torch.zeros((len(x), hot.down.columns), dtype=torch.float32, device=x.device)
    if num_slots:
        counted = _counted_slots(hot, mask) if num_neurons is None else mask
        values = _masked_values(x, hot, counted, num_slots)
        if hot.counters is not None and (mask is not None or hot.is_skipping):
            _count(hot.counters, values, counted)
        _add_rows(y, values, hot.down)
    return y.add_(hot.down_bias) if has_down_bias and hot.down_bias is not None else y


def _counted_slots(hot: HotNeurons, mask: Tensor | None) -> Tensor:
    """Which slots count, u8 or bool[num_tokens or 1, slots]; free ones never do."""
    is_used = (hot.neuron_of_slot >= 0)[None, :]
    if mask is None:
        return is_used
    return (mask.index_select(1, hot.neuron_of_slot.clamp(min=0)) != 0) & is_used


def _masked_values(x: Tensor, hot: HotNeurons, counted: Tensor | None, num_slots: int) -> Tensor:
    """What scales the rows of down: f32[num_tokens, num_slots]."""
    gate = None
    if hot.gate is not None:
        gate = _biased_product(x, hot.gate, hot.gate_bias, num_slots)
    up = _biased_product(x, hot.up, hot.up_bias, num_slots)
    values = _activated(hot.activation, gate, up)
    # Chosen, not multiplied: what does not count may be infinite.
    return values if counted is None else torch.where(counted != 0, values, 0.0)


def _biased_product(x: Tensor, matrix: DeviceMatrix, bias: Tensor | None, num_rows: int) -> Tensor:
    values = product(x, _first_rows(matrix, num_rows))
    return values if bias is None else values.add_(bias[:num_rows])


def _first_rows(matrix: DeviceMatrix, num_rows: int) -> DeviceMatrix:
    scales = None if matrix.scales is None else matrix.scales[:num_rows]
    return replace(matrix, rows=num_rows, values=matrix.values[:num_rows], scales=scales)


def _activated(activation: Activation, gate: Tensor | None, up: Tensor) -> Tensor:
    """The same as `powerinfer.ops.reference.ffn.activate`; NaN stays NaN."""
    first, kind = up if gate is None else gate, activation.kind
    if kind is ActivationKind.SILU:
        fired = functional.silu(first)
    elif kind is ActivationKind.GELU:
        fired = functional.gelu(first, approximate="tanh")
    elif kind is ActivationKind.FATRELU:
        fired = torch.where(first < activation.threshold, 0.0, first)
    else:
        fired = torch.relu(first)
    if kind is ActivationKind.RELU2:
        fired = fired * fired
    if gate is None:
        return fired
    return fired * (torch.relu(up) if kind is ActivationKind.DRELU else up)


def _add_rows(y: Tensor, values: Tensor, down: DeviceMatrix) -> None:
    """Add values @ rows of down to y, the rows decoded piece by piece."""
    num_rows = values.shape[1]
    is_half = down.bits > 0 or down.values.dtype == torch.float16
    factors, sizes = halved(values) if is_half else (values, None)
    is_copied = down.bits > 0 or down.values.dtype == torch.bfloat16
    step = max(1, _PIECE // down.columns) if is_copied else num_rows
    for first in range(0, num_rows, step):
        last = min(first + step, num_rows)
        rows, some = decoded(down, first, last), factors[:, first:last]
        part = half_product(some, rows) if is_half else torch.mm(some, rows.float())
        y.add_(part if sizes is None else part.mul_(sizes))


def _count(counters: Tensor, values: Tensor, counted: Tensor | None) -> None:
    """Add pairs with a value, pairs that count, and neurons of which any counts."""
    is_counted = torch.ones_like(values, dtype=torch.bool) if counted is None else counted != 0
    is_counted = is_counted.expand_as(values)
    numbers = [(values != 0).sum(), is_counted.sum(), is_counted.any(dim=0).sum()]
    counters.add_(torch.stack(numbers))
