"""Reading rows of memory and doing nothing with them: the bound of operators that gather."""

import time

from powerinfer import _core
from powerinfer.values import ByteArray, IntArray

__all__ = ["RowReader"]


class RowReader:
    """Reads listed rows with a team of threads of its own, as the native operators do."""

    def __init__(self, threads: int) -> None:
        """Start the threads, 1 to 512."""
        self._team = _core.ThreadTeam(threads)

    def read_s(self, data: ByteArray, row_bytes: int, row_ids: IntArray) -> float:
        """Seconds to read the listed rows.

        Args:
            data: u8[rows * row_bytes].
            row_bytes: bytes of a row.
            row_ids: i32[count], which rows, in this order.

        Raises:
            IndexError: an id is out of range.
        """
        started = time.perf_counter()
        _core.gather_rows(self._team, data, row_bytes, row_ids)
        return time.perf_counter() - started
