"""How fast the machine reads weights when it does nothing else: the bound of decoding."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from powerinfer.ops.cpu.speed import RowReader
from powerinfer.values import ByteArray

__all__ = ["gather_read_gb_per_s", "plain_read_s"]

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


def gather_read_gb_per_s(
    matrices: Sequence[ByteArray], share: float, threads: int, *, seed: int = 0
) -> float:
    """GB/s of reading randomly chosen rows, in ascending order, and doing nothing with them.

    Args:
        matrices: u8[rows, row_bytes] each; every one is read in a call of its own.
        share: of the rows, chosen anew for each matrix.
        threads: of the native team.
        seed: of the choice.
    """
    random = np.random.default_rng(seed)
    reader = RowReader(threads)
    seconds, num_bytes = 0.0, 0
    for matrix in matrices:
        rows, row_bytes = matrix.shape
        chosen = np.flatnonzero(random.random(rows) < share).astype(np.int32)
        seconds += reader.read_s(matrix.reshape(-1), row_bytes, chosen)
        num_bytes += len(chosen) * row_bytes
    return num_bytes / seconds / 1e9 if num_bytes else 0.0


def _read(piece: ByteArray) -> int:
    words = piece[: piece.nbytes // 8 * 8].view(np.uint64)
    return int(np.bitwise_xor.reduce(words))
