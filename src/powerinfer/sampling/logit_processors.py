"""Changes of logits before tokens are filtered: bias, bans, penalties, functions, a form."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from powerinfer.errors import PromptError
from powerinfer.sampling.sampling_params import LogitsProcessor, SamplingParams
from powerinfer.values import FloatArray

if TYPE_CHECKING:
    from powerinfer.sampling.grammar.constraint import Constraint

__all__ = ["LogitChanges", "check_biased_ids"]


class LogitChanges:
    """Changes that sampling parameters ask for, in llama.cpp's order, then processors and form.

    Attributes:
        is_empty: there is nothing to change.
    """

    def __init__(
        self,
        params: SamplingParams,
        banned_ids: Collection[int] = (),
        form: "Constraint | None" = None,
    ) -> None:
        """Prepare; `banned_ids` are never chosen, whatever a processor returns."""
        self._form = form
        bias = params.logit_bias or {}
        self._biased = np.array(list(bias), dtype=np.intp)
        self._bias = np.array(list(bias.values()), dtype=np.float32)
        self._banned = np.array(sorted(banned_ids), dtype=np.intp)
        self._processors = params.logits_processors
        self._params = params
        self._has_penalties = params.repeat_last_n > 0 and (
            params.repeat_penalty != 1
            or params.presence_penalty != 0
            or params.frequency_penalty != 0
        )
        self._changes_numbers = bool(bias or banned_ids or self._has_penalties or self._processors)
        self.is_empty = form is None and not self._changes_numbers

    def apply(self, logits: FloatArray, token_ids: Sequence[int]) -> FloatArray:
        """Return changed logits, or the same array if there is nothing to change.

        Args:
            logits: f32[vocab_size], finite; not changed.
            token_ids: tokens so far; the penalties see the last `repeat_last_n`.

        Raises:
            PromptError: a processor returned something unusable, or no token is left to choose.
        """
        changed = self._apply_named(logits, token_ids)
        if self._form is None:
            return changed
        changed = self._form.mask(changed)
        if np.isneginf(changed.max()):
            raise PromptError(
                "no token is left to choose: every token that the form allows is banned",
                remedy="ban fewer with {logit_bias}, {logits_processors} or {ignore_eos}",
            )
        return changed

    def _apply_named(self, logits: FloatArray, token_ids: Sequence[int]) -> FloatArray:
        """Apply all changes but the form."""
        if not self._changes_numbers:
            return logits
        logits = logits.copy()
        logits[self._biased] += self._bias
        logits[self._banned] = -np.inf
        if self._has_penalties:
            _penalise(logits, token_ids[-self._params.repeat_last_n :], self._params)
        for processor in self._processors:
            logits = _processed(logits, token_ids, processor)
        if self._processors:
            logits[self._banned] = -np.inf
        # Without processors, only tokens named by id can be banned.
        num_named = len(self._biased) + len(self._banned)
        if (self._processors or num_named >= len(logits)) and np.isneginf(logits.max()):
            raise PromptError(
                "no token is left to choose: every id of the vocabulary is banned",
                remedy="ban fewer with {logit_bias}, {logits_processors} or {ignore_eos}",
            )
        return logits


def check_biased_ids(params: SamplingParams, vocab_size: int) -> None:
    """Raise PromptError if the vocabulary lacks a token of `logit_bias`."""
    highest = max(params.logit_bias or (), default=0)
    if highest >= vocab_size:
        raise PromptError(
            f"logit_bias names token {highest}; token ids must be from 0 to {vocab_size - 1}"
        )


def _penalise(logits: FloatArray, recent_ids: Sequence[int], params: SamplingParams) -> None:
    """Change the logits of recent tokens in place, by the formulas of llama.cpp."""
    ids, counts = np.unique(np.array(recent_ids, dtype=np.intp), return_counts=True)
    values = logits[ids]
    penalty = np.float32(params.repeat_penalty)
    values = np.where(values > 0, values / penalty, values * penalty)
    values -= counts.astype(np.float32) * np.float32(params.frequency_penalty)
    logits[ids] = values - np.float32(params.presence_penalty)


def _processed(
    logits: FloatArray, token_ids: Sequence[int], processor: LogitsProcessor
) -> FloatArray:
    """Call a caller's function and check its result."""
    shape = logits.shape
    # Copies, as it may keep and change its arguments and its result.
    result: object = processor(list(token_ids), logits.copy())
    problem = _problem(result, shape)
    if problem or not isinstance(result, np.ndarray):
        raise PromptError(f"the logits processor {_name(processor)} returned {problem}")
    checked: npt.NDArray[np.float32] = result.copy()
    return checked


def _problem(result: object, shape: tuple[int, ...]) -> str:
    """Describe what is wrong with a processor's result; empty if nothing is."""
    wanted = f"float32[{shape[0]}]"
    if not isinstance(result, np.ndarray):
        return f"{type(result).__name__} instead of an array {wanted}"
    if result.dtype != np.float32 or result.shape != shape:
        sizes = ", ".join(map(str, result.shape))
        return f"{result.dtype}[{sizes}] instead of {wanted}"
    highest = result.max()
    if np.isnan(highest) or np.isposinf(highest):
        return "NaN or infinity; of these only minus infinity is allowed, to ban a token"
    if np.isneginf(highest):
        return "minus infinity for every token, so that none is left to choose"
    return ""


def _name(processor: object) -> str:
    """Name of a function in messages."""
    return str(getattr(processor, "__qualname__", None) or type(processor).__qualname__)
