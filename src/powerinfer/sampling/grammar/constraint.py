"""Constraint of one text to its form: the tokens that may come next."""

from functools import cache
from typing import cast

import numpy as np
import numpy.typing as npt

from powerinfer.errors import PromptError
from powerinfer.sampling.grammar.compiled import new_matcher, why_not
from powerinfer.sampling.grammar.vocabulary import FirstSpace, grammar_vocabulary
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.tokenizer.tokenizer import Tokenizer
from powerinfer.values import FloatArray

__all__ = ["Constraint"]

_Bytes = npt.NDArray[np.uint8]
_State = tuple[int, FirstSpace | None, _Bytes | None, bool]


class Constraint:
    """Form of one text and the position in it; applies to the text only, never to the prompt."""

    def __init__(
        self, tokenizer: Tokenizer, params: SamplingParams, *, begins_text: bool = False
    ) -> None:
        """Compile the form, which may take a second.

        Args:
            params: sampling parameters with a form.
            begins_text: only special tokens precede the text, so that a vocabulary may drop its
                first space.

        Raises:
            PromptError: there is no form, or it cannot be enforced.
        """
        vocabulary = grammar_vocabulary(tokenizer)
        matcher = new_matcher(vocabulary, params)
        if matcher is None:
            raise PromptError("neither a schema nor an expression nor a grammar is given")
        self._matcher = matcher
        self._size = vocabulary.size
        self._end_ids = vocabulary.end_ids
        self._first_space = vocabulary.first_space if begins_text else None
        # llguidance writes words of four bytes.
        self._num_words = -(-vocabulary.tree.vocab_size // 32)
        self._bits: _Bytes | None = None
        self._is_complete = False
        self._consumed: list[int] = []
        self._look_ahead()

    @property
    def state(self) -> object:
        """Position in the form, for going back to it."""
        return len(self._consumed), self._first_space, self._bits, self._is_complete

    @state.setter
    def state(self, kept: object) -> None:
        count, self._first_space, self._bits, self._is_complete = cast("_State", kept)
        if later := len(self._consumed) - count:
            self._matcher.rollback(later)
            del self._consumed[count:]

    @property
    def is_complete(self) -> bool:
        """True if only the end can follow, so that the text ends whatever the model wants."""
        return self._is_complete

    def mask(self, logits: FloatArray) -> FloatArray:
        """Ban the tokens that cannot come next.

        Args:
            logits: f32[vocab_size]; not changed.

        Returns:
            A copy with minus infinity for banned tokens; end tokens are allowed if the form allows
            the text to end.

        Raises:
            PromptError: the form has become too complex, or no token can go on.
        """
        summands = np.take(_summands(), self._allowed(), axis=0).reshape(-1)
        if len(summands) < len(logits):
            # A model may have more rows than its vocabulary has tokens.
            padding = np.full(len(logits) - len(summands), -np.inf, np.float32)
            summands = np.concatenate([summands, padding])
        masked: FloatArray = summands[: len(logits)]
        masked += logits
        masked[self._size :] = -np.inf
        return masked

    def accept(self, token_id: int) -> None:
        """Advance by a token that `mask` allowed.

        Raises:
            PromptError: the form has become too complex, or does not allow the token.
        """
        if token_id in self._end_ids:
            self._is_complete = True
            return
        consumed: int | None = token_id
        if self._first_space is not None:
            consumed = self._first_space.stands_for(token_id)
            self._first_space = None
        self._bits = None
        if consumed is not None:
            # Consume and note in one call, as Ctrl-C comes between two instructions.
            self._consumed.extend(filter(self._matcher.consume_token, (consumed,)))
            if self._matcher.is_error():
                raise self._error()
        self._look_ahead()

    def _look_ahead(self) -> None:
        """Determine whether something can still follow."""
        if self._matcher.is_stopped():
            if self._matcher.is_error():
                raise self._error()
            self._is_complete = True
        elif self._matcher.is_accepting():
            bits = self._allowed().copy()
            for token_id in self._end_ids or (self._size,):
                bits[token_id >> 3] &= ~(1 << (token_id & 7)) & 0xFF
            self._is_complete = not bits.any()

    def _allowed(self) -> _Bytes:
        """Return one bit per token, the lowest bit of a byte first."""
        if self._bits is None:
            words = np.empty(self._num_words, np.uint32)
            self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
            if self._matcher.is_error():
                raise self._error()
            self._bits = words.view(np.uint8)
            if self._first_space is not None:
                self._bits = self._first_space.allowed(self._bits)
        return self._bits

    def _error(self) -> PromptError:
        return PromptError(f"the text cannot follow its form any further: {why_not(self._matcher)}")


@cache
def _summands() -> FloatArray:
    """Return f32[256, 8]: for each byte, the 0 or minus infinity that its bits add to logits."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return np.where(bits, np.float32(0), np.float32(-np.inf)).astype(np.float32)
