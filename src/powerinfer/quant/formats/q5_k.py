"""Q5_K: 256 elements in 176 bytes: half d, half dmin, 12 scale bytes, 32 high bytes, 128 codes.

Eight groups of 32 elements as in Q4_K; bit g of byte l of the high bytes is the fifth bit of
element l of group g. The number is d * s_g * code - dmin * m_g.
Source: ggml type 13 (``block_q5_K``). Codec: ``_k_quants.py``.
"""

from powerinfer.quant.formats._k_quants import offset_groups_format

__all__ = ["FORMAT"]

FORMAT = offset_groups_format("q5_k", 13, bits=5)
