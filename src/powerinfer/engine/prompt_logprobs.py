"""Log probabilities of the tokens of a prompt, from logits that come chunk by chunk."""

from powerinfer.engine.request import Request
from powerinfer.sampling.logprobs import TokenLogprob, token_logprob
from powerinfer.sampling.sampler import check_finite
from powerinfer.tokenizer import Tokenizer
from powerinfer.values import FloatArray

__all__ = ["PROMPT_LOGPROB_ROWS", "PromptLogprobs"]

PROMPT_LOGPROB_ROWS = 64
"""Tokens of a chunk whose logits are wanted: at 152k entries these take 40 MB."""


class PromptLogprobs:
    """Collects them; each but the first token of a prompt has one."""

    def __init__(self, request: Request, tokenizer: Tokenizer) -> None:
        """Start with none.

        Args:
            request: whose prompt it is.
            tokenizer: of the model.
        """
        self._token_ids = list(request.prompt_ids)
        self._num_top = request.prompt_logprobs or 0
        self._piece = tokenizer.piece
        self._found: list[TokenLogprob] = []

    def add(self, start: int, logits: FloatArray) -> tuple[TokenLogprob, ...]:
        """Take the logits of a chunk; returns what there is so far.

        Args:
            start: position of its first token.
            logits: f32[num_tokens, vocab_size] behind each of its tokens.

        Raises:
            NumericsError: one is NaN or infinite.
        """
        followers = self._token_ids[start + 1 : start + 1 + len(logits)]
        rows = logits[: len(followers)]
        for row in rows:
            check_finite(row)
        self._found[start:] = [
            token_logprob(row, token_id, self._num_top, self._piece)
            for row, token_id in zip(rows, followers, strict=True)
        ]
        return tuple(self._found)
