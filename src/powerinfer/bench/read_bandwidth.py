"""Memory read bandwidth, the upper bound of decode speed."""

import statistics
from collections.abc import Sequence

import numpy as np

from powerinfer.ops.cpu.read_way import PlainWay
from powerinfer.ops.cpu.speed import RowReader
from powerinfer.values import ByteArray

__all__ = ["PLAIN_WAYS", "PlainReader", "gather_read_gb_per_s"]

PLAIN_WAYS = (
    PlainWay(),
    PlainWay(chunk_bytes=256 << 10),
    PlainWay(chunk_bytes=8 << 20),
    *(PlainWay(ahead=ahead) for ahead in (512, 1024, 2048, 4096, 8192)),
    PlainWay(streams=2),
    PlainWay(streams=4),
    PlainWay(ahead=2048, streams=4),
)
"""The fastest of them differs between processors, by a quarter and more."""

_GATHERED_AHEAD = (0, 4 << 10, 12 << 10, 24 << 10)

# Ways are compared on at most this many bytes, more than caches hold.
_SAMPLE_BYTES = 512 << 20
_ROUNDS = 3


class PlainReader:
    """Reads every byte of arrays once, in the fastest of several ways.

    Bytes are combined as 64-bit words, far faster than memory delivers them.
    """

    def __init__(self, threads: int, *, compared_bytes: int = _SAMPLE_BYTES) -> None:
        """Start the threads.

        Args:
            threads: size of the native team, 1 to 512.
            compared_bytes: maximum bytes read to compare the ways.
        """
        self._reader = RowReader(threads)
        self._compared_bytes = compared_bytes
        self._way: PlainWay | None = None

    @property
    def way(self) -> PlainWay:
        """The fastest way; a default before anything was read."""
        return self._way or PLAIN_WAYS[0]

    def read_s(self, arrays: Sequence[ByteArray]) -> float:
        """Read all arrays and return the seconds it took.

        The first call compares the ways on a part of the arrays.

        Args:
            arrays: u8[n] each.
        """
        if self._way is None:
            self._way = self._fastest(_sample(arrays, self._compared_bytes))
        # Decoding does not read file pages it has a copy of, so they may have been evicted.
        self._reader.read_all_s(arrays, self._way)
        return self._reader.read_all_s(arrays, self._way)

    def _fastest(self, arrays: Sequence[ByteArray]) -> PlainWay:
        # Fault in the pages first.
        self._reader.read_all_s(arrays, PLAIN_WAYS[0])
        seconds: dict[PlainWay, list[float]] = {way: [] for way in PLAIN_WAYS}
        for _ in range(_ROUNDS):
            for way in PLAIN_WAYS:
                seconds[way].append(self._reader.read_all_s(arrays, way))
        return min(seconds, key=lambda way: statistics.median(seconds[way]))


def gather_read_gb_per_s(
    matrices: Sequence[ByteArray], share: float, threads: int, *, seed: int = 0
) -> float:
    """Measure GB/s of reading random rows in ascending order, without and with prefetching.

    Returns the fastest of several prefetch distances.

    Args:
        matrices: u8[rows, row_bytes] each, read in a call of its own.
        share: share of the rows, drawn for each matrix.
    """
    random = np.random.default_rng(seed)
    chosen = [
        np.flatnonzero(random.random(len(rows)) < share).astype(np.int32) for rows in matrices
    ]
    reader = RowReader(threads)

    def seconds(ahead: int) -> float:
        # Read all matrices before trying the next distance, so that caches do not hold them.
        return sum(
            reader.read_s(rows.reshape(-1), rows.shape[1], ids, ahead)
            for rows, ids in zip(matrices, chosen, strict=True)
        )

    num_bytes = sum(len(ids) * rows.shape[1] for rows, ids in zip(matrices, chosen, strict=True))
    # Fault in the pages first.
    seconds(0)
    fastest = min(seconds(ahead) for ahead in _GATHERED_AHEAD)
    return num_bytes / fastest / 1e9 if num_bytes else 0.0


def _sample(arrays: Sequence[ByteArray], num_bytes: int) -> list[ByteArray]:
    found: list[ByteArray] = []
    left = num_bytes
    for array in arrays:
        found.append(array[:left])
        left -= found[-1].nbytes
        if left <= 0:
            break
    return found
