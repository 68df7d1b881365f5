"""Log probabilities in the forms of OpenAI's two APIs."""

from collections.abc import Sequence

from powerinfer.sampling.logprobs import TokenLogprob
from powerinfer.serve.openai.objects import ChatLogprobs, ChatToken, TextLogprobs, TokenObject
from powerinfer.tokenizer import Tokenizer

__all__ = ["CompletionLogprobs", "chat_logprobs", "token_text"]


def chat_logprobs(tokenizer: Tokenizer, entries: Sequence[TokenLogprob]) -> ChatLogprobs:
    """Build the object of a choice of a chat."""
    content = [
        ChatToken(
            **_token(tokenizer, entry.token_id, entry.logprob),
            top_logprobs=[_token(tokenizer, *each) for each in entry.top],
        )
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """Name a token as completions do: by its text, or by its bytes if it is part of a character."""
    piece = tokenizer.piece_bytes(token_id)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _token(tokenizer: Tokenizer, token_id: int, logprob: float) -> TokenObject:
    piece = tokenizer.piece_bytes(token_id)
    return {
        "id": token_id,
        "token": piece.decode("utf-8", "replace"),
        "logprob": logprob,
        "bytes": list(piece),
    }


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
            # The likelier one counts if two tokens have the same text.
            top.setdefault(token_text(self._tokenizer, token_id), logprob)
        return top
