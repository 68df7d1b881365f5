"""Tokens of a sequence and their marks: one for each, also after an interrupt."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import SupportsIndex

import numpy as np
import pytest

from powerinfer import PromptError
from powerinfer.gguf import open_gguf
from powerinfer.loading.step import TokenSequence
from powerinfer.models import Model, load_model
from powerinfer.ops.backend import as_backend
from powerinfer.ops.cpu.ops import NativeOps
from tiny_models import TINY_MODELS, write_model

MARKS = [True, False, True, False, False]
TOKENS = [5, 6, 7, 8, 9]


@pytest.fixture
def model(tmp_path: Path) -> Model:
    file = open_gguf(write_model(tmp_path / "tiny.gguf", TINY_MODELS["llama"]))
    return load_model(file, as_backend(NativeOps(1, "portable")))


def new_sequence(model: Model) -> TokenSequence:
    return TokenSequence(model, model.new_cache(), batch_size=8)


class InterruptedBefore(list[int]):
    """Tokens; Ctrl-C comes just before some are added or removed."""

    def extend(self, _values: Iterable[int]) -> None:
        raise KeyboardInterrupt

    def __delitem__(self, _index: SupportsIndex | slice) -> None:
        raise KeyboardInterrupt


class InterruptedAfter(list[int]):
    """Tokens; Ctrl-C comes just after some were added or removed."""

    def extend(self, values: Iterable[int]) -> None:
        super().extend(values)
        raise KeyboardInterrupt

    def __delitem__(self, index: SupportsIndex | slice) -> None:
        super().__delitem__(index)
        raise KeyboardInterrupt


@pytest.mark.parametrize("count", [0, 2, 4])
def test_marks_are_one_per_token(model: Model, count: int) -> None:
    sequence = new_sequence(model)
    with pytest.raises(PromptError, match=f"is_prompt has {count} entries, there are 3 tokens"):
        sequence.extend([1, 2, 3], is_prompt=[True] * count)
    assert sequence.token_ids == []


@pytest.mark.parametrize(
    "interrupted",
    [lambda tokens: tokens.extend([1, 2]), lambda tokens: tokens.truncate(2)],
    ids=["extend", "truncate"],
)
@pytest.mark.parametrize("tokens", [InterruptedBefore, InterruptedAfter])
def test_an_interrupt_leaves_marks_with_their_tokens(
    model: Model,
    interrupted: Callable[[TokenSequence], object],
    tokens: Callable[[list[int]], list[int]],
) -> None:
    """What follows it is computed as it is marked."""
    sequence, fresh = new_sequence(model), new_sequence(model)
    sequence.extend(TOKENS, is_prompt=MARKS)
    sequence.token_ids = tokens(TOKENS)
    with pytest.raises(KeyboardInterrupt):
        interrupted(sequence)
    held = sequence.token_ids = list(sequence.token_ids)
    # Tokens 1 and 2 come as prompt.
    text, marks = [*held, 3, 4], [*[*MARKS, True, True][: len(held)], False, True]
    assert (sequence.token_ids, sequence.is_prompt) == (text[:-2], marks[:-2])
    sequence.append(3)
    fresh.extend(text[:-1], is_prompt=marks[:-1])
    assert (sequence.token_ids, sequence.is_prompt) == (text[:-1], marks[:-1])
    np.testing.assert_array_equal(sequence.extend([4]), fresh.extend([4]))
