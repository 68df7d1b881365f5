"""Q5_1: 32 elements in 24 bytes: half d, half m, u32 of fifth bits, 16 bytes of 4-bit codes.

Element j has the low nibble of byte j and bit j of the u32, element j + 16 the high nibble and bit
j + 16; the number is code * d + m. Source: ggml type 7 (``block_q5_1``).
Codecs: offset codes of ``_legacy.py``.
"""

from powerinfer.quant.formats._legacy import offset_format

__all__ = ["FORMAT"]

FORMAT = offset_format("q5_1", 7, bits=5)
