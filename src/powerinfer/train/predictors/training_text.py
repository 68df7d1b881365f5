"""The text that predictors are trained on: windows of token ids, in a file."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from powerinfer._replacing import replacing
from powerinfer.errors import PowerInferError, PromptError
from powerinfer.values import IntArray

__all__ = ["LEAST_TOKENS", "TrainingText", "open_text", "store_text"]

LEAST_TOKENS = 4096
"""Of a text to train on."""

# The last of so many windows is held out.
_HELD_OUT = 10


@dataclass(frozen=True, slots=True, eq=False)
class TrainingText:
    """Windows of text; the last part of them is held out.

    Attributes:
        windows: i32[num_windows, window], a memory map.
    """

    windows: IntArray

    @property
    def num_tokens(self) -> int:
        """In all windows."""
        return int(self.windows.size)

    @property
    def window(self) -> int:
        """Tokens of one."""
        return int(self.windows.shape[1])

    @property
    def num_train_windows(self) -> int:
        """Windows to train on; those after them are held out."""
        return len(self.windows) - max(1, len(self.windows) // _HELD_OUT)

    @property
    def num_train(self) -> int:
        """Tokens to train on."""
        return self.num_train_windows * self.window

    @property
    def held_out(self) -> IntArray:
        """The windows that are not trained on."""
        return self.windows[self.num_train_windows :]


def store_text(
    path: Path,
    windows: Iterable[IntArray],
    window: int,
    num_tokens: int,
    progress: Callable[[int, int], None],
) -> None:
    """Write windows of token ids to a file.

    Args:
        path: of the file; made whole or not at all.
        windows: i32[window] each.
        window: tokens of one.
        num_tokens: most to take, rounded down to whole windows; the text may have fewer.
        progress: called with (tokens so far, most of them).

    Raises:
        PromptError: the text is too short.
        PowerInferError: the text cannot be read, or the file not be written.
    """
    done = 0
    with replacing(path, error=PowerInferError) as file:
        for ids in windows:
            if done + window > num_tokens:
                break
            file.write(ids.astype("<i4").tobytes())
            done += window
            progress(done, num_tokens)
        if done < LEAST_TOKENS:
            raise PromptError(
                f"the text has {done} tokens in whole windows of {window}; training predictors "
                f"needs at least {LEAST_TOKENS}, and good ones some hundred thousand"
            )


def open_text(path: Path, window: int) -> TrainingText:
    """Map what `store_text` wrote.

    Raises:
        PowerInferError: it cannot be read.
    """
    try:
        ids = np.memmap(path, "<i4", "r")
    except (OSError, ValueError) as error:
        raise PowerInferError(f"{path}: cannot be read: {error}") from None
    return TrainingText(ids.reshape(-1, window))
