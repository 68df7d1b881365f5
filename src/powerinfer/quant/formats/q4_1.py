"""Q4_1: 32 elements in 20 bytes: half d, half m, then 16 bytes of two 4-bit codes.

Element j is (low nibble of byte j) * d + m, element j + 16 uses the high nibble.
Source: ggml type 3 (``block_q4_1``).
Codecs: offset codes of ``_legacy.py``.
"""

from powerinfer.quant.formats._legacy import offset_format

__all__ = ["FORMAT"]

FORMAT = offset_format("q4_1", 3, bits=4)
