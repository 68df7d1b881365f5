"""The feed-forward block on a device, for few tokens and for many.

Few tokens (decode steps): launches depend on shapes alone and nothing waits for the device, so that
a step can be recorded. Many tokens run as dense products with a mask of neurons.
Paper: "Neuron-aware Operator" (arXiv 2312.12456, section 5.4).
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from powerinfer.errors import ShapeError
from powerinfer.ops.gpu.formats import WIDEST_PIECE, Scaling, device_format, num_blocks
from powerinfer.ops.gpu.kernels import IS_INTERPRETED, MAX_TOKENS
from powerinfer.ops.gpu.kernels.down import down_kernel, sum_parts_kernel
from powerinfer.ops.gpu.kernels.listing import CHUNK, Listing, list_firing, list_predicted
from powerinfer.ops.gpu.kernels.matvec import (
    NUM_WARPS,
    check_x,
    input_blocks,
    power_of_two,
    row_arguments,
    tile_sizes,
)
from powerinfer.ops.gpu.kernels.neurons import value_kernel
from powerinfer.ops.gpu.kernels.prompts import select_values
from powerinfer.ops.gpu.linear import multiplied, panels, product, rounded
from powerinfer.ops.gpu.matrix import DeviceMatrix, rows_of
from powerinfer.values import Activation, ActivationKind

__all__ = ["HotNeurons", "activated", "add_rows", "hot_ffn", "masked_ffn"]

# Parts of the sum over neurons, times tokens: with 8 blocks of 512 columns they fill the 132
# processors of an H200 eight times.
_PARTS = 16 if IS_INTERPRETED else 128
_DOWN_TILE = {"ROWS": 8, "BLOCK": 512}
# Blocks of gate and up, and tiles of down, on their way at a time where there is no list. On an
# H100 that took 7 to 10 % less time than one. Of a list there is too little for each program.
_DENSE_UNROLLED = 2 if IS_INTERPRETED else 4
# All parts are loaded at once: one wait for memory, and as many programs as there are processors.
_SUM_BLOCK = 128 if IS_INTERPRETED else 32
# Lists are short: with few slots for each program there are still programs for all processors.
_LISTED_ROWS = 32 if IS_INTERPRETED else 2


@dataclass(frozen=True, slots=True)
class HotNeurons:
    """Neurons of one block that lie on a device; row i of each matrix belongs to slot i.

    Attributes:
        gate: [slots, hidden_size], as up and transposed down; None for an ungated block.
        neuron_of_slot: i32[slots], -1 for free slots.
        slot_of_neuron: i32[intermediate_size], -1 for neurons elsewhere.
        is_exact_sparse: read up and down only for neurons that fire; False: for all selected ones.
        gate_bias: f32[slots] or None; so `up_bias`.
        down_bias: f32[hidden_size] or None; added once per call, even without neurons.
        counters: i64[3] on the device or None: pairs of token and neuron with a value other than
            zero, selected pairs, and neurons whose deciding row was read. Not incremented if all
            neurons are computed (no mask and not `is_skipping`).
    """

    gate: DeviceMatrix | None
    up: DeviceMatrix
    down: DeviceMatrix
    neuron_of_slot: Tensor
    slot_of_neuron: Tensor
    activation: Activation
    is_exact_sparse: bool = True
    gate_bias: Tensor | None = None
    up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    counters: Tensor | None = None

    @property
    def num_slots(self) -> int:
        """Rows of the matrices, including free ones."""
        return self.up.rows

    @property
    def is_skipping(self) -> bool:
        """True if up and down are read only for neurons that fire."""
        return self.activation.is_sparse and self.is_exact_sparse

    @property
    def neuron_bytes(self) -> int:
        """Bytes of the rows of one neuron, even if there is no slot."""
        parts = [part for part in (self.gate, self.up, self.down) if part is not None]
        return sum(part.row_bytes for part in parts)


def hot_ffn(
    x: Tensor, hot: HotNeurons, mask: Tensor | None = None, weights: Tensor | None = None
) -> Tensor:
    """Compute the block over a device's neurons, with the bias of down, for up to 8 tokens.

    The same arguments give the same bits, whatever lies in free slots.

    Args:
        x: f32[num_tokens, hidden_size], contiguous.
        mask: u8[num_tokens, intermediate_size], selected neurons; None for all.
        weights: f32[num_tokens, n], contiguous, factors of the values of neurons: neuron i takes
            the weight i // (intermediate_size / n), that of its expert or its own. None: 1.

    Raises:
        ShapeError: x does not fit the matrices, or the weights do not fit x and the neurons.
    """
    check_x(x, hot.up)
    _check_weights(weights, len(x), len(hot.slot_of_neuron))
    if not hot.num_slots:
        y = torch.zeros((len(x), hot.down.columns), dtype=torch.float32, device=x.device)
        return y if hot.down_bias is None else y + hot.down_bias
    listing = None if mask is None else list_predicted(mask, hot.neuron_of_slot)
    values = _slot_values(x, hot, mask, weights, listing)
    if listing is None and hot.is_skipping:
        listing, values = list_firing(values, hot.neuron_of_slot)
    return _sum_down(values, hot, listing)


def _check_weights(weights: Tensor | None, num_tokens: int, num_neurons: int) -> None:
    if weights is None:
        return
    fits = weights.ndim == 2 and len(weights) == num_tokens and weights.is_contiguous()
    if not fits or not weights.shape[1] or num_neurons % weights.shape[1]:
        raise ShapeError(
            f"weights of shape {tuple(weights.shape)} for {num_tokens} tokens and {num_neurons} "
            "neurons; expected a contiguous row a token, and as many neurons for each weight"
        )


def _slot_values(
    x: Tensor,
    hot: HotNeurons,
    mask: Tensor | None,
    weights: Tensor | None,
    listing: Listing | None,
) -> Tensor:
    """Compute the factors of the rows of down: f32[num_tokens, slots], in list order if any."""
    num_tokens, columns = x.shape
    gate, up = hot.up if hot.gate is None else hot.gate, hot.up
    values = torch.empty((num_tokens, hot.num_slots), dtype=torch.float32, device=x.device)
    packed = gate if gate.bits else up
    blocks = input_blocks(x, packed)
    most_rows, unrolled = (None, _DENSE_UNROLLED) if listing is None else (_LISTED_ROWS, 1)
    sizes = tile_sizes(num_tokens, hot.num_slots, columns, packed.bits, most_rows, unrolled)
    used, list_arguments = _list_arguments(hot, listing)
    value_kernel[(-(-hot.num_slots // sizes["ROWS"]),)](
        x,
        x if blocks is None else blocks,
        gate.values,
        gate.scales,
        x if hot.gate_bias is None else hot.gate_bias,
        up.values,
        up.scales,
        x if hot.up_bias is None else hot.up_bias,
        hot.neuron_of_slot,
        hot.neuron_of_slot if mask is None else mask,
        used.slots,
        used.counts,
        values if weights is None else weights,
        values,
        float(hot.activation.threshold),
        num_tokens,
        hot.num_slots,
        len(hot.slot_of_neuron),
        used.num_chunks,
        1 if weights is None else weights.shape[1],
        columns,
        **{f"GATE_{name}": value for name, value in row_arguments(gate).items()},
        **{f"UP_{name}": value for name, value in row_arguments(up).items()},
        HAS_GATE=hot.gate is not None,
        HAS_GATE_BIAS=hot.gate_bias is not None,
        HAS_UP_BIAS=hot.up_bias is not None,
        HAS_WEIGHTS=weights is not None,
        IS_SKIPPING=hot.is_skipping,
        KIND=hot.activation.kind.value,
        WIDTH=0 if blocks is None else blocks.shape[2],
        **sizes,
        **list_arguments,
        CHUNK=CHUNK,
    )
    return values


def _sum_down(values: Tensor, hot: HotNeurons, listing: Listing | None) -> Tensor:
    """Add up the rows of down times their values, and the bias."""
    num_tokens, columns = len(values), hot.down.columns
    tokens = power_of_two(num_tokens, MAX_TOKENS)
    num_parts = _PARTS // tokens
    block, num_programs = _down_blocks(hot.down)
    rows = _DOWN_TILE["ROWS"] // (2 if hot.down.bits else 1)
    parts = values.new_empty((num_parts, num_tokens, columns))
    active = values.new_empty((num_parts, num_tokens), dtype=torch.int32)
    used, list_arguments = _list_arguments(hot, listing)
    down_kernel[(num_tokens, num_programs, num_parts)](
        hot.down.values,
        hot.down.scales,
        values,
        used.slots,
        used.counts,
        parts,
        active,
        num_tokens,
        hot.num_slots,
        used.num_chunks,
        columns,
        **row_arguments(hot.down),
        **list_arguments,
        CHUNK=CHUNK,
        PARTS=num_parts,
        ROWS=rows,
        BLOCK=block,
        UNROLLED=_down_unrolled(hot.down) if listing is None else 1,
        num_warps=1 if hot.down.bits else NUM_WARPS,
    )
    y = values.new_empty((num_tokens, columns))
    sum_parts_kernel[(num_tokens, -(-columns // _SUM_BLOCK))](
        parts,
        active,
        used.counts,
        used.tallies,
        parts if hot.down_bias is None else hot.down_bias,
        y,
        used.counts if hot.counters is None else hot.counters,
        num_tokens,
        hot.num_slots,
        used.num_chunks,
        columns,
        HAS_BIAS=hot.down_bias is not None,
        HAS_COUNTERS=hot.counters is not None and listing is not None,
        PARTS=num_parts,
        ROWS=rows,
        TOKENS=tokens,
        BLOCK=_SUM_BLOCK,
        **list_arguments,
        num_warps=NUM_WARPS,
    )
    return y


def _list_arguments(hot: HotNeurons, listing: Listing | None) -> tuple[Listing, dict[str, int]]:
    """Return the list for kernels, which do not read that of all slots, and constants about it.

    CHUNKS is the power of two that holds the number of segments.
    """
    table = hot.neuron_of_slot
    used = listing or Listing(table, table, table, num_chunks=0)
    chunks = power_of_two(used.num_chunks, 1 << 16)
    return used, {"HAS_LIST": listing is not None, "CHUNKS": chunks}


def _down_blocks(down: DeviceMatrix) -> tuple[int, int]:
    """Return the columns of a block of down, and the number of blocks."""
    if not down.bits:
        block = power_of_two(down.columns, _DOWN_TILE["BLOCK"])
        return block, -(-down.columns // block)
    # Words of one plane. The only warp has every row in each of its threads.
    planes, size = 8 if down.bits == 8 else 4, num_blocks(down.columns)
    words = min(_DOWN_TILE["BLOCK"] * planes // 32, power_of_two(size, 1 << 16))
    return words * 32 // planes, -(-size // words) * planes


def _down_unrolled(down: DeviceMatrix) -> int:
    """Return the tiles of all rows of down that are on their way at a time."""
    # Eight bits and K-quants take so many registers for one that more of them spill.
    form = device_format(down.format_name)
    is_small = form.bits <= 4 and form.scaling is Scaling.PLAIN
    return _DENSE_UNROLLED if is_small else 1


def masked_ffn(
    x: Tensor,
    hot: HotNeurons,
    mask: Tensor | None = None,
    weights: Tensor | None = None,
    *,
    has_down_bias: bool = True,
) -> Tensor:
    """Compute the block over a device's neurons for any number of tokens.

    All rows of the slots in the table are multiplied, those of free slots by zero: they must be
    finite. Activations are rounded to the type of the weights (`linear.rounded`).

    `has_down_bias` adds the bias of `down`. Other arguments and the errors are those of `hot_ffn`;
    the table of `hot` may name fewer slots than there are.
    """
    num_slots, num_neurons = len(hot.neuron_of_slot), len(hot.slot_of_neuron)
    _check_weights(weights, len(x), num_neurons)
    is_counted = mask is not None or hot.is_skipping
    y = torch.zeros((len(x), hot.down.columns), dtype=torch.float32, device=x.device)
    for first in range(0, num_slots, WIDEST_PIECE):
        piece = slice(first, min(first + WIDEST_PIECE, num_slots))
        neurons, values = hot.neuron_of_slot[piece], _activated_slots(x, hot, piece)
        if weights is not None:
            # Those of free slots are arbitrary.
            sources = neurons.clamp(min=0) // (num_neurons // weights.shape[1])
            values.mul_(weights.index_select(1, sources))
        select_values(values, neurons, mask, hot.counters if is_counted else None)
        add_rows(y, values, rows_of(hot.down, piece.start, piece.stop))
    return y.add_(hot.down_bias) if has_down_bias and hot.down_bias is not None else y


def _activated_slots(x: Tensor, hot: HotNeurons, piece: slice) -> Tensor:
    """Compute the activated neurons of x: f32[num_tokens, slots of the piece]."""

    def part(matrix: DeviceMatrix, bias: Tensor | None) -> Tensor:
        values = product(x, rows_of(matrix, piece.start, piece.stop))
        return values if bias is None else values.add_(bias[piece])

    gate = None if hot.gate is None else part(hot.gate, hot.gate_bias)
    return activated(hot.activation, gate, part(hot.up, hot.up_bias))


def activated(activation: Activation, gate: Tensor | None, up: Tensor) -> Tensor:
    """Compute `powerinfer.ops.reference.ffn.activate`, overwriting both; NaN stays NaN."""
    first, kind = up if gate is None else gate, activation.kind
    if kind is ActivationKind.SILU:
        fired = functional.silu(first)
    elif kind is ActivationKind.GELU:
        fired = functional.gelu(first, approximate="tanh")
    elif kind is ActivationKind.FATRELU:
        fired = torch.where(first < activation.threshold, 0.0, first)
    elif kind is ActivationKind.CLAMPED_SWIGLU:
        first.clamp_(max=7.0)
        fired = (1.702 * first).sigmoid_().mul_(first)
    else:
        fired = torch.relu(first)
    if kind is ActivationKind.RELU2:
        fired = fired * fired
    if gate is None:
        return fired
    if kind is ActivationKind.CLAMPED_SWIGLU:
        return fired.mul_(up.clamp_(-7.0, 7.0).add_(1.0))
    return fired.mul_(up.relu_() if kind is ActivationKind.DRELU else up)


def add_rows(y: Tensor, values: Tensor, down: DeviceMatrix) -> None:
    """Add values @ rows of down to y."""
    factors, sizes = rounded(values, down)
    for rows, weights in panels(down):
        part = multiplied(factors[:, rows], weights)
        y.add_(part if sizes is None else part.mul_(sizes))
