"""lowbit3: 256 numbers in 112 bytes, our own: 8 half steps, 64 bytes of low bits, 32 of high bits.

The number is step * (code - 3.5), one step per 32 numbers. Bytes 16 to 79 hold the two low bits of
the codes like ``lowbit2``; bit v of byte 80 + i is the high bit of place 32 v + i. Order of codes
and encoder: ``_lowbit.py``. For the copies of weights that predictors read; no file stores it. The
error of normally distributed numbers is a fifth of their deviation.
"""

from powerinfer.quant.formats._lowbit import lowbit_format

__all__ = ["FORMAT"]

FORMAT = lowbit_format("lowbit3", bits=3, first_step=0.586)
