"""`/tokenize` and `/detokenize`."""

from powerinfer.errors import PromptError
from powerinfer.prompts.prompts import read_ids
from powerinfer.serve.context import ServerContext
from powerinfer.serve.errors import bad_request
from powerinfer.serve.fields import Fields
from powerinfer.tokenizer import Tokenizer
from powerinfer.values import JSONObject

__all__ = ["detokenize", "tokenize"]


def tokenize(body: JSONObject, context: ServerContext) -> dict[str, object]:
    """Turn a text into token ids, with their pieces if requested."""
    fields, tokenizer = Fields(body), context.tokenizer
    token_ids = tokenizer.encode(
        fields.required_text("content"),
        add_bos=fields.switch("add_special") and tokenizer.add_bos,
        parse_special=fields.switch("parse_special", default=True),
    )
    if not fields.switch("with_pieces"):
        return {"tokens": token_ids}
    return {"tokens": [{"id": each, "piece": _piece(tokenizer, each)} for each in token_ids]}


def detokenize(body: JSONObject, context: ServerContext) -> dict[str, str]:
    """Turn token ids into text, including names of special tokens."""
    fields, tokenizer = Fields(body), context.tokenizer
    try:
        token_ids = read_ids(fields.items("tokens") or [], tokenizer.vocab_size)
    except PromptError as error:
        raise bad_request(f"tokens: {error}", "tokens", "invalid_value") from None
    pieces = b"".join(tokenizer.piece_bytes(each) for each in token_ids)
    return {"content": pieces.decode("utf-8", "replace")}


def _piece(tokenizer: Tokenizer, token_id: int) -> str | list[int]:
    """Text of a token, or its bytes if they are no complete characters."""
    piece = tokenizer.piece_bytes(token_id)
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return list(piece)
