"""Texts to be scored or embedded, as callers pass them: read, tokenized, checked one by one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TypeAlias, cast

from powerinfer.engine.loader import LoadedModel
from powerinfer.engine.prompts import Prompt, encode_text, read_ids
from powerinfer.errors import PromptError

__all__ = ["ContextAndContinuation", "Scorable", "read_scorables", "read_texts"]

Scorable: TypeAlias = Prompt | tuple[Prompt, Prompt]
"""A text, or a pair of a context and what continues it: both text (or bytes), or both ids."""

_TEXT = str | bytes | bytearray


@dataclass(frozen=True, slots=True, order=True)
class ContextAndContinuation:
    """Token ids of which the second part is scored; neither part is empty."""

    context: tuple[int, ...]
    continuation: tuple[int, ...]


def read_texts(loaded: LoadedModel, texts: Prompt | Iterable[Prompt]) -> list[list[int]]:
    """Token ids of each text, with BOS as the vocabulary asks; none is empty.

    Raises:
        PromptError: one is empty, is no text, has invalid ids or is longer than the context; says
            which.
    """
    listed = _listed(texts)
    longest = loaded.model.context_length
    read = []
    for number, text in enumerate(listed, 1):
        name = _name(number, listed)
        ids = _token_ids(loaded, text, name)
        if not ids or (isinstance(text, _TEXT) and not text):
            raise PromptError(f"{name} is empty")
        if len(ids) > longest:
            raise _too_long(name, len(ids), longest, longest)
        read.append(ids)
    return read


def read_scorables(
    loaded: LoadedModel, texts: Scorable | Iterable[Scorable]
) -> list[ContextAndContinuation]:
    """What is scored of each text, given what.

    The last token is never computed, so there may be one more than the context holds.

    Raises:
        PromptError: as for `read_texts`, or nothing of a text can be scored.
    """
    listed = _listed(texts)
    longest = loaded.model.context_length
    read = []
    for number, text in enumerate(listed, 1):
        name = _name(number, listed)
        item = _pair(loaded, text, name) if _is_pair(text) else _alone(loaded, text, name)
        length = len(item.context) + len(item.continuation)
        if length > longest + 1:
            raise _too_long(name, length, longest + 1, longest)
        read.append(item)
    return read


def _listed(texts: object) -> list[object]:
    """A list of texts, from one or several; a flat list of ids is one text."""
    if isinstance(texts, _TEXT):
        return [texts]
    if not isinstance(texts, Iterable) or getattr(texts, "shape", None) == ():
        raise PromptError(f"texts are wanted, or lists of token ids, got {repr(texts)[:60]}")
    listed: list[object] = list(texts)
    is_one = bool(listed) and all(isinstance(item, Integral) for item in listed)
    return [listed] if is_one else listed


def _name(number: int, texts: Sequence[object]) -> str:
    return "the text" if len(texts) == 1 else f"text {number} of {len(texts)}"


def _is_pair(text: object) -> bool:
    """A tuple of two, unless these are token ids."""
    return (
        isinstance(text, tuple)
        and len(text) == 2
        and not any(isinstance(item, Integral) for item in text)
    )


def _token_ids(loaded: LoadedModel, text: object, name: str) -> list[int]:
    """Token ids of one text or list, which may be empty."""
    try:
        if isinstance(text, _TEXT):
            return encode_text(loaded.tokenizer, text)
        return read_ids(text, loaded.model.config.vocab_size)
    except PromptError as error:
        raise PromptError(f"{name}: {error.message}", remedy=error.remedy) from None


def _alone(loaded: LoadedModel, text: object, name: str) -> ContextAndContinuation:
    """All that has something before it: behind BOS, or behind the first token."""
    ids = _token_ids(loaded, text, name)
    if len(ids) < 2:
        raise PromptError(
            f"{name} has {len(ids)} tokens, BOS included: a token is scored by what stands before "
            "it, so two are needed"
        )
    return ContextAndContinuation(tuple(ids[:1]), tuple(ids[1:]))


def _pair(loaded: LoadedModel, pair: object, name: str) -> ContextAndContinuation:
    context, continuation = cast("tuple[object, object]", pair)
    if isinstance(context, _TEXT) and isinstance(continuation, _TEXT):
        ids, border = _joined(loaded, _as_text(context), _as_text(continuation))
    elif isinstance(context, _TEXT) or isinstance(continuation, _TEXT):
        raise PromptError(f"{name}: context and continuation must be two texts or two lists of ids")
    else:
        front = _token_ids(loaded, context, name)
        ids, border = front + _token_ids(loaded, continuation, name), len(front)
    if border == len(ids):
        raise PromptError(f"{name} has an empty continuation")
    if border == 0:
        raise PromptError(
            f"{name}: no token stands before the continuation, neither of the context nor BOS"
        )
    return ContextAndContinuation(tuple(ids[:border]), tuple(ids[border:]))


def _joined(loaded: LoadedModel, context: str, continuation: str) -> tuple[list[int], int]:
    """Token ids of both texts written as one, and where the continuation begins among them.

    Vocabularies put spaces in front of words, so spaces at the end of the context go with the
    continuation. A token across the border belongs to the continuation.
    """
    tokenizer = loaded.tokenizer
    kept = context.rstrip()
    front = tokenizer.encode(kept, parse_special=True)
    if not continuation:
        return front, len(front)
    ids = tokenizer.encode(context + continuation, parse_special=True)
    shared = 0
    while shared < min(len(front), len(ids)) and front[shared] == ids[shared]:
        shared += 1
    return ids, shared


def _as_text(text: str | bytes | bytearray) -> str:
    """Bytes as `Tokenizer.encode` reads them."""
    return str(text) if isinstance(text, str) else bytes(text).decode("utf-8", "surrogateescape")


def _too_long(name: str, length: int, longest: int, context_length: int) -> PromptError:
    return PromptError(
        f"{name} has {length} tokens, more than the {longest} that fit a context of "
        f"{context_length}",
        remedy="shorten it or take a larger context ({context_length})",
    )
