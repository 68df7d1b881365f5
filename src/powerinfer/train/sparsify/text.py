"""The text of a run as rows of token ids in a file, made once with the checkpoint's tokenizer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from powerinfer._extras import how_to_install
from powerinfer._replacing import replacing
from powerinfer.errors import CheckpointError, DeviceError, PowerInferError
from powerinfer.train.sparsify.recipe import Recipe
from powerinfer.train.sparsify.rows import TokenIds
from powerinfer.train.texts import TokenWindows

__all__ = ["CheckpointTokenizer", "TrainingText", "load_tokenizer", "open_text", "store_text"]

# A share of the rows is held out, at most so many tokens: the ends of some equal parts of the text,
# because texts are seldom mixed, and next to each other rows belong to one document.
_HELD_OUT = 20
_MOST_HELD_OUT = 1 << 15
_PARTS = 16


@dataclass(frozen=True)
class CheckpointTokenizer:
    """The tokenizer of a checkpoint.

    Attributes:
        encode: text to token ids, none added.
        bos_id: what begins texts; None for nothing.
        vocab_size: token ids are below it.
    """

    encode: Callable[[str], Sequence[int]]
    bos_id: int | None
    vocab_size: int


@dataclass(frozen=True)
class TrainingText:
    """The rows of a text.

    Attributes:
        train: token ids [num_tokens] to train on, whole rows of seq_len + 1; mapped.
        held_out: rows [num_rows, seq_len + 1] that are not trained on; mapped.
    """

    train: TokenIds
    held_out: TokenIds


def load_tokenizer(folder: Path) -> CheckpointTokenizer:
    """Load the tokenizer of a checkpoint; code in its folder is never run.

    Raises:
        CheckpointError: there is none, or it is damaged.
        DeviceError: transformers is not installed.
    """
    try:
        from transformers import AutoTokenizer
        from transformers.utils import logging
    except ImportError:
        raise DeviceError(
            f"sparsify needs transformers, which is not installed; {how_to_install('train')}"
        ) from None
    logging.set_verbosity_error()
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        begin = tokenizer("a").input_ids[:1]
        encode = tokenizer.encode
        encode("a", add_special_tokens=False)
    except Exception as error:  # noqa: BLE001 - a damaged file may raise anything
        line = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointError(f"{folder}: its tokenizer cannot be loaded: {line:.200}") from None
    bos_id = tokenizer.bos_token_id
    return CheckpointTokenizer(
        encode=lambda text: encode(text, add_special_tokens=False),
        bos_id=bos_id if bos_id is not None and begin == [bos_id] else None,
        vocab_size=len(tokenizer),
    )


def store_text(
    path: Path,
    texts: Sequence[Path],
    tokenizer: CheckpointTokenizer,
    recipe: Recipe,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write the rows that a run needs to a file, u32, which appears whole or not at all.

    Those to train on come first, those held out behind them.

    Args:
        path: of the file.
        texts: see `TokenWindows`.
        tokenizer: of the checkpoint.
        recipe: how long rows are, and how many the run reads; a longer text is not read to its
            end, a shorter one is trained on more than once.
        progress: called with (bytes of text done, bytes).

    Raises:
        PowerInferError: a text cannot be read, all have fewer than two rows, or the file cannot be
            written.
    """
    windows = TokenWindows(texts, tokenizer.encode, recipe.seq_len + 1, tokenizer.bos_id)
    in_order = path.with_suffix(".in-order")
    _store_in_order(in_order, windows, recipe, progress)
    rows = _map(in_order).reshape(-1, recipe.seq_len + 1)
    is_held_out = _held_out(len(rows), recipe)
    with replacing(path, error=PowerInferError) as file:
        for wanted in (False, True):
            for number in np.flatnonzero(is_held_out == wanted):
                file.write(rows[number].tobytes())
    in_order.unlink()


def open_text(path: Path, recipe: Recipe) -> TrainingText:
    """Map what `store_text` wrote.

    Raises:
        PowerInferError: it cannot be read.
    """
    tokens = _map(path)
    rows = tokens.reshape(-1, recipe.seq_len + 1)
    count = len(rows) - int(_held_out(len(rows), recipe).sum())
    return TrainingText(tokens[: count * rows.shape[1]], rows[count:])


def _store_in_order(
    path: Path,
    windows: TokenWindows,
    recipe: Recipe,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Write as many rows as a run needs, in the order of the text."""
    needed = recipe.steps * recipe.rows
    needed += -(-needed // (_HELD_OUT - 1))
    count = 0
    with replacing(path, error=PowerInferError) as file:
        for row in windows:
            file.write(row.astype("<u4").tobytes())
            count += 1
            if progress is not None:
                progress(windows.done_bytes, windows.num_bytes)
            if count == needed:
                break
    if count < 2:
        raise PowerInferError(
            f"the text has one row of {recipe.seq_len} tokens; at least two are needed, one to "
            "train on and one held out",
            remedy="give more text, or a smaller {seq_len}",
        )


def _held_out(num_rows: int, recipe: Recipe) -> NDArray[np.bool_]:
    """Of each row whether it is held out."""
    wanted = max(1, min(num_rows // _HELD_OUT, _MOST_HELD_OUT // recipe.seq_len))
    parts = min(_PARTS, wanted)
    found = np.zeros(num_rows, np.bool_)
    for part in range(parts):
        end = num_rows * (part + 1) // parts
        found[end - (wanted * (part + 1) // parts - wanted * part // parts) : end] = True
    return found


def _map(path: Path) -> TokenIds:
    try:
        tokens: TokenIds = np.memmap(path, "<u4", "r")
    except (OSError, ValueError) as error:
        raise PowerInferError(f"{path}: cannot be read: {error}") from None
    return tokens
