"""Q4_K: 256 elements in 144 bytes: half d, half dmin, 12 bytes of scales, 128 bytes of codes.

Eight groups of 32 elements, group g with a 6-bit scale s_g and a 6-bit minimum m_g (see
`packed_scales`). Bytes 32p .. 32p + 31 of the codes hold group 2p in their low and group
2p + 1 in their high nibbles; the number is d * s_g * code - dmin * m_g.
Source: ggml type 12 (``block_q4_K``). Codec: ``_k_quants.py``.
"""

from powerinfer.quant.formats._k_quants import offset_groups_format

__all__ = ["FORMAT"]

FORMAT = offset_groups_format("q4_k", 12, bits=4)
