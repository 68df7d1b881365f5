"""The rows of a text: all of it, in order, with pieces from all over it held out."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from powerinfer.errors import CheckpointError, PowerInferError
from powerinfer.train.sparsify.recipe import Recipe
from powerinfer.train.sparsify.text import (
    CheckpointTokenizer,
    load_tokenizer,
    open_text,
    store_text,
)
from powerinfer.values import IntArray
from sparsify_cases import LLAMA, write_sample

# A letter is a token.
LETTERS = CheckpointTokenizer(lambda text: [ord(letter) for letter in text], None)


def _rows(folder: Path, count: int, recipe: Recipe) -> tuple[IntArray, IntArray]:
    """Rows to train on and held out, of a text of `count` different letters."""
    path = folder / "text.txt"
    path.write_text("".join(map(chr, range(0x4E00, 0x4E00 + count))), encoding="utf-8")
    store_text(folder / "text.ids", [path], LETTERS, recipe, lambda _done, _all: None)
    found = open_text(folder / "text.ids", recipe)
    assert sorted(path.name for path in folder.iterdir()) == ["text.ids", "text.txt"]
    return found.train, found.held_out


@pytest.mark.parametrize("count", [8, 11, 100, 4003])
def test_each_row_is_trained_on_or_held_out(count: int, tmp_path: Path) -> None:
    recipe = Recipe(tokens=10**6, seq_len=3, batch_tokens=3)
    train, held_out = _rows(tmp_path, count, recipe)
    num_rows = count // 4
    assert len(held_out) == max(1, num_rows // 20)
    whole = np.concatenate([train, held_out]).astype(int)
    np.testing.assert_array_equal(np.sort(whole, axis=0).ravel(), 0x4E00 + np.arange(4 * num_rows))
    assert (np.diff(train[:, 0].astype(int)) > 0).all()


def test_what_is_held_out_comes_from_all_over_the_text(tmp_path: Path) -> None:
    recipe = Recipe(tokens=10**6, seq_len=3, batch_tokens=3)
    _, held_out = _rows(tmp_path, 6400, recipe)
    places = (held_out[:, 0].astype(int) - 0x4E00) / 6400
    counts = np.histogram(places, 16, (0, 1))[0]
    np.testing.assert_array_equal(counts, 5)


def test_only_as_much_is_read_as_the_run_needs(tmp_path: Path) -> None:
    recipe = Recipe(tokens=30, seq_len=3, batch_tokens=6)
    train, held_out = _rows(tmp_path, 4000, recipe)
    assert (len(train), len(held_out)) == (10, 1)


def test_a_text_with_one_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PowerInferError, match="the text has one row of 3 tokens; at least two"):
        _rows(tmp_path, 7, Recipe(tokens=30, seq_len=3, batch_tokens=3))


def test_the_tokenizer_is_that_of_the_checkpoint(tmp_path: Path) -> None:
    checkpoint, _ = write_sample(tmp_path, LLAMA)
    tokenizer = load_tokenizer(checkpoint)
    assert len(tokenizer.encode("the cat")) < len("the cat")
    (checkpoint / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match="its tokenizer cannot be loaded"):
        load_tokenizer(checkpoint)
