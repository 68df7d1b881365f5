"""Log probabilities in the forms of OpenAI's two APIs."""

from collections.abc import Sequence

from powerinfer.sampling.logprobs import TokenLogprob
from powerinfer.serve.openai.objects import ChatLogprobs, ChatToken, TokenObject
from powerinfer.tokenizer import Tokenizer

__all__ = ["chat_logprobs", "token_text"]


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
