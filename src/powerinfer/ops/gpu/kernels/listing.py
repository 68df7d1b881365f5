"""Lists of the slots to compute, made on the device, and the bits of the neurons that have none.

A list is kept in segments of CHUNK slots: the listed slots of chunk c are at places c * CHUNK and
on of `listed`, `counts[c]` of them, in order. So one launch makes it, and every reader finds
position p of the whole list by the counts alone. Bound by the launch.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from powerinfer.errors import ShapeError
from powerinfer.ops.gpu.kernels import MAX_TOKENS
from powerinfer.ops.gpu.kernels.matvec import power_of_two
from powerinfer.ops.gpu.kernels.overlap import begin_small, overlapping

__all__ = [
    "CHUNK",
    "Listing",
    "list_chunks",
    "list_firing",
    "list_places",
    "list_predicted",
    "list_size",
    "write_cold",
]

CHUNK = 1024
"""Slots that one program of a listing kernel looks at."""

_COLD_WORDS = 32


@overlapping
def write_cold_kernel(
    mask,
    slot_of_neuron,
    words,
    num_neurons,
    num_words,
    HAS_MASK: tl.constexpr,
    WORDS: tl.constexpr,
):
    """WORDS words of one token."""
    begin_small()
    token = tl.program_id(1)
    numbers = tl.program_id(0) * WORDS + tl.arange(0, WORDS)
    bits = tl.arange(0, 32)
    neurons = numbers[:, None] * 32 + bits[None, :]
    is_neuron = neurons < num_neurons
    slots = tl.load(slot_of_neuron + neurons, mask=is_neuron, other=0)
    is_set = slots < 0
    if HAS_MASK:
        passed = tl.load(mask + token * num_neurons + neurons, mask=is_neuron, other=0)
        is_set = is_set & (passed != 0)
    packed = tl.sum(is_set.to(tl.int32) << bits[None, :], axis=1)
    tl.store(words + token * num_words + numbers, packed, mask=numbers < num_words)


@overlapping
def list_predicted_kernel(
    mask,
    neuron_of_slot,
    listed,
    counts,
    tallies,
    num_tokens,
    num_slots,
    num_neurons,
    TOKENS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """List the slots whose neuron any token let pass."""
    begin_small()
    chunk = tl.program_id(0)
    slots = chunk * CHUNK + tl.arange(0, CHUNK)
    neurons = tl.load(neuron_of_slot + slots, mask=slots < num_slots, other=-1)
    tokens = tl.arange(0, TOKENS)
    inside = (tokens < num_tokens)[:, None] & (neurons >= 0)[None, :]
    passed = tl.load(mask + tokens[:, None] * num_neurons + neurons[None, :], mask=inside, other=0)
    is_passed = (passed != 0).to(tl.int32)
    is_listed = tl.max(is_passed, axis=0)
    places = chunk * CHUNK + tl.cumsum(is_listed, axis=0) - 1
    tl.store(listed + places, slots, mask=is_listed != 0)
    tl.store(counts + chunk, tl.sum(is_listed, axis=0))
    tl.store(tallies + 2 * chunk, tl.sum(tl.sum(is_passed, axis=1), axis=0))
    tl.store(tallies + 2 * chunk + 1, tl.sum(is_listed, axis=0))


@overlapping
def list_firing_kernel(
    values,
    neuron_of_slot,
    listed,
    listed_values,
    counts,
    tallies,
    num_tokens,
    num_slots,
    TOKENS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """List the slots whose value is not zero for any token, and their values beside them."""
    begin_small()
    chunk = tl.program_id(0)
    slots = chunk * CHUNK + tl.arange(0, CHUNK)
    tokens = tl.arange(0, TOKENS)
    inside = (tokens < num_tokens)[:, None] & (slots < num_slots)[None, :]
    found = tl.load(values + tokens[:, None] * num_slots + slots[None, :], mask=inside, other=0.0)
    is_listed = tl.max((found != 0.0).to(tl.int32), axis=0)
    places = chunk * CHUNK + tl.cumsum(is_listed, axis=0) - 1
    tl.store(listed + places, slots, mask=is_listed != 0)
    at = listed_values + tokens[:, None] * num_slots + places[None, :]
    tl.store(at, found, mask=inside & (is_listed != 0)[None, :])
    tl.store(counts + chunk, tl.sum(is_listed, axis=0))
    neurons = tl.load(neuron_of_slot + slots, mask=slots < num_slots, other=-1)
    num_hot = tl.sum((neurons >= 0).to(tl.int32), axis=0)
    tl.store(tallies + 2 * chunk, num_hot * num_tokens)
    tl.store(tallies + 2 * chunk + 1, num_hot)


@triton.jit
def list_size(counts, num_chunks, CHUNKS: tl.constexpr):
    """Listed slots of all chunks."""
    chunks = tl.arange(0, CHUNKS)
    return tl.sum(tl.load(counts + chunks, mask=chunks < num_chunks, other=0), axis=0)


@triton.jit
def list_chunks(counts, num_chunks, CHUNKS: tl.constexpr, CHUNK: tl.constexpr):
    """Listed slots of all chunks; by chunk the position that it starts at, and its shift.

    The shift is what to add to a position for its place, see `list_places`.
    """
    chunks = tl.arange(0, CHUNKS)
    sizes = tl.load(counts + chunks, mask=chunks < num_chunks, other=0)
    starts = tl.cumsum(sizes, axis=0) - sizes
    return tl.sum(sizes, axis=0), starts, chunks * CHUNK - starts


@triton.jit
def list_places(starts, shifts, positions):
    """Places in `listed` of positions i32[R] of the whole list; arbitrary beyond its end."""
    # No chunk lists more than CHUNK slots, so shifts never shrink: the last that starts at or
    # before a position has the largest.
    has_started = starts[None, :] <= positions[:, None]
    return positions + tl.max(tl.where(has_started, shifts[None, :], 0), axis=1)


@dataclass(frozen=True, slots=True)
class Listing:
    """A list of slots in device memory.

    Attributes:
        slots: i32[num_slots], in segments.
        counts: i32[num_chunks], listed slots of each segment.
        tallies: i32[2 * num_chunks], for each segment the pairs of token and neuron that were let
            pass, and the slots whose deciding row is read.
    """

    slots: Tensor
    counts: Tensor
    tallies: Tensor
    num_chunks: int

    @classmethod
    def empty(cls, num_slots: int, device: torch.device) -> "Listing":
        """One to be written."""
        chunks = int(triton.cdiv(num_slots, CHUNK))
        slots = torch.empty(num_slots, dtype=torch.int32, device=device)
        numbers = torch.empty(3 * chunks, dtype=torch.int32, device=device)
        return cls(slots, numbers[2 * chunks :], numbers[: 2 * chunks], chunks)


def list_predicted(mask: Tensor, neuron_of_slot: Tensor) -> Listing:
    """List the slots whose neuron any token let pass.

    Args:
        mask: u8[num_tokens, num_neurons].
        neuron_of_slot: i32[num_slots], -1 where a slot is free.
    """
    listing = Listing.empty(len(neuron_of_slot), mask.device)
    list_predicted_kernel[(listing.num_chunks,)](
        mask,
        neuron_of_slot,
        listing.slots,
        listing.counts,
        listing.tallies,
        len(mask),
        len(neuron_of_slot),
        mask.shape[1],
        TOKENS=power_of_two(len(mask), MAX_TOKENS),
        CHUNK=CHUNK,
    )
    return listing


def list_firing(values: Tensor, neuron_of_slot: Tensor) -> tuple[Listing, Tensor]:
    """List the slots whose value is not zero for some token.

    Args:
        values: f32[num_tokens, num_slots].
        neuron_of_slot: i32[num_slots], -1 where a slot is free.

    Returns:
        The list, and f32[num_tokens, num_slots] with the values at the places of the list.
    """
    listing = Listing.empty(len(neuron_of_slot), values.device)
    listed_values = torch.empty_like(values)
    list_firing_kernel[(listing.num_chunks,)](
        values,
        neuron_of_slot,
        listing.slots,
        listed_values,
        listing.counts,
        listing.tallies,
        len(values),
        len(neuron_of_slot),
        TOKENS=power_of_two(len(values), MAX_TOKENS),
        CHUNK=CHUNK,
    )
    return listing, listed_values


def write_cold(mask: Tensor | None, slot_of_neuron: Tensor, words: Tensor) -> None:
    """Write the bits of the neurons that passed and have no slot.

    Args:
        mask: u8[num_tokens, num_neurons]; None if every neuron passes.
        slot_of_neuron: i32[num_neurons], -1 for neurons without a slot.
        words: i32 or u32[num_tokens, ceil(num_neurons / 32)], on the device or page-locked on the
            host; neuron i has bit i % 32 of word i / 32.

    Raises:
        ShapeError: the words do not fit the neurons.
    """
    num_neurons, num_words = len(slot_of_neuron), -(-len(slot_of_neuron) // 32)
    if words.ndim != 2 or words.shape[1] != num_words or not words.is_contiguous():
        raise ShapeError(
            f"words of shape {tuple(words.shape)} for {num_neurons} neurons; expected {num_words} "
            "contiguous words a token"
        )
    write_cold_kernel[(triton.cdiv(num_words, _COLD_WORDS), len(words))](
        slot_of_neuron if mask is None else mask,
        slot_of_neuron,
        words if words.dtype == torch.int32 else words.view(torch.int32),
        num_neurons,
        num_words,
        HAS_MASK=mask is not None,
        WORDS=_COLD_WORDS,
    )
