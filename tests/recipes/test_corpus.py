"""Reading texts, and the order in which a run reads them."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from patience import PATIENCE_S

pytest.importorskip("zstandard", reason="zstandard is not installed")

from corpus_folder import write_corpus
from powerinfer.errors import PowerInferError
from recipes.stories.corpus import (
    BOS_ID,
    Mixture,
    PackedStream,
    TokenArray,
    join_documents,
    read_documents,
)


def test_documents_are_split_and_stripped(tmp_path: Path) -> None:
    path = write_corpus(tmp_path, "some", ["one", "\ntwo\n\nparagraphs\n", "", "drei ü"])
    assert read_documents(path) == ["one", "two\n\nparagraphs", "drei ü"]


def test_the_corpus_and_its_tests_need_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; sys.path[:0] = sys.argv[1:];"
        "import recipes.stories.corpus, tests.recipes.test_corpus"
    )
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", code, str(root), str(root / "tests" / "support")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr


def test_a_byte_limit_keeps_whole_documents_only(tmp_path: Path) -> None:
    path = write_corpus(tmp_path, "some", ["first story", "second story", "third"])
    assert read_documents(path, max_bytes=32) == ["first story"]
    assert len(read_documents(path, max_bytes=10_000)) == 3


def test_a_missing_text_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(PowerInferError, match=r"nothing\.txt\.zst does not exist.*--data"):
        read_documents(tmp_path / "nothing.txt.zst")


def _tokens() -> TokenArray:
    return join_documents([[10 * d + i for i in range(1, d + 3)] for d in range(1, 8)])


def _documents(row: TokenArray) -> set[tuple[int, ...]]:
    pieces = np.split(row, np.flatnonzero(row == BOS_ID))
    return {tuple(int(i) for i in piece) for piece in pieces if len(piece)}


def test_an_epoch_reads_every_document_once_in_a_new_order() -> None:
    tokens = _tokens()
    stream = PackedStream("some", tokens, seed=3)
    epochs = [stream.take(len(tokens))[:-1] for _ in range(3)]
    assert all(_documents(epoch) == _documents(tokens) for epoch in epochs)
    assert not np.array_equal(epochs[0], epochs[1])
    assert stream.epoch >= 2


def test_consecutive_rows_overlap_by_the_target() -> None:
    stream = PackedStream("some", _tokens(), seed=3)
    first, second = stream.take(7), stream.take(7)
    assert len(first) == len(second) == 8
    assert first[-1] == second[0]


def test_restored_mixture_continues_with_the_same_rows() -> None:
    def mixture() -> Mixture:
        return Mixture({n: PackedStream(n, _tokens(), seed=1) for n in ("a", "b")}, seed=1)

    shares = {"a": 0.7, "b": 0.3}
    whole = mixture()
    rows = [whole.rows(step, 4, 9, shares) for step in range(6)]
    before = mixture()
    for step in range(3):
        before.rows(step, 4, 9, shares)
    after = mixture()
    after.restore(before.state())
    for step in range(3, 6):
        np.testing.assert_array_equal(after.rows(step, 4, 9, shares), rows[step])


def test_a_source_without_share_is_not_read() -> None:
    streams = {n: PackedStream(n, _tokens(), seed=1) for n in ("a", "b")}
    Mixture(streams, seed=1).rows(0, 20, 9, {"a": 1.0})
    assert (streams["b"].epoch, streams["b"].offset) == (0, 0)


def test_an_empty_source_is_an_error() -> None:
    with pytest.raises(PowerInferError, match="holds no document"):
        PackedStream("empty", np.empty(0, np.uint16), seed=0)
