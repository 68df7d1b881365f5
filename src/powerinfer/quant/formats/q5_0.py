"""Q5_0: 32 elements in 22 bytes: half d, u32 of fifth bits, then 16 bytes of two 4-bit codes.

Element j has the low nibble of byte j and bit j of the u32, element j + 16 the high nibble and bit
j + 16; the number is (code - 16) * d. Source: ggml type 6 (``block_q5_0``).
Codecs: signed codes of ``_legacy.py``.
"""

from powerinfer.quant.formats._legacy import signed_format

__all__ = ["FORMAT"]

FORMAT = signed_format("q5_0", 6, bits=5)
