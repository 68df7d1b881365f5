"""Q5_K: 256 elements in 176 bytes: half d, half dmin, 12 scale bytes, 32 high bytes, 128 codes.

Eight groups of 32 elements as in Q4_K; bit g of byte l of the high bytes is the fifth bit of
element l of group g. The number is d * s_g * code - dmin * m_g.
Source: ggml type 13 (``block_q5_K``). Encoder: ``_k_quants.py``.
"""

from functools import partial

import numpy as np

from powerinfer.quant.format import QuantFormat
from powerinfer.quant.formats._blocks import Bytes, Floats, halves, nibble_pairs, packed_scales
from powerinfer.quant.formats._k_quants import (
    OFFSET_LIMIT,
    bound_offset_groups,
    encode_offset_groups,
    scale_bytes,
    unweighted,
)

__all__ = ["FORMAT"]

_GROUPS = np.arange(8, dtype=np.uint8)[:, None]


def _decode(blocks: Bytes) -> Floats:
    scales, minima = packed_scales(blocks, 4)
    step = halves(blocks, 0) * scales.astype(np.float32)
    base = halves(blocks, 2) * minima.astype(np.float32)
    low = nibble_pairs(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    high = (blocks[:, None, 16:48] >> _GROUPS & 1) << 4
    numbers = step[:, :, None] * (low | high).astype(np.float32) - base[:, :, None]
    return numbers.reshape(-1, 256)


def _encode(values: Floats, weights: Floats) -> Bytes:
    stored = encode_offset_groups(values, weights, 31)
    high = np.packbits(stored.codes >> 4, axis=1, bitorder="little").reshape(-1, 32)
    low = stored.codes & np.uint8(15)
    nibbles = (low[:, 0::2] | low[:, 1::2] << np.uint8(4)).reshape(-1, 128)
    return np.concatenate([scale_bytes(stored), high, nibbles], axis=-1)


FORMAT = QuantFormat(
    "q5_k",
    13,
    256,
    176,
    _decode,
    encode_blocks=unweighted(_encode),
    bound_blocks=partial(bound_offset_groups, last=31),
    encode_weighted=_encode,
    encode_limit=OFFSET_LIMIT,
)
