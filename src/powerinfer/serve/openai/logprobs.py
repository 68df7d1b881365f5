"""Log probabilities as OpenAI's two APIs write them."""

from collections.abc import Sequence

from powerinfer.sampling.logprobs import TokenLogprob
from powerinfer.serve.openai.objects import ChatLogprobs, ChatToken, TokenObject
from powerinfer.tokenizer import Tokenizer

__all__ = ["chat_logprobs", "token_text"]


def chat_logprobs(tokenizer: Tokenizer, entries: Sequence[TokenLogprob]) -> ChatLogprobs:
    """The object of a choice of a chat."""
    content = [
        ChatToken(
            **_token(tokenizer, entry.token_id, entry.logprob),
            top_logprobs=[_token(tokenizer, *each) for each in entry.top],
        )
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """A token as completions name it: its text, or its bytes where they are a part of one."""
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
