"""Tokenizing prompts for a context, without wasting time and memory on those that cannot fit."""

from powerinfer.errors import ContextLengthError
from powerinfer.tokenizer import Tokenizer

__all__ = ["encode_prompt", "too_long"]

# Up to this many contexts, all tokens of a prompt are counted for the message.
_COUNTED_CONTEXTS = 4


def encode_prompt(
    tokenizer: Tokenizer,
    text: str | bytes,
    context_length: int,
    *,
    add_bos: bool | None = None,
    num_uncomputed: int = 0,
    name: str = "the prompt",
    parse_special: bool = True,
) -> list[int]:
    """Token ids of a prompt.

    A text that is far too long is refused early, by its length alone or after a small part of it.

    Args:
        tokenizer: tokenizer of the model.
        context_length: largest number of computed tokens.
        add_bos: put BOS in front; None does what the model expects.
        num_uncomputed: tokens at the end that are never computed and need no room.
        name: name of the text in an error.
        parse_special: read names of special tokens as these tokens.

    Raises:
        ContextLengthError: the prompt has more tokens than the context holds.
    """
    longest = context_length + num_uncomputed
    least = tokenizer.least_tokens(text)
    if least > longest:
        raise too_long(f"at least {least}", context_length, name)
    counted = _COUNTED_CONTEXTS * longest
    token_ids = tokenizer.encode(
        text, add_bos=add_bos, parse_special=parse_special, at_most=counted
    )
    if len(token_ids) > counted:
        raise too_long(f"more than {counted}", context_length, name)
    if len(token_ids) > longest:
        raise too_long(str(len(token_ids)), context_length, name)
    return token_ids


def too_long(count: str, context_length: int, name: str = "the prompt") -> ContextLengthError:
    """Create the error for a prompt of `count` tokens, a number or a bound in words."""
    return ContextLengthError(
        f"{name} has {count} tokens, the context holds {context_length}",
        remedy="shorten it or take a larger context ({context_length})",
    )
