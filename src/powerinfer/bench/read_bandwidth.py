"""Memory read bandwidth, the upper bound of decode speed."""

import statistics
from collections.abc import Sequence

from powerinfer.ops.cpu.prefetch_settings import PlainReadSettings
from powerinfer.ops.cpu.speed import RowReader
from powerinfer.values import ByteArray

__all__ = ["PLAIN_READ_SETTINGS", "PlainReader"]

PLAIN_READ_SETTINGS = (
    PlainReadSettings(),
    PlainReadSettings(chunk_bytes=256 << 10),
    PlainReadSettings(chunk_bytes=8 << 20),
    *(PlainReadSettings(ahead=ahead) for ahead in (512, 1024, 2048, 4096, 8192)),
    PlainReadSettings(streams=2),
    PlainReadSettings(streams=4),
    PlainReadSettings(ahead=2048, streams=4),
)
"""The fastest of them differs between processors, by a quarter and more."""

# Settings are compared on at most this many bytes, more than caches hold.
_SAMPLE_BYTES = 512 << 20
_ROUNDS = 3


class PlainReader:
    """Reads every byte of arrays once, with the fastest of several settings.

    Bytes are combined as 64-bit words, far faster than memory delivers them.
    """

    def __init__(self, threads: int, *, compared_bytes: int = _SAMPLE_BYTES) -> None:
        """Start the threads.

        Args:
            compared_bytes: read at most with each of the settings.
        """
        self._reader = RowReader(threads)
        self._compared_bytes = compared_bytes
        self._settings: PlainReadSettings | None = None

    @property
    def settings(self) -> PlainReadSettings:
        """The fastest settings; the first ones before anything was read."""
        return self._settings or PLAIN_READ_SETTINGS[0]

    def read_s(self, arrays: Sequence[ByteArray]) -> float:
        """Read all arrays and return the seconds it took.

        The first call compares the settings on a part of the arrays.
        """
        if self._settings is None:
            self._settings = self._fastest(_sample(arrays, self._compared_bytes))
        # Pages of the file that decoding does not read, as it has a copy, may have gone meanwhile.
        self._reader.read_all_s(arrays, self._settings)
        return self._reader.read_all_s(arrays, self._settings)

    def _fastest(self, arrays: Sequence[ByteArray]) -> PlainReadSettings:
        # Pages that are not in memory are read from the file first.
        self._reader.read_all_s(arrays, PLAIN_READ_SETTINGS[0])
        seconds: dict[PlainReadSettings, list[float]] = {each: [] for each in PLAIN_READ_SETTINGS}
        for _ in range(_ROUNDS):
            for each in PLAIN_READ_SETTINGS:
                seconds[each].append(self._reader.read_all_s(arrays, each))
        return min(seconds, key=lambda each: statistics.median(seconds[each]))


def _sample(arrays: Sequence[ByteArray], num_bytes: int) -> list[ByteArray]:
    found: list[ByteArray] = []
    left = num_bytes
    for array in arrays:
        found.append(array[:left])
        left -= found[-1].nbytes
        if left <= 0:
            break
    return found
