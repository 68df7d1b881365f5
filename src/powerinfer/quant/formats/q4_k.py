"""Q4_K: 256 elements in 144 bytes: half d, half dmin, 12 bytes of scales, 128 bytes of codes.

Eight groups of 32 elements, group g with a 6-bit scale s_g and a 6-bit minimum m_g (see
`packed_scales`). Bytes 32p .. 32p + 31 of the codes hold group 2p in their low and group
2p + 1 in their high nibbles; the number is d * s_g * code - dmin * m_g.
Source: ggml type 12 (``block_q4_K``). Encoder: ``_k_quants.py``.
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


def _decode(blocks: Bytes) -> Floats:
    scales, minima = packed_scales(blocks, 4)
    step = halves(blocks, 0) * scales.astype(np.float32)
    base = halves(blocks, 2) * minima.astype(np.float32)
    codes = nibble_pairs(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    numbers = step[:, :, None] * codes.astype(np.float32) - base[:, :, None]
    return numbers.reshape(-1, 256)


def _encode(values: Floats, weights: Floats) -> Bytes:
    stored = encode_offset_groups(values, weights, 15)
    low, high = stored.codes[:, 0::2], stored.codes[:, 1::2]
    nibbles = (low | high << np.uint8(4)).reshape(-1, 128)
    return np.concatenate([scale_bytes(stored), nibbles], axis=-1)


FORMAT = QuantFormat(
    "q4_k",
    12,
    256,
    144,
    _decode,
    encode_blocks=unweighted(_encode),
    bound_blocks=partial(bound_offset_groups, last=15),
    encode_weighted=_encode,
    encode_limit=OFFSET_LIMIT,
)
