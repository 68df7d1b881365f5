"""Prompts and parameters from callers, converted and checked before anything is computed."""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import TypeAlias, TypeGuard, cast

import numpy as np
import numpy.typing as npt

from powerinfer.errors import PromptError
from powerinfer.loading.loader import LoadedModel
from powerinfer.prompts.long_prompts import encode_prompt, too_long
from powerinfer.sampling.logit_processors import check_biased_ids
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.tokenizer import Tokenizer

__all__ = [
    "Params",
    "Prompt",
    "TokenIds",
    "as_text",
    "bos_alone",
    "decode_ids",
    "encode_text",
    "is_text",
    "one_or_several",
    "prompt_ids",
    "read_ids",
    "read_jobs",
    "read_params",
    "text_or_ids",
]

TokenIds: TypeAlias = Sequence[int] | npt.NDArray[np.int64] | npt.NDArray[np.int32]
"""Token ids: a list, or a numpy array [n]; other types of whole numbers work as well."""

Prompt: TypeAlias = str | bytes | TokenIds
"""Text, UTF-8 bytes (perhaps invalid), or token ids, which are used unchanged."""

Params: TypeAlias = SamplingParams | Sequence[SamplingParams] | None
"""Sampling parameters for all prompts, one for each of them, or the defaults."""

_PROMPT = "a prompt is a text, UTF-8 bytes or a list of token ids"


def read_jobs(
    loaded: LoadedModel, prompts: Prompt | Iterable[Prompt], params: Params
) -> list[tuple[list[int], SamplingParams]]:
    """Checked token ids and sampling parameters of each prompt.

    Raises:
        PromptError: one of them is not valid, or the numbers of both differ.
    """
    listed = cast("list[Prompt]", one_or_several(prompts))
    pairs = zip(listed, _pair_params(len(listed), params), strict=True)
    jobs = [(prompt_ids(loaded, prompt), each) for prompt, each in pairs]
    for _, each in jobs:
        check_biased_ids(each, loaded.model.config.vocab_size)
    return jobs


def prompt_ids(loaded: LoadedModel, prompt: Prompt) -> list[int]:
    """Token ids of a prompt, at least one.

    Raises:
        PromptError: the prompt is empty, has invalid ids or is longer than the context.
    """
    token_ids = text_or_ids(loaded, prompt)
    if not token_ids and is_text(prompt):
        raise PromptError("the prompt is empty, and the vocabulary has no BOS token to start from")
    if not token_ids:
        raise PromptError(f"the prompt is empty: {_PROMPT}, and has at least one token")
    return token_ids


def text_or_ids(
    loaded: LoadedModel, value: object, *, num_uncomputed: int = 0, name: str = "the prompt"
) -> list[int]:
    """Token ids of a text or of a list of ids; an empty text is BOS, if there is one.

    Args:
        value: text, UTF-8 bytes or token ids.
        num_uncomputed: tokens at the end that are never computed and need no room.
        name: name of the text in an error.

    Raises:
        PromptError: `value` is something else, has invalid ids or is longer than the context.
    """
    tokenizer, longest = loaded.tokenizer, loaded.model.context_length
    if is_text(value):
        token_ids = encode_prompt(
            tokenizer, as_text(value), longest, num_uncomputed=num_uncomputed, name=name
        )
        return token_ids or bos_alone(tokenizer)
    token_ids = read_ids(value, tokenizer.vocab_size)
    if len(token_ids) > longest + num_uncomputed:
        raise too_long(str(len(token_ids)), longest, name)
    return token_ids


def is_text(value: object) -> TypeGuard[str | bytes | bytearray]:
    """True for values that are to be tokenized."""
    return isinstance(value, str | bytes | bytearray)


def as_text(text: str | bytes | bytearray) -> str | bytes:
    """Convert to a type that tokenizers take."""
    return text if isinstance(text, str) else bytes(text)


def bos_alone(tokenizer: Tokenizer) -> list[int]:
    """Token ids of an empty text: BOS, if there is one."""
    return [] if tokenizer.bos_id is None else [tokenizer.bos_id]


def encode_text(
    tokenizer: Tokenizer,
    text: object,
    *,
    add_bos: bool | None = None,
    parse_special: bool = True,
) -> list[int]:
    """Token ids of a text, with BOS as the model expects; an empty text is BOS, if there is one.

    Raises:
        PromptError: `text` is neither str nor bytes.
        TokenizerError: BOS is asked for, and the vocabulary has none.
    """
    if not is_text(text):
        raise PromptError(f"only a text or UTF-8 bytes can be encoded, got {text!r:.60}")
    token_ids = tokenizer.encode(as_text(text), add_bos=add_bos, parse_special=parse_special)
    return bos_alone(tokenizer) if not token_ids and add_bos is None else token_ids


def decode_ids(tokenizer: Tokenizer, token_ids: object, *, skip_special: bool = True) -> str:
    """The text of token ids.

    Raises:
        PromptError: one of them is not an id of the vocabulary.
    """
    return tokenizer.decode(read_ids(token_ids, tokenizer.vocab_size), skip_special=skip_special)


def read_ids(token_ids: object, vocab_size: int) -> list[int]:
    """Convert token ids, numpy's too, to Python numbers.

    Raises:
        PromptError: they are not a list of whole numbers, or not in the vocabulary.
    """
    is_list = isinstance(token_ids, Iterable) and not isinstance(token_ids, str | bytes)
    items = _items(token_ids) if is_list else []
    ids = [int(item) for item in items if isinstance(item, Integral) and _is_id(item)]
    if not is_list or len(ids) < len(items):
        raise PromptError(f"{_PROMPT}, got {repr(token_ids)[:60]}")
    if ids and (min(ids) < 0 or max(ids) >= vocab_size):
        raise PromptError(f"token ids must be from 0 to {vocab_size - 1}")
    return ids


def read_params(params: object) -> SamplingParams:
    """Sampling parameters of one text; None means the defaults.

    Raises:
        PromptError: `params` is something else.
    """
    if params is None:
        return SamplingParams()
    if not isinstance(params, SamplingParams):
        raise PromptError(
            "params must be SamplingParams, such as SamplingParams(max_tokens=3), "
            f"got {repr(params)[:60]}"
        )
    return params


def one_or_several(texts: object) -> list[object]:
    """List of texts, from one or several; a flat list of ids is one text.

    Raises:
        PromptError: `texts` is a dictionary, of which only the keys would be read.
    """
    if isinstance(texts, Mapping):
        raise PromptError(f"{_PROMPT}, or several in a list; got {texts!r:.60}")
    if is_text(texts) or not isinstance(texts, Iterable):
        return [texts]
    listed = _items(texts)
    is_one = bool(listed) and all(_is_id(item) for item in listed)
    # Items that are neither text nor ids are refused when they are read.
    return [listed] if is_one else listed


def _pair_params(num_prompts: int, params: Params) -> list[SamplingParams]:
    """Sampling parameters for each prompt."""
    if isinstance(params, str | bytes) or not isinstance(params, Sequence):
        return [read_params(params)] * num_prompts
    listed = [read_params(each) for each in params]
    if len(listed) != num_prompts:
        raise PromptError(
            f"there are {num_prompts} prompts and {len(listed)} sampling parameters: give one for "
            "all prompts, or one for each"
        )
    return listed


def _items(values: object) -> list[object]:
    """Items of an iterable; an array without dimensions is one item."""
    is_scalar = getattr(values, "shape", None) == ()
    return [values] if is_scalar else list(cast("Iterable[object]", values))


def _is_id(item: object) -> bool:
    return isinstance(item, Integral) and not isinstance(item, bool)
