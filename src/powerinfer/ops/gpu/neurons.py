"""The feed-forward block over the neurons that lie on a device, for the few tokens of decoding.

Launches depend on shapes alone and nothing waits for the device, so that a step can be recorded.
Paper: "Neuron-aware Operator" (arXiv 2312.12456, section 5.4).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from powerinfer.errors import ShapeError
from powerinfer.ops.gpu.kernels import IS_INTERPRETED, MAX_TOKENS
from powerinfer.ops.gpu.kernels.listing import (
    CHUNK,
    Listing,
    list_firing,
    list_predicted,
    write_cold_bits,
)
from powerinfer.ops.gpu.kernels.matvec import (
    NUM_WARPS,
    check_x,
    power_of_two,
    row_arguments,
    tile_sizes,
)
from powerinfer.ops.gpu.kernels.neurons import down_kernel, sum_parts_kernel, value_kernel
from powerinfer.ops.gpu.matrix import DeviceMatrix
from powerinfer.values import Activation

__all__ = ["HotNeurons", "hot_ffn", "write_cold"]

# Stretches that the sum over neurons is cut into, times tokens: with 8 blocks of 512 columns they
# fill the 132 processors of an H200 eight times.
_PARTS = 16 if IS_INTERPRETED else 128
_DOWN_TILE = {"ROWS": 8, "BLOCK": 512}
# All parts are loaded at once: one wait for memory, and as many programs as there are processors.
_SUM_BLOCK = 128 if IS_INTERPRETED else 32
# Lists are short: with few slots for each program there are still programs for all processors.
_LISTED_ROWS = 32 if IS_INTERPRETED else 2


@dataclass(frozen=True, slots=True)
class HotNeurons:
    """Neurons of one block that lie on a device; row i of each matrix belongs to slot i.

    Attributes:
        gate: [slots, hidden_size] or None for an ungated block.
        up: [slots, hidden_size].
        down: [slots, hidden_size], transposed.
        neuron_of_slot: i32[slots], -1 where a slot is free.
        slot_of_neuron: i32[intermediate_size], -1 for neurons elsewhere.
        activation: of the block.
        is_exact_sparse: read up and down only for neurons that fire; False: for all that count.
        gate_bias: f32[slots] or None.
        up_bias: f32[slots] or None.
        down_bias: f32[hidden_size] or None; added once per call, with no neuron on the device too.
        counters: i64[3] on the device or None, added to unless all neurons are computed (no mask
            and not `is_skipping`): pairs of token and neuron whose value is
            not zero, pairs that were let pass, neurons whose deciding row was read.
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
        """Rows of the matrices, free ones included."""
        return self.up.rows

    @property
    def is_skipping(self) -> bool:
        """Whether up and down are read only for neurons that fire."""
        return self.activation.is_sparse and self.is_exact_sparse

    @property
    def nbytes(self) -> int:
        """Bytes of the matrices on the device."""
        return sum(part.nbytes for part in (self.gate, self.up, self.down) if part is not None)


def write_cold(mask: Tensor | None, hot: HotNeurons, words: Tensor) -> None:
    """Write which neurons passed and do not lie on the device.

    Args:
        mask: u8[num_tokens, intermediate_size]; None where every neuron passes.
        hot: the neurons on the device.
        words: i32 or u32[num_tokens, ceil(intermediate_size / 32)], on the device or page-locked
            on the host; bit i % 32 of word i / 32 becomes neuron i.

    Raises:
        ShapeError: the words do not fit the neurons.
    """
    num_words = -(-len(hot.slot_of_neuron) // 32)
    if words.ndim != 2 or words.shape[1] != num_words or not words.is_contiguous():
        raise ShapeError(
            f"words of shape {tuple(words.shape)} for {len(hot.slot_of_neuron)} neurons; "
            f"expected {num_words} contiguous words a token"
        )
    write_cold_bits(mask, hot.slot_of_neuron, words)


def hot_ffn(x: Tensor, hot: HotNeurons, mask: Tensor | None = None) -> Tensor:
    """The block over a device's neurons, with the bias of down: f32[num_tokens, hidden_size].

    The same arguments give the same bits, whatever lies in free slots.

    Args:
        x: f32[num_tokens, hidden_size], contiguous, up to 8 tokens.
        hot: the neurons.
        mask: u8[num_tokens, intermediate_size], neurons that count; None for all.

    Raises:
        ShapeError: x does not fit the matrices.
    """
    check_x(x, hot.up)
    if not hot.num_slots:
        y = torch.zeros((len(x), hot.down.columns), dtype=torch.float32, device=x.device)
        return y if hot.down_bias is None else y + hot.down_bias
    listing = None if mask is None else list_predicted(mask, hot.neuron_of_slot)
    values = _slot_values(x, hot, mask, listing)
    if listing is None and hot.is_skipping:
        listing, values = list_firing(values, hot.neuron_of_slot)
    return _sum_down(values, hot, listing)


def _slot_values(
    x: Tensor, hot: HotNeurons, mask: Tensor | None, listing: Listing | None
) -> Tensor:
    """What scales the rows of down: f32[num_tokens, slots], at the places of a list if any."""
    num_tokens, columns = x.shape
    gate, up = hot.up if hot.gate is None else hot.gate, hot.up
    values = torch.empty((num_tokens, hot.num_slots), dtype=torch.float32, device=x.device)
    sizes = tile_sizes(num_tokens, hot.num_slots, columns, max(gate.bits, up.bits))
    if listing is not None:
        sizes["ROWS"] = min(sizes["ROWS"], _LISTED_ROWS)
    value_kernel[(-(-hot.num_slots // sizes["ROWS"]),)](
        x,
        gate.values,
        gate.values if gate.scales is None else gate.scales,
        x if hot.gate_bias is None else hot.gate_bias,
        up.values,
        up.values if up.scales is None else up.scales,
        x if hot.up_bias is None else hot.up_bias,
        hot.neuron_of_slot,
        hot.neuron_of_slot if mask is None else mask,
        hot.neuron_of_slot if listing is None else listing.slots,
        hot.neuron_of_slot if listing is None else listing.counts,
        values,
        float(hot.activation.threshold),
        num_tokens,
        hot.num_slots,
        len(hot.slot_of_neuron),
        0 if listing is None else listing.num_chunks,
        columns,
        **_prefixed("gate", gate),
        **_prefixed("up", up),
        HAS_GATE=hot.gate is not None,
        HAS_GATE_BIAS=hot.gate_bias is not None,
        HAS_UP_BIAS=hot.up_bias is not None,
        HAS_LIST=listing is not None,
        IS_SKIPPING=hot.is_skipping,
        KIND=hot.activation.kind.value,
        **sizes,
        **_chunks(listing),
        num_warps=NUM_WARPS,
    )
    return values


def _sum_down(values: Tensor, hot: HotNeurons, listing: Listing | None) -> Tensor:
    """Sum of the rows of down times their values, and the bias."""
    num_tokens, device, columns = len(values), values.device, hot.down.columns
    tokens = power_of_two(num_tokens, MAX_TOKENS)
    num_parts = _PARTS // tokens
    block = power_of_two(columns, _DOWN_TILE["BLOCK"])
    parts = torch.empty((num_parts, num_tokens, columns), dtype=torch.float32, device=device)
    active = torch.empty((num_parts, num_tokens), dtype=torch.int32, device=device)
    list_arguments = {"HAS_LIST": listing is not None, **_chunks(listing)}
    counts = hot.neuron_of_slot if listing is None else listing.counts
    num_chunks = 0 if listing is None else listing.num_chunks
    down_kernel[(num_tokens, -(-columns // block), num_parts)](
        hot.down.values,
        hot.down.values if hot.down.scales is None else hot.down.scales,
        values,
        hot.neuron_of_slot if listing is None else listing.slots,
        counts,
        parts,
        active,
        num_tokens,
        hot.num_slots,
        num_chunks,
        columns,
        **row_arguments(hot.down),
        **list_arguments,
        PARTS=num_parts,
        ROWS=_DOWN_TILE["ROWS"],
        BLOCK=block,
        num_warps=NUM_WARPS,
    )
    y = torch.empty((num_tokens, columns), dtype=torch.float32, device=device)
    sum_parts_kernel[(num_tokens, -(-columns // _SUM_BLOCK))](
        parts,
        active,
        counts,
        counts if listing is None else listing.tallies,
        parts if hot.down_bias is None else hot.down_bias,
        y,
        counts if hot.counters is None else hot.counters,
        num_tokens,
        hot.num_slots,
        num_chunks,
        columns,
        HAS_BIAS=hot.down_bias is not None,
        HAS_COUNTERS=hot.counters is not None and listing is not None,
        PARTS=num_parts,
        ROWS=_DOWN_TILE["ROWS"],
        TOKENS=tokens,
        BLOCK=_SUM_BLOCK,
        HAS_LIST=listing is not None,
        CHUNKS=list_arguments["CHUNKS"],
        num_warps=NUM_WARPS,
    )
    return y


def _prefixed(name: str, matrix: DeviceMatrix) -> dict[str, int | float]:
    """Arguments of the rows of one of two matrices."""
    found = row_arguments(matrix)
    return {
        f"{name}_stride": found["stride"],
        f"{name}_scale_stride": found["scale_stride"],
        f"{name.upper()}_BITS": found["BITS"],
        f"{name.upper()}_CENTRE": found["CENTRE"],
    }


def _chunks(listing: Listing | None) -> dict[str, int]:
    """Sizes of a list's segments, and the power of two that holds their number."""
    num_chunks = 1 if listing is None else listing.num_chunks
    return {"CHUNKS": power_of_two(num_chunks, 1 << 16), "CHUNK": CHUNK}
