"""Plain reads of rows: every word of the listed rows is read, and of no other."""

import numpy as np
import pytest

from benchmarks.timing.operators import gather_read_gb_per_s
from powerinfer import _core
from powerinfer.ops.cpu.speed import RowReader
from powerinfer.values import ByteArray, IntArray


@pytest.mark.parametrize("row_bytes", [8, 100, 144, 2304])
def test_reads_the_listed_rows(row_bytes: int) -> None:
    random = np.random.default_rng(row_bytes)
    data = random.integers(0, 256, 50 * row_bytes, np.uint8)
    row_ids = np.array([1, 2, 17, 40, 41, 49], np.int32)
    words = row_bytes // 8
    rows = data.reshape(50, row_bytes)[row_ids][:, : 8 * words]
    wanted = np.bitwise_xor.reduce(np.ascontiguousarray(rows).view(np.uint64), axis=None)
    for threads in (1, 3):
        team = _core.ThreadTeam(threads)
        assert _core.gather_rows(team, data, row_bytes, row_ids) == int(wanted)
        for ahead in (1, 1000, 1 << 20):
            assert _core.gather_rows(team, data, row_bytes, row_ids, ahead) == int(wanted)


@pytest.mark.parametrize("row_id", [-1, 4])
def test_refuses_rows_that_are_not_there(row_id: int) -> None:
    with pytest.raises(IndexError, match=f"row {row_id}"):
        RowReader(1).read_s(np.zeros(35, np.uint8), 8, np.array([row_id], np.int32))


def test_gather_of_nothing_is_no_rate() -> None:
    matrix = np.zeros((64, 256), np.uint8)
    assert gather_read_gb_per_s([matrix], 0.0, 1) == 0.0
    assert gather_read_gb_per_s([matrix], 1.0, 1) > 0.0


def test_a_plain_gather_is_the_fastest_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[tuple[int, tuple[int, ...], int]] = []

    def read_s(
        self: RowReader, data: ByteArray, row_bytes: int, row_ids: IntArray, ahead: int = 0
    ) -> float:
        reads.append((data.nbytes, tuple(row_ids.tolist()), ahead))
        return 1.0 if ahead == 12 << 10 else 2.0

    monkeypatch.setattr(RowReader, "read_s", read_s)
    matrices = [np.zeros((64, 256), np.uint8), np.zeros((32, 128), np.uint8)]
    num_bytes = 64 * 256 + 32 * 128
    assert gather_read_gb_per_s(matrices, 1.0, 1) == pytest.approx(num_bytes / 2 / 1e9)
    # The same rows in every way, and every matrix before any is read again.
    assert [size for size, _, _ in reads] == [64 * 256, 32 * 128] * 5
    assert len({ids for _, ids, _ in reads}) == 2
    with pytest.raises(ValueError, match="0 to 2"):
        _core.gather_rows(
            _core.ThreadTeam(1), matrices[0].reshape(-1), 256, np.zeros(1, np.int32), -1
        )
