"""The text of a run as rows of token ids in a file, made once with the checkpoint's tokenizer."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from powerinfer.errors import CheckpointError, PowerInferError
from powerinfer.train.checkpoint import first_line
from powerinfer.train.sparsify.model import quiet_transformers
from powerinfer.train.sparsify.recipe import Recipe
from powerinfer.train.stored_windows import StoredWindows, open_windows, store_windows
from powerinfer.train.token_windows import TokenWindows
from powerinfer.values import IntArray

__all__ = ["CheckpointTokenizer", "load_tokenizer", "open_text", "store_text"]

# One row in 20 is held out, up to a number of tokens: the ends of some equal parts of the text,
# because texts are seldom mixed, and next to each other rows belong to one document.
_HELD_OUT = 20
_MOST_HELD_OUT = 1 << 15
_PARTS = 16


@dataclass(frozen=True)
class CheckpointTokenizer:
    """The tokenizer of a checkpoint.

    Attributes:
        encode: text to token ids, none added.
    """

    encode: Callable[[str], Sequence[int]]
    bos_id: int | None


def load_tokenizer(folder: Path) -> CheckpointTokenizer:
    """Load the tokenizer of a checkpoint; code in its folder is never run."""
    transformers = quiet_transformers()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        begin = tokenizer("a").input_ids[:1]
        encode = tokenizer.encode
        encode("a", add_special_tokens=False)
    except Exception as error:  # noqa: BLE001 - a damaged file may raise anything
        raise CheckpointError(
            f"{folder}: its tokenizer cannot be loaded: {first_line(error):.200}"
        ) from None
    bos_id = tokenizer.bos_token_id
    return CheckpointTokenizer(
        encode=lambda text: encode(text, add_special_tokens=False),
        bos_id=bos_id if bos_id is not None and begin == [bos_id] else None,
    )


def store_text(
    path: Path,
    texts: Sequence[Path],
    tokenizer: CheckpointTokenizer,
    recipe: Recipe,
    progress: Callable[[int, int], None],
    *,
    more_rows: int = 0,
) -> None:
    """Write the rows that a run needs: first those to train on, then those held out.

    `more_rows` are added to those of the recipe. A longer text is not read to its end, a shorter
    one is trained on more than once. `progress` is called with (bytes of text done, bytes).
    """
    windows = TokenWindows(texts, tokenizer.encode, recipe.seq_len + 1, tokenizer.bos_id)
    needed = recipe.steps * recipe.rows + more_rows
    needed += -(-needed // (_HELD_OUT - 1))
    in_order = path.with_suffix(".in-order")
    store_windows(
        in_order,
        _two_or_more(islice(windows, needed), recipe),
        lambda _: progress(windows.done_bytes, windows.num_bytes),
    )
    rows = open_windows(in_order, recipe.seq_len + 1, lambda _: 1).all
    is_held_out = _held_out(len(rows), recipe)
    order = np.argsort(is_held_out, kind="stable")
    store_windows(path, (rows[number] for number in order))
    in_order.unlink()


def open_text(path: Path, recipe: Recipe) -> StoredWindows:
    """Map what `store_text` wrote."""
    return open_windows(path, recipe.seq_len + 1, lambda count: _num_held_out(count, recipe))


def _two_or_more(rows: Iterable[IntArray], recipe: Recipe) -> Iterator[IntArray]:
    """The same rows; PowerInferError if there is only one."""
    count = 0
    for count, row in enumerate(rows, 1):  # noqa: B007
        yield row
    if count < 2:
        raise PowerInferError(
            f"the text has one row of {recipe.seq_len} tokens; at least two are needed, one to "
            "train on and one held out",
            remedy="give more text, or a smaller {seq_len}",
        )


def _num_held_out(num_rows: int, recipe: Recipe) -> int:
    return max(1, min(num_rows // _HELD_OUT, _MOST_HELD_OUT // recipe.seq_len))


def _held_out(num_rows: int, recipe: Recipe) -> NDArray[np.bool_]:
    """Which rows are held out."""
    wanted = _num_held_out(num_rows, recipe)
    parts = min(_PARTS, wanted)
    found = np.zeros(num_rows, np.bool_)
    for part in range(parts):
        end = num_rows * (part + 1) // parts
        found[end - (wanted * (part + 1) // parts - wanted * part // parts) : end] = True
    return found
