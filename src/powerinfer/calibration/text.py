"""The text for a calibration, cut into windows; the package contains a short one."""

import importlib.resources
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from powerinfer.errors import PromptError
from powerinfer.values import IntArray

__all__ = [
    "BUNDLED_TEXT",
    "WINDOW",
    "CalibrationText",
    "bundled_text",
    "cut_windows",
    "default_tokens",
]

BUNDLED_TEXT = "the text in the package"
"""Name of `bundled_text` in reports."""

WINDOW = 512
"""Tokens of a window, unless the context is shorter; longer ones cost more than they reveal."""

# A few tokens make most of the error, so take many if they cost little.
_MANY_TOKENS = 4096
_FEW_TOKENS = 1024
_SMALL_LAYER = 16 << 20
_SHORTEST_WINDOW = 16


@dataclass(frozen=True, slots=True)
class CalibrationText:
    """A text, by its name in reports, cut into windows i32[num_windows, window], at least two."""

    name: str
    windows: IntArray


def bundled_text() -> str:
    """Read the text that models are calibrated on by default."""
    folder = importlib.resources.files("powerinfer").joinpath("data")
    return folder.joinpath("calibration.txt").read_text(encoding="utf-8")


def default_tokens(hidden_size: int, num_neurons: int) -> int:
    """Number of tokens that a calibration uses by default.

    Layers with many neurons, in all experts, get fewer tokens, or they would take an hour.
    """
    is_small = hidden_size * num_neurons <= _SMALL_LAYER
    return _MANY_TOKENS if is_small else _FEW_TOKENS


def cut_windows(
    name: str,
    token_ids: Sequence[int],
    *,
    num_tokens: int,
    context_length: int,
    bos_id: int | None,
) -> CalibrationText:
    """Cut a tokenized text into an even number of windows that do not overlap.

    They take at most `num_tokens`, and each at most `context_length`. `bos_id` replaces the first
    token of each.

    Raises:
        PromptError: the text has too few tokens.
    """
    available = min(len(token_ids), num_tokens)
    num_windows, window = _division(available, min(WINDOW, context_length))
    if window < _SHORTEST_WINDOW:
        raise PromptError(
            f"calibrating needs at least {2 * _SHORTEST_WINDOW} tokens of text and a context of "
            f"{_SHORTEST_WINDOW}; got {len(token_ids)} tokens of {name}, of which {num_tokens} "
            f"may be used, and a context of {context_length}"
        )
    windows = np.array(token_ids[: num_windows * window], np.int32).reshape(num_windows, window)
    if bos_id is not None:
        windows[:, 0] = bos_id
    return CalibrationText(name, windows)


def _division(num_tokens: int, longest: int) -> tuple[int, int]:
    """An even number of windows that together take nearly all tokens, and their length."""
    num_pairs = max(1, -(-num_tokens // (2 * max(1, longest))))
    window = num_tokens // (2 * num_pairs)
    if window < _SHORTEST_WINDOW <= longest:
        # Equal parts would be too short; take whole windows and leave out the rest.
        num_pairs = max(1, num_tokens // (2 * longest))
        window = min(longest, num_tokens // (2 * num_pairs))
    return 2 * num_pairs, window
