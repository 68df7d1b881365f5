"""How fast the machine reads the weights when it does nothing else: the bound of decoding."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from powerinfer.values import ByteArray

__all__ = ["plain_read_s"]

# Large enough that handing a piece to a thread costs nothing, small enough to balance threads.
PIECE_BYTES = 8 << 20


def plain_read_s(arrays: Sequence[ByteArray], threads: int) -> float:
    """Seconds to read every byte of the arrays once with `threads` threads.

    The bytes are added up as 64-bit words, which is far faster than memory delivers them; numpy
    does not hold the interpreter's lock meanwhile. An end shorter than a word is left out.
    """
    pieces = [
        array[start : start + PIECE_BYTES]
        for array in arrays
        for start in range(0, array.nbytes, PIECE_BYTES)
    ]
    with ThreadPoolExecutor(threads) as pool:
        # Starting the threads is not part of the reading.
        list(pool.map(_read, [np.zeros(8, np.uint8)] * threads))
        started = time.perf_counter()
        list(pool.map(_read, pieces))
        return time.perf_counter() - started


def _read(piece: ByteArray) -> int:
    words = piece[: piece.nbytes // 8 * 8].view(np.uint64)
    return int(np.bitwise_xor.reduce(words))
