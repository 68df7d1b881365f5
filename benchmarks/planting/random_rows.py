"""Random matrices made in blocks of rows by a few threads, each block from a seed of its own."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from powerinfer.quant import QuantFormat

__all__ = ["FloatRows", "Workshop", "row_blocks"]

FloatRows = npt.NDArray[np.float32]
ByteRows = npt.NDArray[np.uint8]
# Temporaries of one block stay near 16 MiB at a width of 4096.
_ROWS_PER_BLOCK = 1024
T = TypeVar("T")


def row_blocks(rows: int) -> list[slice]:
    """The blocks in which matrices are made."""
    return [
        slice(start, min(rows, start + _ROWS_PER_BLOCK))
        for start in range(0, rows, _ROWS_PER_BLOCK)
    ]


class Workshop:
    """Threads, and random numbers that depend on the seed and on what they are for."""

    def __init__(self, seed: int, threads: int | None = None) -> None:
        self._seed = seed
        self._pool = ThreadPoolExecutor(threads or min(16, os.cpu_count() or 1))

    def generator(self, *tags: int) -> np.random.Generator:
        """A generator for one purpose."""
        return np.random.Generator(np.random.SFC64([self._seed, *tags]))

    def normal(self, tags: Sequence[int], rows: int, columns: int, std: float) -> FloatRows:
        """f32[rows, columns], normal with this standard deviation."""
        values = self.generator(*tags).standard_normal((rows, columns), np.float32)
        values *= np.float32(std)
        return values

    def over_blocks(self, rows: int, make: Callable[[int, slice], T]) -> Iterator[T]:
        """`make(number, rows)` for every block, several at a time, in order."""
        blocks = row_blocks(rows)
        return self._pool.map(make, range(len(blocks)), blocks)

    def matrix(
        self, tags: Sequence[int], rows: int, columns: int, std: float, chosen: QuantFormat
    ) -> tuple[ByteRows, FloatRows]:
        """An encoded normal matrix, and the numbers that an engine will see in it."""
        encoded = np.empty((rows, chosen.num_bytes(columns)), np.uint8)
        values = np.empty((rows, columns), np.float32)

        def make(number: int, block: slice) -> None:
            drawn = self.normal((*tags, number), block.stop - block.start, columns, std)
            encoded[block] = chosen.encode(drawn)
            values[block] = chosen.decode(encoded[block])

        for _ in self.over_blocks(rows, make):
            pass
        return encoded, values
