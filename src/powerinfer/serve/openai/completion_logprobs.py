"""Log probabilities of completions: lists of tokens, values and offsets in the text."""

from collections.abc import Sequence

from powerinfer.sampling.logprobs import TokenLogprob
from powerinfer.serve.openai.logprobs import token_text
from powerinfer.serve.openai.objects import TextLogprobs
from powerinfer.tokenizer import Tokenizer

__all__ = ["CompletionLogprobs"]


class CompletionLogprobs:
    """Collects the tokens of a text and their offsets.

    A token that completes no character has the offset of the next character.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int], offset: int) -> None:
        """Start without tokens.

        Args:
            prompt_ids: tokens before the first one.
            offset: characters of the text before the first token.
        """
        self._tokenizer = tokenizer
        self._decoder = tokenizer.new_stream(prompt_ids)
        self._offset = offset
        self._ids: list[int] = []
        self._values: list[float | None] = []
        self._tops: list[dict[str, float] | None] = []
        self._offsets: list[int] = []

    def add(self, token_id: int, entry: TokenLogprob | None) -> None:
        """Add a token; `entry` is None for the first token of a text."""
        self._ids.append(token_id)
        self._offsets.append(self._offset)
        self._offset += len(self._decoder.push(token_id))
        self._values.append(None if entry is None else entry.logprob)
        self._tops.append(None if entry is None else self._top(entry))

    def take(self) -> TextLogprobs:
        """Build the object of the API for the tokens since the last call."""
        written: TextLogprobs = {
            "tokens": [token_text(self._tokenizer, each) for each in self._ids],
            "token_ids": self._ids,
            "token_logprobs": self._values,
            "top_logprobs": self._tops,
            "text_offset": self._offsets,
        }
        self._ids, self._values, self._tops, self._offsets = [], [], [], []
        return written

    def __len__(self) -> int:
        """Number of tokens since the last `take`."""
        return len(self._ids)

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        """The likeliest tokens, and the chosen one if it is not among them."""
        pairs = [*entry.top]
        if all(token_id != entry.token_id for token_id, _ in pairs):
            pairs.append((entry.token_id, entry.logprob))
        top: dict[str, float] = {}
        for token_id, logprob in pairs:
            # Of two tokens with the same text, the likelier one counts.
            top.setdefault(token_text(self._tokenizer, token_id), logprob)
        return top
