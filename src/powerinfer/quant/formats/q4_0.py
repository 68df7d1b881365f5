"""Q4_0: 32 elements in 18 bytes: half d, then 16 bytes of two 4-bit codes.

Element j is (low nibble of byte j - 8) * d, element j + 16 is (high nibble of byte j - 8) * d.
Source: ggml type 2 (``block_q4_0``).
Codecs: signed codes of ``_legacy.py``.
"""

from powerinfer.quant.formats._legacy import signed_format

__all__ = ["FORMAT"]

FORMAT = signed_format("q4_0", 2, bits=4)
