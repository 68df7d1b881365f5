"""lowbit2: 256 numbers in 80 bytes, our own: eight half steps, then 64 bytes of 2-bit codes.

The number is step * (code - 1.5), one step per 32 numbers; order of codes and encoder:
``_lowbit.py``. For the copies of weights that predictors read; no file stores it. The error of
normally distributed numbers is a third of their deviation.
"""

from powerinfer.quant.formats._lowbit import lowbit_format

__all__ = ["FORMAT"]

FORMAT = lowbit_format("lowbit2", bits=2, first_step=0.996)
