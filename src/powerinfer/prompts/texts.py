"""Texts to be scored or embedded, tokenized and checked one by one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TypeAlias, cast

from powerinfer.errors import PromptError
from powerinfer.loading.loader import LoadedModel
from powerinfer.prompts.long_prompts import too_long
from powerinfer.prompts.prompts import Prompt, bos_alone, is_text, one_or_several, text_or_ids

__all__ = ["ContextAndContinuation", "Scorable", "read_scorables", "read_texts"]

Scorable: TypeAlias = Prompt | tuple[Prompt, Prompt]
"""A text, or a pair of a context and its continuation, both text (or bytes) or both ids."""


@dataclass(frozen=True, slots=True, order=True)
class ContextAndContinuation:
    """Token ids in two parts that are not empty; the second is scored."""

    context: tuple[int, ...]
    continuation: tuple[int, ...]


def read_texts(loaded: LoadedModel, texts: Prompt | Iterable[Prompt]) -> list[list[int]]:
    """Token ids of each text, with BOS as the vocabulary asks; none is empty.

    Raises:
        PromptError: one is empty, BOS alone, neither text nor ids, has invalid ids or is longer
            than the context; says which.
    """
    listed = one_or_several(texts)
    read = []
    for number, text in enumerate(listed, 1):
        name = _name(number, listed)
        ids = _token_ids(loaded, text, name)
        if not ids or (is_text(text) and not text):
            raise PromptError(f"{name} is empty")
        if ids == bos_alone(loaded.tokenizer):
            raise PromptError(f"{name} is BOS alone, without any text")
        read.append(ids)
    return read


def read_scorables(
    loaded: LoadedModel, texts: Scorable | Iterable[Scorable]
) -> list[ContextAndContinuation]:
    """Context and scored continuation of each text.

    The last token is never computed, so there may be one more than the context holds.

    Raises:
        PromptError: as for `read_texts`, or nothing of a text can be scored.
    """
    listed = one_or_several(texts)
    longest = loaded.model.context_length
    read = []
    for number, text in enumerate(listed, 1):
        name = _name(number, listed)
        item = _pair(loaded, text, name) if _is_pair(text) else _alone(loaded, text, name)
        length = len(item.context) + len(item.continuation)
        if length > longest + 1:
            raise too_long(str(length), longest, name)
        read.append(item)
    return read


def _name(number: int, texts: Sequence[object]) -> str:
    return "the text" if len(texts) == 1 else f"text {number} of {len(texts)}"


def _is_pair(text: object) -> bool:
    """True for a tuple of two, unless these are token ids."""
    return (
        isinstance(text, tuple)
        and len(text) == 2
        and not any(isinstance(item, Integral) for item in text)
    )


def _token_ids(
    loaded: LoadedModel, text: object, name: str, *, num_uncomputed: int = 0
) -> list[int]:
    """Token ids of one text or list, perhaps empty; errors name the text."""
    if is_text(text):
        return text_or_ids(loaded, text, num_uncomputed=num_uncomputed, name=name)
    try:
        return text_or_ids(loaded, text, num_uncomputed=num_uncomputed, name="it")
    except PromptError as error:
        raise PromptError(f"{name}: {error.message}", remedy=error.remedy) from None


def _alone(loaded: LoadedModel, text: object, name: str) -> ContextAndContinuation:
    """Score everything after the first token, which is BOS if there is one."""
    ids = _token_ids(loaded, text, name, num_uncomputed=1)
    if len(ids) < 2:
        raise PromptError(
            f"{name} has {len(ids)} tokens, BOS included: a token is scored given those before it, "
            "so two are needed"
        )
    return ContextAndContinuation(tuple(ids[:1]), tuple(ids[1:]))


def _pair(loaded: LoadedModel, pair: object, name: str) -> ContextAndContinuation:
    context, continuation = cast("tuple[object, object]", pair)
    if is_text(context) and is_text(continuation):
        ids, border = _joined(loaded, _decoded(context), _decoded(continuation), name)
    elif is_text(context) or is_text(continuation):
        raise PromptError(f"{name}: context and continuation must be two texts or two lists of ids")
    else:
        front, rest = (
            _token_ids(loaded, ids, name, num_uncomputed=1) for ids in (context, continuation)
        )
        ids, border = front + rest, len(front)
    if border == len(ids):
        raise PromptError(f"{name} has an empty continuation")
    if border == 0:
        raise PromptError(
            f"{name}: no token precedes the continuation; give a context, as the vocabulary has "
            "no BOS"
        )
    return ContextAndContinuation(tuple(ids[:border]), tuple(ids[border:]))


def _joined(
    loaded: LoadedModel, context: str, continuation: str, name: str
) -> tuple[list[int], int]:
    """Token ids of both texts as one, and the index at which the continuation begins.

    Vocabularies put spaces in front of words, so spaces at the end of the context go with the
    continuation. A token across the border belongs to the continuation.
    """
    front = _token_ids(loaded, context.rstrip(), name, num_uncomputed=1)
    if not continuation:
        return front, len(front)
    ids = _token_ids(loaded, context + continuation, name, num_uncomputed=1)
    shared = 0
    while shared < min(len(front), len(ids)) and front[shared] == ids[shared]:
        shared += 1
    return ids, shared


def _decoded(text: str | bytes | bytearray) -> str:
    """Bytes as `Tokenizer.encode` reads them."""
    return text if isinstance(text, str) else bytes(text).decode("utf-8", "surrogateescape")
