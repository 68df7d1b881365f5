"""Shared by the attention kernels: tiles of keys and values from the paged cache, softmax sums.

Products run on f16 tensor cores with f32 sums. Keys are f16 as stored (Q8_0 is rounded to f16);
queries and probabilities are split in two halves each, which keeps 22 bits of them.
"""

import math
from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

__all__ = [
    "LOG2_E",
    "NO_WINDOW",
    "Softmax",
    "add_sink",
    "block_of_head",
    "cache_rows",
    "capped",
    "fold",
    "halves",
    "load_heads",
    "normalized",
    "product",
]

NO_WINDOW = 1 << 30
"""A distance that no position reaches."""

LOG2_E = tl.constexpr(1.4426950408889634)
"""Turns powers of e into powers of two, which the device has an instruction for."""


@dataclass(frozen=True, slots=True)
class Softmax:
    """Constants of the softmax; see `powerinfer.ops.protocol.Ops.attention`.

    Attributes:
        window: positions that a token sees, or None for all.
        sinks: f32[num_heads] or None.
        soft_cap: of the scaled products, or None.
    """

    scale: float
    window: int | None = None
    sinks: Tensor | None = None
    soft_cap: float | None = None

    @property
    def factors(self) -> tuple[float, float]:
        """Factor of products and cap of the result, in base 2."""
        if self.soft_cap is None:
            return self.scale, 0.0
        return self.scale / self.soft_cap, self.soft_cap * math.log2(math.e)


@triton.jit
def halves(x):
    """Two f16 numbers whose sum is x to 22 bits."""
    high = x.to(tl.float16)
    return high, (x - high.to(tl.float32)).to(tl.float16)


@triton.jit
def product(high, low, y):
    """(high + low) @ y with f32 sums."""
    return tl.dot(high, y, out_dtype=tl.float32) + tl.dot(low, y, out_dtype=tl.float32)


@triton.jit
def normalized(q):
    """Rows of q over their largest magnitudes, as two halves, and those magnitudes."""
    largest = tl.max(tl.where(q == q, tl.abs(q), 0.0), axis=1)
    largest = tl.where(largest > 0, largest, 1.0)
    high, low = halves(q / largest[:, None])
    return high, low, largest


@triton.jit
def capped(scores, cap):
    """Scores (base 2), scaled by one over their cap, to cap * tanh(score): off by 1e-7 * cap."""
    return cap - (2.0 * cap) / (tl.exp2(2.0 * scores) + 1.0)


@triton.jit
def cache_rows(block_tables, sequence, table_width, position, inside, block_size):
    """Row of the cache, counted in positions, that holds each position."""
    entry = block_tables + sequence * table_width + position // block_size
    block = tl.load(entry, mask=inside, other=0).to(tl.int64)
    return block * block_size + position % block_size


@triton.jit
def load_heads(cache, scales, row, inside, dim, HEAD_DIM: tl.constexpr, IS_Q8: tl.constexpr):
    """Rows of one head of the cache: f16[positions, BLOCK_D], zeros outside."""
    mask = inside[:, None] & (dim < HEAD_DIM)[None, :]
    stored = tl.load(cache + row[:, None] * HEAD_DIM + dim[None, :], mask=mask, other=0)
    if IS_Q8:
        block = row[:, None] * (HEAD_DIM // 32) + dim[None, :] // 32
        d = tl.load(scales + block, mask=mask, other=0).to(tl.float32)
        stored = (stored.to(tl.float32) * d).to(tl.float16)
    return stored


@triton.jit
def fold(scores, allowed, value, top, total, mixed):
    """Fold positions with these scores (base 2) and values into running softmax sums."""
    scores = tl.where(allowed, scores, float("-inf"))
    # A NaN is no maximum, but reaches the sums below.
    numbers = tl.where(scores == scores, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(numbers, axis=1))
    # A row that has seen nothing yet must not meet infinity minus infinity.
    base = tl.where(new_top == float("-inf"), 0.0, new_top)
    faded = tl.exp2(top - base)
    weights = tl.exp2(scores - base[:, None])
    high, low = halves(weights)
    mixed = mixed * faded[:, None] + product(high, low, value)
    return new_top, total * faded + tl.sum(weights, axis=1), mixed


@triton.jit
def add_sink(sink, top, total):
    """Softmax sums (base 2) with one more score, which has no value: how they fade, new total."""
    score = tl.load(sink).to(tl.float32) * LOG2_E
    new_top = tl.maximum(top, score)
    faded = tl.exp2(top - new_top)
    return faded, total * faded + tl.exp2(score - new_top)


def block_of_head(head_dim: int) -> int:
    """Width of a head in registers: tensor cores multiply 16 columns at once."""
    return max(16, int(triton.next_power_of_2(head_dim)))
