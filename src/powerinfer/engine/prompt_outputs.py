"""Outputs for positions of a prompt, collected from rows that come in chunks."""

from typing import TypeAlias

import numpy as np

from powerinfer.engine.request import PromptRows, RequestHandle
from powerinfer.errors import NumericsError
from powerinfer.sampling.logprobs import TokenLogprob, token_logprob
from powerinfer.sampling.sampler import check_finite
from powerinfer.tokenizer import Tokenizer
from powerinfer.values import FloatArray

__all__ = ["PromptOutputs", "prompt_outputs"]


class _Rows:
    """Logits or hidden states as they are.

    Attributes:
        first: first position whose row is wanted.
    """

    def __init__(self, handle: RequestHandle, kind: PromptRows, first: int) -> None:
        self.first = first
        self._handle = handle
        self._kind = kind
        self._rows: FloatArray | None = None

    def add(self, start: int, rows: FloatArray) -> None:
        """Add f32[num_positions, columns] from position `start` on, in place of any before.

        Raises:
            NumericsError: a number is NaN or infinite.
        """
        if self._kind is PromptRows.LOGITS:
            check_finite(rows)
        elif not np.isfinite(rows).all():
            raise NumericsError(f"{self._kind} are NaN or infinite")
        if self._rows is None:
            count = self._handle.num_prompt_tokens - self.first
            self._rows = np.empty((count, rows.shape[1]), np.float32)
        at = start - self.first
        self._rows[at : at + len(rows)] = rows

    def hand_over(self) -> None:
        """Give the handle all outputs."""
        self._handle.prompt_rows = self._rows


class _Logprobs:
    """Log probabilities of the tokens that follow the positions; members as those of `_Rows`."""

    def __init__(
        self, handle: RequestHandle, num_top: int, first: int, tokenizer: Tokenizer
    ) -> None:
        request = handle.request
        scored = request.prompt_ids[1:] if request.scored_ids is None else request.scored_ids
        self.first = first
        self._handle = handle
        self._token_ids = list(scored)
        self._num_top = num_top
        self._piece = tokenizer.piece
        self._found: list[TokenLogprob] = []

    def add(self, start: int, rows: FloatArray) -> None:
        at = start - self.first
        followers = self._token_ids[at : at + len(rows)]
        rows = rows[: len(followers)]
        if len(rows):
            check_finite(rows)
        self._found[at:] = [
            token_logprob(row, token_id, self._num_top, self._piece)
            for row, token_id in zip(rows, followers, strict=True)
        ]

    def hand_over(self) -> None:
        self._handle.prompt_logprobs = tuple(self._found)


PromptOutputs: TypeAlias = _Rows | _Logprobs
"""Collector of the outputs of one prompt."""


def prompt_outputs(handle: RequestHandle, tokenizer: Tokenizer) -> PromptOutputs | None:
    """Make the collector of what a request asks for; None if that is nothing."""
    request, first = handle.request, handle.request.first_wanted or 0
    if request.prompt_rows is not None:
        return _Rows(handle, request.prompt_rows, first)
    if request.prompt_logprobs is not None:
        return _Logprobs(handle, request.prompt_logprobs, first, tokenizer)
    return None
