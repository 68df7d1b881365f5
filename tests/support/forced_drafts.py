"""Drafts that a test chooses, instead of the engine's own: right ones, wrong ones, and mixtures."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from powerinfer.engine.drafts.controller import DraftController
from powerinfer.engine.engine import Engine
from powerinfer.engine.text import RunningText
from scheduling_cases import WholeText

__all__ = ["MANNERS", "Answers", "ask_draft_model", "forbid_drafts", "force_drafts"]

MANNERS = ("right", "wrong", "half", "random")
# As many rows of tokens computed again as a step of an engine could have.
_MOST_ROWS = 12

Answers = Mapping[int, Sequence[WholeText]]
"""The texts of requests, by `id` of the request."""


def forbid_drafts(engine: Engine) -> None:
    """Let an engine make no drafts."""
    engine._drafts._is_possible = False


def force_drafts(
    engine: Engine,
    answers: Answers,
    manner: str,
    patch: pytest.MonkeyPatch | None = None,
    seed: int = 0,
) -> None:
    """Let an engine draft at every step, from the known answers and from random tokens.

    Args:
        manner: one of `MANNERS`; `half`: the first ones are right.
        patch: undoes it at the end of a test; needed for engines that outlive one.
    """
    random = np.random.default_rng(seed)
    vocab_size = engine._loaded.model.config.vocab_size

    def draft(text: RunningText, most: int) -> list[int]:
        count = int(random.integers(0, most + 1))
        whole = answers[id(text.handle.request)][text.index].token_ids
        right = whole[text.num_generated : text.num_generated + count]
        others = random.integers(0, vocab_size, count).tolist()
        if manner == "wrong":
            return [(token_id + 1) % vocab_size for token_id in right]
        if manner == "half":
            half = (len(right) + 1) // 2
            return [*right[:half], *others[half:]]
        if manner == "random":
            is_right = random.random(len(right)) < 0.7
            return [a if keep else b for a, b, keep in zip(right, others, is_right, strict=False)]
        return [*right, *others[len(right) :]]

    def choose(
        texts: Sequence[RunningText], num_rows: Sequence[int], rooms: Sequence[int]
    ) -> list[list[int]]:
        return [
            draft(text, min(7, room)) if room > 0 and rows < _MOST_ROWS else []
            for text, rows, room in zip(texts, num_rows, rooms, strict=True)
        ]

    drafts: DraftController = engine._drafts
    drafts._is_possible = True
    if patch is None:
        drafts.choose = choose  # type: ignore[method-assign]
    else:
        patch.setattr(drafts, "choose", choose)


def ask_draft_model(engine: Engine) -> None:
    """Let an engine ask its draft model wherever it could, as if its time were nothing."""
    drafts = engine._drafts
    assert drafts._model is not None
    for costs, per_row in ((drafts._rows.costs, 0.01), (drafts._model._model.costs, 1e-9)):
        for _ in range(3):
            for number in range(1, 9):
                costs.record(number, per_row * number + (per_row > 1e-3))
        costs.record = lambda *_: None  # type: ignore[method-assign]
    # Reading a text counts as well.
    drafts._model._model.seconds_to_read = lambda *_: 0.0  # type: ignore[method-assign]
